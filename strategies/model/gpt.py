"""The GPT that all strategies train, in Flax NNX. GPT-2 (Radford et al. 2019) by default.

Dims: B batch, T tokens, N = B x T, D embed, V vocab, L layers. The suffix of an array's name gives its dims in order.
Where a strategy must act inside the model (gather a layer's weights, sum partial products) the model calls `Hooks`,
which do nothing on one device. Each part of the model has its own file, with its weights and its function.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from strategies.config import TrainConfig
from strategies.gpt_config import GPTConfig
from strategies.model.attention import Reach
from strategies.model.block import Block, block_of
from strategies.model.ends import Embedding, Head
from strategies.model.halves import by_halves
from strategies.model.hooks import ONE_DEVICE, Hooks, LayerInfo
from strategies.model.layers import Extras, Layers, Result, Sums, added, is_loop, layers_at_once, scan_kept
from strategies.model.mtp import MTP, after_next
from strategies.model.remat import CHUNKED_HEAD_POLICY, HEAD_POLICY, LAYER_POLICIES
from strategies.model.weights import Weights, WeightSpec, nested, varying_as

Split = tuple[Any, Any]
"""Graph and weights of a module, as `nnx.split` returns them."""
AnyStack = TypeVar("AnyStack", Block, MTP)
Collect = Callable[[Block, Mapping[str, Sums]], Any]
"""(a block, each branch's sums) -> what a forward pass collects of it."""


class GPT(nnx.Module):
    """Embedding, leading dense layers, stacked blocks and head. Call `embed`, `run` and `losses`, in this order."""

    def __init__(
        self,
        config: GPTConfig,
        train: TrainConfig,
        rngs: nnx.Rngs,
        *,
        padded_vocab: int | None = None,
        layer_slots: Sequence[int] | None = None,
        hooks: Hooks = ONE_DEVICE,
        attention: str = "xla",
    ):
        """Initialise the weights.

        Args:
            train: its dtype and remat are fixed when the model is made.
            padded_vocab: rows of the embedding table, with padding; default: the size of the vocabulary.
            layer_slots: index of the layer in each slot of the stacked blocks; -1 is a slot of zeros.
        """
        self.train_config, self.hooks = train, hooks
        loops = is_loop(config.blocks, train.layers_in_loop, needed=hooks.needs_loop)
        keeps_slices = train.remat != "full" and not loops
        self.layer_info = LayerInfo(hooks, attention, Reach.of(config), config.sequence, keeps_slices)
        padded_vocab = padded_vocab or config.vocab
        self.embedding = Embedding(config, padded_vocab, rngs)
        layer_keys = jax.random.split(rngs.params(), config.all_blocks)
        if config.lead:
            layer_keys, lead_keys = layer_keys[config.dense_layers :], layer_keys[: config.dense_layers]
            self.lead = _stacked(block_of(config.lead), config, lead_keys)
        if config.mtp:
            layer_keys, mtp_keys = layer_keys[: config.blocks], layer_keys[config.blocks :]
            self.mtp = _stacked(MTP, config, mtp_keys)
            self.mtp_loss = config.mtp_loss
        self.blocks = _stacked(block_of(config), config, layer_keys, layer_slots)
        self.head = Head(config, train, padded_vocab, rngs)

    @classmethod
    def of_weights(cls, config: GPTConfig, train: TrainConfig, weights: Weights) -> "GPT":
        """The model with these weights, on one device."""
        padded_vocab = weights["embedding"]["token_VD"].shape[0]
        abstract = nnx.eval_shape(lambda: cls(config, train, nnx.Rngs(0), padded_vocab=padded_vocab))
        return nnx.merge(nnx.split(abstract, nnx.Param)[0], weights)

    def embed(self, tokens_BT: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Embed the tokens, and run the leading dense layers. The residual stream is in the compute dtype."""
        return self._led(self._ready(nnx.split(self.embedding))(tokens_BT, self.hooks))

    def embed_with_next(self, tokens_BS: Int[Array, "B S"]) -> tuple[Float[Array, "B T D"], Array | None]:
        """`embed` of all tokens but the last; and for multi-token prediction the embeddings of all but the first."""
        if not hasattr(self, "mtp"):
            return self.embed(tokens_BS[:, :-1]), None
        embedding = self._ready(nnx.split(self.embedding))  # gathered once for both
        next_BTD = embedding.look_up(tokens_BS[:, 1:], self.hooks)
        return self._led(self.hooks.order(next_BTD, embedding(tokens_BS[:, :-1], self.hooks))), next_BTD

    def _led(self, x_BTD: Array) -> Array:
        """The result of the leading dense layers, if any."""
        if not hasattr(self, "lead"):
            return x_BTD
        layers, stacked = self._layers(self.lead)
        return layers.differentiated(stacked, x_BTD)[0]

    def run(
        self, x_BTD: Float[Array, "B T D"], collect: Collect | None = None, *, in_loop: bool = False
    ) -> tuple[Array, Any]:
        """Run this device's blocks in order, rematerialised by `TrainConfig.remat`; with `in_loop` a single block.

        Returns the residual stream, and the sum of all extras; or, in a forward pass alone, what `collect` finds in
        each block, stacked.
        """
        layers, stacked = self._layers(self.blocks, collect)
        if collect:
            return layers.forward(stacked, x_BTD)
        return layers.differentiated(stacked, x_BTD, in_loop=True) if in_loop else layers(stacked, x_BTD)

    def _layers(self, stack: Block, collect: Collect | None = None) -> tuple[Layers, nnx.State]:
        train, (graph, stacked) = self.train_config, nnx.split(stack)
        count = jax.tree.leaves(stacked)[0].shape[0]

        def gather(stored: nnx.State) -> nnx.State:
            return nnx.split(self._ready((graph, self.hooks.layer(stored))))[1]

        def run(weights: nnx.State, x_BTD: Array) -> Result:
            block, info = nnx.merge(graph, weights), self.layer_info
            layer = partial(block, info=info)
            y_BTD, sums = by_halves(layer, x_BTD) if train.halves == "on" else layer(x_BTD)
            return y_BTD, collect(block, sums) if collect else block.extras_of(sums, info.hooks)

        return Layers(
            gather,
            run,
            LAYER_POLICIES[train.remat],
            unroll=layers_at_once(count, train.layers_in_loop),
            gathers_ahead=train.prefetch == "on",
            sums_late=self.hooks.overlap_grad_reduction,
            ordered=is_ordered(train, count),
            loops=is_loop(count, train.layers_in_loop, needed=self.hooks.needs_loop),
        ), stacked

    def losses(self, x_BTD: Float[Array, "B T D"], targets_BT: Int[Array, "B T"]) -> Float[Array, " N"]:
        """Loss of each token, from the residual stream after the last block."""
        graph, weights = nnx.split(self.head)
        x_BTD, weights["norm"] = self.hooks.head(x_BTD, weights["norm"])
        head = self._ready((graph, weights))
        return self._of_head(head, self._table(head, self.embedding.token_VD), x_BTD, targets_BT)

    def training_losses(
        self, x_BTD: Float[Array, "B T D"], targets_BT: Int[Array, "B T"], next_BTD: Array | None = None
    ) -> tuple[Float[Array, " N"], Extras]:
        """`losses`, and what multi-token prediction adds: its loss, "mtp", and the extras of its block. `next_BTD` are
        the embeddings of the targets, which are looked up if they are not given.
        """
        if not hasattr(self, "mtp"):
            return self.losses(x_BTD, targets_BT), {}
        following_BTD: Any = next_BTD
        if next_BTD is None:
            following_BTD = self._ready(nnx.split(self.embedding)).look_up(targets_BT, self.hooks)
        (y_BTD, extras), norm = self._mtp_block(x_BTD, following_BTD)
        graph, weights = nnx.split(self.head)
        y_BTD, (weights, table) = self.hooks.head(y_BTD, (weights, nnx.state(self.embedding)["token_VD"]))
        head, sequence = self._ready((graph, weights)), targets_BT.shape[1]
        token_VD = self._table(head, table)  # gathered once for both
        losses_N = self._of_head(head, token_VD, self.hooks.order(y_BTD, x_BTD), targets_BT)
        head.norm = nnx.merge(nnx.split(head.norm)[0], norm)
        losses_BT = self._of_head(head, token_VD, y_BTD, after_next(targets_BT)).reshape(len(targets_BT), -1)
        counted_T = self.hooks.own_context(jnp.arange(sequence), 0) < sequence - 1
        mtp = {"mtp": self.mtp_loss * jnp.where(counted_T, losses_BT, 0).sum()}
        return losses_N, added(mtp, jax.tree.map(self.hooks.replicated_loss, extras))

    def _table(self, head: Head, embedding: Any) -> Array:
        """The head's own gathered table, or the embedding's."""
        return head.token_VD[...] if hasattr(head, "token_VD") else self._gathered(embedding)

    def _of_head(self, head: Head, token_VD: Array, x_BTD: Array, targets_BT: Array) -> Float[Array, " N"]:
        targets_BT = self.hooks.own_context(targets_BT, 1)

        def run(head: Split, token_VD: Array, x_BTD: Array) -> Array:
            return nnx.merge(*head)(x_BTD, token_VD, targets_BT, self.hooks)

        policy = HEAD_POLICY if self.train_config.logits_bytes is None else CHUNKED_HEAD_POLICY
        return jax.checkpoint(run, policy=policy)(nnx.split(head), token_VD, x_BTD)

    def _mtp_block(self, x_BTD: Array, next_BTD: Array) -> tuple[Result, nnx.State]:
        """`MTP` of the residual stream and the embeddings of next tokens, as a loop of one layer; and its last norm."""
        train, (graph, stacked) = self.train_config, nnx.split(self.mtp)
        # Pipeline stages have parts of the gradient, by their rows of the head's table.
        next_BTD = varying_as(next_BTD, x_BTD)

        def run(stored: nnx.State, x_BTD: Array, next_BTD: Array) -> tuple[Result, nnx.State]:
            mtp = self._ready((graph, self.hooks.layer(stored)))
            result = mtp(x_BTD, next_BTD, self.layer_info, halves=train.halves == "on")
            return result, nnx.split(mtp.norm)[1]

        run = jax.checkpoint(run, policy=LAYER_POLICIES[train.remat], prevent_cse=False)
        layers = stacked, x_BTD[None], next_BTD[None]
        _, found = scan_kept(lambda none, layer: (none, run(*layer)), (), layers)
        return jax.tree.map(lambda each: each[0], found)

    def logits(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Next-token logits in float32, without padding, on one device: for sampling."""
        head = self._ready(nnx.split(self.head))
        token_VD = self._table(head, self.embedding.token_VD)
        return (head.norm(x_BTD) @ token_VD.T)[..., : head.vocab].astype(jnp.float32)

    def _ready(self, split: Split) -> Any:
        """The module with gathered weights, in the dtype of their use."""

        def ready(weight: Any) -> Any:
            return weight.replace(self._gathered(weight))

        graph, weights = split
        return nnx.merge(graph, jax.tree.map(ready, weights, is_leaf=lambda leaf: isinstance(leaf, nnx.Param)))

    def _gathered(self, weight: Any) -> Array:
        return self.hooks.gather(weight[...], weight.spec, weight.spec.used_dtype(self.train_config.dtype))


def is_ordered(train: TrainConfig, layers: int) -> bool:
    """Whether the gathers outside the two loops wait for the result before them.

    Unordered, they overlap with the embedding and the head. But a compiler would move them out of a loop over
    microbatches, and with few layers, whose loops it unrolls, it would merge the gathers of both loops. Either way two
    layers' weights would stay in memory.
    """
    return train.microbatches > 1 or layers <= train.layers_in_loop + 2


def _stacked(
    kind: type[AnyStack], config: GPTConfig, layer_keys: Array, slots: Sequence[int] | None = None
) -> AnyStack:
    """Layers of one kind, each with its own random key, stacked in the order of `slots`; -1 is a slot of zeros."""
    blocks, _ = nnx.split(nnx.eval_shape(lambda: kind(config, nnx.Rngs(0))))
    layer_L = jnp.arange(len(layer_keys)) if slots is None else jnp.asarray(slots)

    def block(layer: Array) -> Weights:
        weights = nnx.to_pure_dict(nnx.state(kind(config, nnx.Rngs(layer_keys[layer])), nnx.Param))
        return weights if slots is None else jax.tree.map(lambda w: jnp.where(layer < 0, 0, w), weights)

    return nnx.merge(blocks, jax.vmap(block)(layer_L))


def weight_specs(config: GPTConfig) -> Mapping[str, WeightSpec]:
    """Specs of the model's weights by name, such as "blocks.mlp.up_DF", in the order of the leaves of their tree."""
    return _weight_specs(config, block_of(config), block_of(config.lead) if config.lead else None)


@cache
def _weight_specs(config: GPTConfig, block: type[Block], lead: type[Block] | None) -> Mapping[str, WeightSpec]:
    """The blocks are arguments because a name in `BLOCKS` may be rebound, as in a notebook."""
    stacks: dict[str, tuple[type[Block | MTP], str]] = {"blocks": (block, "layers")}
    stacks |= {"lead": (lead, "dense_layers")} if lead else {}
    stacks |= {"mtp": (MTP, "mtp_layers")} if config.mtp else {}
    parts = {"embedding": Embedding.weights(config), "head": Head.weights(config)}
    for stack, (kind, dim) in stacks.items():
        weights = kind.weights(config).items()
        parts[stack] = {name: replace(spec, dims=(dim, *spec.dims)) for name, spec in weights}
    specs = {f"{part}.{name}": spec for part, weights in parts.items() for name, spec in weights.items()}
    return {name: replace(specs[name], name=name) for name in sorted(specs, key=lambda name: name.split("."))}


def spec_tree(config: GPTConfig) -> Weights:
    """The `WeightSpec` of each weight, in the tree of the model."""
    return nested(weight_specs(config))


def map_weights(function: Callable[..., Any], config: GPTConfig, weights: Weights, *others: Weights) -> Weights:
    """Apply a function to each array of some weights, its `WeightSpec`, and the matching array of each of `others`."""

    def there(specs: Weights, weights: Weights) -> Weights:
        return {name: there(specs[name], w) if isinstance(w, dict) else specs[name] for name, w in weights.items()}

    return jax.tree.map(function, weights, there(spec_tree(config), weights), *others)


def resolved(config: GPTConfig) -> GPTConfig:
    """The same model with explicit MLP size, head numbers and sizes, and the attention that it amounts to.

    Two configurations are the same model if this is equal, up to the padding of the vocabulary.

    >>> resolved(GPTConfig(layers=1, embed=8, heads=1, sequence=64, attention_window=64)).attention_window
    >>> resolved(GPTConfig(layers=1, embed=8, heads=1, sequence=64, attention_stride=4)).attention_window
    4
    """
    reach = Reach.of(config)
    options: dict[str, Any] = {"mlp": config.mlp_dim, "head_size": config.head_dim}
    options["key_heads"] = config.key_heads or config.heads
    if reach is None or not reach.summary:
        window, stride = (None, None) if reach is None else (reach.window, reach.stride)
        options |= {"attention_window": window, "attention_stride": stride}
        options |= {"attention_pattern": "strided", "attention_summary": 1}
    return replace(config, **options)


def param_count(config: GPTConfig) -> int:
    """Number of parameters, without padding of the vocabulary."""
    sizes = config.dim_sizes
    return sum(math.prod(sizes[dim] for dim in spec.dims) for spec in weight_specs(config).values())
