"""Hooks: functions through which a strategy acts inside the model. The model calls them and knows no devices.

Dims: B batch, T tokens, D embed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from strategies.model.attention import Attended, Reach, causal_attention
from strategies.model.grouped_matmul import GroupedMatmuls
from strategies.model.layers import after
from strategies.model.router import Routed
from strategies.model.weights import WeightSpec, look_up, project, varying_axes

Exchanged = tuple[Routed, Callable[[Array], Array]]
"""Result of `Hooks.exchange`."""


@dataclass(frozen=True)
class Hooks:
    """What a strategy does inside the model. The defaults are for one device, without communication.

    "Own tokens" are the tokens whose residual stream this device holds. "All tokens" are the tokens of this device's
    shard of each sequence, as `own_context` selects it. The order is: weights, tokens, attention, experts, embedding
    and head.

    Attributes:
        layer: one layer's stored weights, as read by the loop over layers -> as `gather` takes them.
        gather: (a stored weight, for blocks one layer's; its spec; dtype) -> the gathered weight, in that dtype.
        overlap_grad_reduction: whether layer l+1's gradients are reduced while layer l runs backward. The transpose of
            `layer` then runs one layer late.
        needs_loop: whether layers stay a loop even if one iteration runs all of them (layers.py).
        sum: partial sums [B,T,D] -> sums over devices, for this device's own tokens.
        per_device_share: divides a term that every device adds to its partial sums before `sum`.
        mean: means over this device's features -> means over the features of all devices that split a layer.
        all_tokens: [B,T,D] of own tokens -> of all tokens.
        own_tokens: [T,D] of all tokens -> of own tokens.
        own_context: (an array of whole sequences, index of its token dim) -> this device's shard of each sequence.
        replicated_loss: averages an auxiliary loss that every tensor-parallel device has computed identically.
        batch_sum: a sum over this device's tokens -> the sum over all tokens of the batch, or of the microbatch.
        sequence_sum: a sum over this device's tokens of each sequence -> the sum over all tokens of the sequence.
        compiler_shards: numbers of shards of the tokens and the vocabulary, if the step is written on whole arrays.
        project: (features [B,T,D] of all tokens, weights [D,...,A]) -> features of attention [B,T,...,A].
        projected: the same, after biases are added.
        attend: (`QKV` of this device's shard of the sequences, kernel, reach) -> this shard of `causal_attention` over
            whole sequences.
        dispatch: (rows [E,G,C,D] of this device's groups of tokens for all experts, their weights [E,G,C,1]) -> rows
            and weights of all groups for this device's experts.
        combine: rows [E,G,C,D] of all groups from this device's experts -> rows of its own groups from all experts.
        exchange: this device's tokens and choices (router.py) -> tokens of all devices that split the experts, with
            their choices of this device's experts; and the function back: sums of outputs [M,D] for these tokens ->
            sums [N,D] over all experts for its own tokens.
        mixture: (a mixture of experts, features [B,T,D] of all tokens, `LayerInfo`) -> `Experts.mixed` of them.
        mixture_losses: (a mixture of experts, its sums, these hooks) -> `Experts.losses` of them.
        grouped_matmuls: how blocks of rows of experts are multiplied; None if the rows are in buffers (experts.py).
        look_up: (rows of the token table on this device, row of each token) -> the rows found; zero for others.
        embed_sum: embeddings found in this device's rows of the token table -> the residual stream of its own tokens.
        vocab_start: number of vocabulary rows on this device -> index of the first.
        vocab_sum: a sum over this device's vocabulary rows -> the sum over all rows.
        vocab_max: a maximum over this device's vocabulary rows -> the maximum over all rows.
        head: (the residual stream before the head, stored weights that the head uses) -> both, unchanged.
        order: (an array, another) -> the other; with multi-token prediction it waits for the first on virtual devices.
    """

    layer: Callable[[Any], Any] = lambda weights: weights
    gather: Callable[[Array, WeightSpec, str], Array] = lambda weight, spec, dtype: weight.astype(dtype)
    overlap_grad_reduction: bool = False
    needs_loop: bool = True

    sum: Callable[[Array], Array] = lambda x: x
    per_device_share: Callable[[Array], Array] = lambda x: x
    mean: Callable[[Array], Array] = lambda x: x
    all_tokens: Callable[[Array], Array] = lambda x: x
    own_tokens: Callable[[Array], Array] = lambda x: x
    own_context: Callable[[Array, int], Array] = lambda x, dim: x
    replicated_loss: Callable[[Array], Array] = lambda number: number
    batch_sum: Callable[[Array], Array] = lambda x: x
    sequence_sum: Callable[[Array], Array] = lambda x: x
    compiler_shards: tuple[int, int] = (1, 1)

    project: Callable[[Array, Array], Array] = project
    projected: Callable[[Array], Array] = lambda x: x
    attend: Callable[[Attended, str, Reach | None], Array] = causal_attention

    dispatch: Callable[[Array, Array], tuple[Array, Array]] = lambda x, weights: (x, weights)
    combine: Callable[[Array], Array] = lambda x: x
    exchange: Callable[[Routed], Exchanged] = lambda routed: (routed, lambda x: x)
    mixture: Callable[[Any, Array, Any], Any] = lambda experts, x_BTD, info: experts.mixed(x_BTD, info)
    mixture_losses: Callable[[Any, Any, Any], Any] = lambda experts, sums, hooks: experts.losses(sums, hooks)
    grouped_matmuls: GroupedMatmuls | None = None

    look_up: Callable[[Array, Array], Array] = look_up
    embed_sum: Callable[[Array], Array] = lambda x: x
    vocab_start: Callable[[int], Int[Array, ""] | int] = lambda rows: 0
    vocab_sum: Callable[[Array], Array] = lambda x: x
    vocab_max: Callable[[Array], Array] = lambda x: x
    head: Callable[[Array, Any], tuple[Array, Any]] = lambda x, weights: (x, weights)
    order: Callable[[Array, Array], Array] = lambda earlier, later: later


ONE_DEVICE = Hooks()


@jax.custom_vjp
def head_first(x_BTD: Array, weights: Any) -> tuple[Array, Any]:
    """Return x and weights of the head unchanged, but make x's gradient depend on the weights' gradients.

    So the weight gradients are scattered before the backward pass of the blocks. Otherwise XLA's CPU backend may
    scatter them concurrently with the loop over blocks, and virtual devices may deadlock
    (benchmarks/program/deadlock.py). JAX 0.12 does so if a device has one sequence of 4096 tokens or more.
    Gradients that vary over more mesh axes than x are skipped, because x's gradient must not vary over them.
    """
    return x_BTD, weights


def _head_first_backward(_: None, grads: tuple[Array, Any]) -> tuple[Array, Any]:
    dx_BTD, dweights = grads
    first = [grad.reshape(-1)[0] for grad in jax.tree.leaves(dweights) if varying_axes(grad) <= varying_axes(dx_BTD)]
    return after(sum(first, jnp.zeros(())), dx_BTD), dweights


head_first.defvjp(lambda x_BTD, weights: ((x_BTD, weights), None), _head_first_backward)


@dataclass(frozen=True)
class LayerInfo:
    """What all layers of a model share.

    Attributes:
        kernel: the kind of attention kernel, as `causal_attention` takes it.
        reach: which earlier tokens a token attends to, unless the part is dense; None: all.
        keeps_slices: whether slices of a layer's weights are kept for the backward pass: without a loop they cost
            little, and slicing again would be a kernel each.
    """

    hooks: Hooks
    kernel: str
    reach: Reach | None
    sequence: int
    keeps_slices: bool = False

    @property
    def attends_apart(self) -> bool:
        """Whether attention takes queries, keys and values as three arrays of whole sequences, as cuDNN's kernel."""
        own = ("attend", "project", "projected")
        return self.kernel == "cudnn" and all(getattr(self.hooks, name) is getattr(Hooks, name) for name in own)

    @property
    def positions_T(self) -> Int[Array, " T"]:
        """Position, from 0, of each token that attention and MLP work on, in their order.

        On a context axis these are the positions of the device's shard: consecutive ones, or an early and a late chunk.
        They are computed on use, so a layer that does not use them computes none.
        """
        return self.hooks.own_context(jnp.arange(self.sequence), 0)
