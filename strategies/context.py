"""Context parallel: each device holds all weights, and its part of the tokens of every sequence.

    dW[D,F] -all_reduce(context)-> dW[D,F], each weight, once a step

Only attention looks at the tokens of other devices. In a ring (`context_attention="ring"`, the default; see
ring_attention.py) keys and values go around, and on the way back their gradients with them:

    k, v[B,T_context,D] -permute(context)-> the next device, n-1 times a layer forward, and n-1 times again backward
    dk, dv[B,T_context,D] -permute(context)-> the next device, n times a layer backward, the last time home

Or attention is split over its heads instead of over tokens (`"ulysses"`; Jacobs et al. 2023, "DeepSpeed Ulysses",
section 3):

    q, k, v[B,T_context,D] -all_to_all(context)-> q, k, v[B,T,D_context], once a layer forward
    mixed[B,T,D_context] -all_to_all(context)-> mixed[B,T_context,D], once a layer forward
    each has the other for its transpose: once and once a layer backward

For P parameters and L layers on n devices a device sends 2 P (n-1)/n elements a step, in `reduce_dtype`, and the loss;
and in the compute dtype (3n-2) 2 L B T D / n elements around a ring, or 8 L B T D (n-1)/n^2 elements from all to all.
With `remat="full"` n-1 hops of k and v more, or half of the 8 L again. The ring does (2n+1)/4n of the FLOPs that
attention has on one device, which computes what causality masks out; from all to all does as many.
"""

import dataclasses
from functools import partial

from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from strategies.config import GPTConfig, Infeasible, TrainConfig, legal, require_divides
from strategies.mesh import Devices, MeshSpec
from strategies.model.attention_kernels import causal_attention
from strategies.model.hooks import ONE_DEVICE, Hooks
from strategies.model.remat import KEPT
from strategies.model.ring_attention import ring_attention, zigzag
from strategies.sharding.layout import Layout
from strategies.step import Implementation, Step, Strategy
from strategies.training.train_step import assemble

AXES = ("context",)
LAYOUT = Layout(tokens=AXES)


def contiguous(x: Array, dim: int) -> Array:
    """Of an array of whole sequences, whose tokens are dim `dim`: this device's part, the parts in their order."""
    own = x.shape[dim] // lax.axis_size("context")
    return lax.dynamic_slice_in_dim(x, lax.axis_index("context") * own, own, dim)


def ulysses_attention(qkv_BTCA: Float[Array, "B t 3 A"], head_dim: int, kind: str) -> Float[Array, "B t A"]:
    """As `causal_attention`, for the tokens that `contiguous` leaves here: of all tokens, this device's heads.

    What arrives is worth keeping: computing it again would communicate again.
    """
    all_to_all = partial(lax.all_to_all, axis_name="context", tiled=True)
    qkv_BTCA = checkpoint_name(all_to_all(qkv_BTCA, split_axis=3, concat_axis=1), KEPT)
    mixed_BTA = causal_attention(qkv_BTCA, head_dim, kind)
    return checkpoint_name(all_to_all(mixed_BTA, split_axis=1, concat_axis=2), KEPT)


def resolve_context_attention(train: TrainConfig, stages: int) -> TrainConfig:
    """Resolve `context_attention="auto"`: a ring, or Ulysses where there are pipeline stages.

    Raises:
        Infeasible: a ring in more than one: XLA's permutations wait for all devices of the mesh, and stages work on
            their layers each at its own times.
    """
    if train.context_attention == "auto":
        return dataclasses.replace(train, context_attention="ring" if stages == 1 else "ulysses")
    if train.context_attention == "ring" and stages > 1:
        raise Infeasible(f"pipeline={stages} stages have no ring, which all must enter; use context_attention=ulysses")
    return train


def hooks(train: TrainConfig, size: int, others: Hooks = ONE_DEVICE) -> Hooks:
    """Hooks of other axes, and besides what completes attention where this one splits the tokens.

    Other axes may split what is held here further, heads or tokens, after this one has.
    """
    if size == 1:
        return others
    if train.context_attention == "ulysses":
        return dataclasses.replace(others, own_context=contiguous, attend=ulysses_attention)
    return dataclasses.replace(others, own_context=zigzag, attend=ring_attention)


def require_fit(config: GPTConfig, train: TrainConfig, size: int, tensors: int = 1) -> None:
    """Refuse an axis that does not divide what it is to split, where `tensors` devices have split the heads before.

    Raises:
        Infeasible: names the numbers and the legal sizes, or an attention that has no ring.
    """
    if train.context_attention == "ulysses":
        heads = "heads" if tensors == 1 else "heads/tensor"
        require_divides("context", size, **{"sequence": config.sequence, heads: config.heads // tensors})
    elif size > 1:
        if train.attention == "cudnn":
            raise Infeasible("attention=cudnn has no ring; use auto or xla, or context_attention=ulysses")
        if config.sequence % (2 * size):
            sizes = legal(config.sequence // 2 if config.sequence % 2 == 0 else 1, "context")
            raise Infeasible(f"2 x context={size} chunks do not divide sequence={config.sequence}; {sizes}")


def build(config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Devices | None = None) -> Step:
    """Build the step. Arguments and errors are those of `Strategy.build`."""
    device_mesh = mesh.over(AXES, devices)
    require_fit(config, train, mesh.size)
    return assemble(config, device_mesh, train, LAYOUT, Implementation(hooks=hooks(train, mesh.size)))


OPTIONS = ("context_attention", "reduce_dtype")
CONTEXT = Strategy("context", AXES, build, OPTIONS, LAYOUT)
