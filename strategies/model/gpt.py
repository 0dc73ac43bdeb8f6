"""The one GPT: GPT-2 (Radford et al. 2019) in Flax NNX. It names its dims and knows no devices.

Dims: B batch, T tokens, N = B x T, D embed, C = 3 (query, key, value), A = heads x head dim, F mlp, V vocab,
L layers. A suffix is the order in which an array is stored. Where a strategy must act inside the model (gather a
layer's weights, sum partial products) the model calls `Hooks`, which do nothing on one device.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from strategies.config import Dtype, GPTConfig, TrainConfig
from strategies.model.attention import KEPT, matmul
from strategies.model.hooks import ONE_DEVICE, Hooks
from strategies.model.loss import TOTALS, losses

Weights = dict[str, Any]
"""A nested dict of arrays, as NNX spells it: {"embedding": {...}, "blocks": {...}, "head": {...}}."""
GATHERED = "gathered"
"""The name of gathered weights that are to be kept for the backward pass."""
Split = tuple[Any, Any]
"""A module as `nnx.split` takes it apart: its graph and its weights."""


def _param(value: Array, *dims: str) -> nnx.Param:
    return nnx.Param(value, dims=dims)


def _normal(rngs: nnx.Rngs, shape: tuple[int, ...], *dims: str, std: float = 0.02) -> nnx.Param:
    return _param(std * jax.random.normal(rngs.params(), shape), *dims)


def _table(rngs: nnx.Rngs, config: GPTConfig, rows: int) -> nnx.Param:
    """Embeddings of the vocabulary, padded by zeros to `rows`: drawn row by row, so that padding changes no number."""
    drawn_VD = 0.02 * jax.random.normal(rngs.params(), (rows, config.embed))
    return _param(jnp.where(jnp.arange(rows)[:, None] < config.vocab, drawn_VD, 0), "vocab", "embed")


class LayerNorm(nnx.Module):
    """Normalise features, in float32 (Ba et al. 2016, equation 3)."""

    def __init__(self, config: GPTConfig):
        """Scale one and bias zero."""
        self.scale_D = _param(jnp.ones(config.embed), "embed")
        self.bias_D = _param(jnp.zeros(config.embed), "embed")

    def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Normalised over D, in the dtype it came in."""
        return (_normalise(x_BTD.astype(jnp.float32)) * self.scale_D + self.bias_D).astype(x_BTD.dtype)


@jax.custom_vjp
def _normalise(x_BTD: Array) -> Array:
    """Mean zero and variance one over D. Differentiated by hand: autodiff goes over [B,T,D] twice as often."""
    return _normalise_forward(x_BTD)[0]


def _normalise_forward(x_BTD: Array) -> tuple[Array, tuple[Array, ...]]:
    mean_BT1 = checkpoint_name(x_BTD.mean(-1, keepdims=True), KEPT)
    inverse_BT1 = checkpoint_name(lax.rsqrt(x_BTD.var(-1, keepdims=True) + 1e-5), KEPT)
    return (x_BTD - mean_BT1) * inverse_BT1, (x_BTD, mean_BT1, inverse_BT1)


def _normalise_backward(kept: tuple[Array, ...], dy_BTD: Array) -> tuple[Array]:
    """What of dy changes neither mean nor variance (Ba et al. 2016, appendix)."""
    x_BTD, mean_BT1, inverse_BT1 = kept
    y_BTD = (x_BTD - mean_BT1) * inverse_BT1
    common_BT1 = dy_BTD.mean(-1, keepdims=True)
    along_BT1 = (dy_BTD * y_BTD).mean(-1, keepdims=True)
    return (inverse_BT1 * (dy_BTD - common_BT1 - y_BTD * along_BT1),)


_normalise.defvjp(_normalise_forward, _normalise_backward)


class Embedding(nnx.Module):
    """Learned embeddings of tokens and of positions."""

    def __init__(self, config: GPTConfig, rows: int, rngs: nnx.Rngs):
        """`rows` is the vocabulary with its padding."""
        self.token_VD = _table(rngs, config, rows)
        self.position_TD = _normal(rngs, (config.sequence, config.embed), "sequence", "embed")

    def __call__(self, tokens_BT: Int[Array, "B T"], hooks: Hooks) -> Float[Array, "B T D"]:
        """Look up the tokens whose rows are held here, and sum over who holds the others."""
        position_TD = hooks.own_context(self.position_TD[: tokens_BT.shape[1]], 0)
        tokens_BT, rows = hooks.own_context(tokens_BT, 1), self.token_VD.shape[0]
        row_BT = tokens_BT - hooks.vocab_start(rows)
        held_BT1 = ((row_BT >= 0) & (row_BT < rows))[..., None]
        # Gradients of rows that are looked up more than once are summed in float32, and those of positions.
        wide_VD, dtype = self.token_VD.astype(jnp.float32), self.token_VD.dtype
        found_BTD = jnp.where(held_BT1, wide_VD[jnp.clip(row_BT, 0, rows - 1)], 0).astype(dtype)
        return (hooks.embed_sum(found_BTD) + hooks.own_tokens(position_TD).astype(jnp.float32)).astype(dtype)


class Block(nnx.Module):
    """Pre-LayerNorm transformer block: attention, then an MLP with tanh GELU."""

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        """Weights are normal with deviation 0.02; those that write to the residual stream less, by sqrt(2 layers)."""
        embed, mlp, residual_std = config.embed, config.mlp_dim, 0.02 * (2 * config.layers) ** -0.5
        self.head_dim = config.head_dim
        self.norm1 = LayerNorm(config)
        self.qkv_DCA = _normal(rngs, (embed, 3, embed), "embed", "qkv", "heads")
        self.qkv_bias_CA = _param(jnp.zeros((3, embed)), "qkv", "heads")
        self.out_AD = _normal(rngs, (embed, embed), "heads", "embed", std=residual_std)
        self.out_bias_D = _param(jnp.zeros(embed), "embed")
        self.norm2 = LayerNorm(config)
        self.up_DF = _normal(rngs, (embed, mlp), "embed", "mlp")
        self.up_bias_F = _param(jnp.zeros(mlp), "mlp")
        self.down_FD = _normal(rngs, (mlp, embed), "mlp", "embed", std=residual_std)
        self.down_bias_D = _param(jnp.zeros(embed), "embed")

    def __call__(self, x_BTD: Float[Array, "B T D"], hooks: Hooks, attention: Any) -> Float[Array, "B T D"]:
        """Both residual branches; `hooks.sum` completes the two products whose contracted dim may be split.

        The sums are named as worth keeping: computing one again would communicate again.
        """
        normed_BTD = hooks.all_tokens(self.norm1(x_BTD))
        qkv_BTCA = checkpoint_name(_add(hooks.project(normed_BTD, self.qkv_DCA[...]), self.qkv_bias_CA), KEPT)
        mixed_BTA = hooks.attend(qkv_BTCA, self.head_dim, attention)
        x_BTD = x_BTD + checkpoint_name(hooks.sum(matmul(mixed_BTA, self.out_AD[...])), KEPT)
        x_BTD = _add(x_BTD, self.out_bias_D)
        normed_BTD = hooks.all_tokens(self.norm2(x_BTD))
        hidden_BTF = jax.nn.gelu(_add(matmul(normed_BTD, self.up_DF[...]), self.up_bias_F), approximate=True)
        x_BTD = x_BTD + checkpoint_name(hooks.sum(matmul(hidden_BTF, self.down_FD[...])), KEPT)
        return _add(x_BTD, self.down_bias_D)


def _add(x_BTD: Array, bias: Any) -> Array:
    """Add a bias in float32. The result has the dtype of the array."""
    return (x_BTD + bias).astype(x_BTD.dtype)


class Head(nnx.Module):
    """The last norm, and a table of its own where the head is not tied to the embedding."""

    def __init__(self, config: GPTConfig, train: TrainConfig, rows: int, rngs: nnx.Rngs):
        """`rows` is the vocabulary with its padding."""
        self.vocab, self.how = config.vocab, train
        self.norm = LayerNorm(config)
        if not config.tied:
            self.token_VD = _table(rngs, config, rows)

    def __call__(
        self, x_BTD: Float[Array, "B T D"], token_VD: Array, targets_BT: Int[Array, "B T"], hooks: Hooks
    ) -> Float[Array, " N"]:
        """The loss of each token in float32; of the logits just the rows held here ever exist here."""
        normed_ND = hooks.all_tokens(self.norm(x_BTD)).reshape(-1, x_BTD.shape[-1])
        return losses(normed_ND, token_VD, targets_BT.reshape(-1), hooks, vocab=self.vocab, train=self.how)


class GPT(nnx.Module):
    """Embedding, stacked blocks that are scanned, head. `embed`, `run` and `losses` in turn give the loss."""

    def __init__(
        self,
        config: GPTConfig,
        train: TrainConfig,
        rngs: nnx.Rngs,
        *,
        rows: int | None = None,
        layer_slots: Sequence[int] | None = None,
        hooks: Hooks = ONE_DEVICE,
        attention: Any = "xla",
    ):
        """`rows` is the vocabulary with its padding; how it is trained (dtype, remat) is fixed at birth.

        `layer_slots` says which layer is in each slot of the stacked blocks; -1 is a slot of zeros.
        """
        self.how, self.hooks, self.attention = train, hooks, attention
        rows = rows or config.vocab
        self.embedding = Embedding(config, rows, rngs)
        layer_keys = jax.random.split(rngs.params(), config.layers)
        blocks, _ = nnx.split(nnx.eval_shape(lambda: Block(config, nnx.Rngs(0))))
        layer_L = jnp.arange(config.layers) if layer_slots is None else jnp.asarray(layer_slots)

        def block(layer: Array) -> Weights:
            weights = nnx.to_pure_dict(nnx.state(Block(config, nnx.Rngs(layer_keys[layer])), nnx.Param))
            return weights if layer_slots is None else jax.tree.map(lambda w: jnp.where(layer < 0, 0, w), weights)

        stacked = jax.vmap(block)(layer_L)
        self.blocks = nnx.merge(blocks, stacked)
        self.head = Head(config, train, rows, rngs)

    def embed(self, tokens_BT: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Tokens to the residual stream, in the compute dtype."""
        return self._ready(nnx.split(self.embedding))(tokens_BT, self.hooks)

    def run(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """All blocks held here, one after another; what the backward pass recomputes is `train.remat`."""
        graph, stacked = nnx.split(self.blocks)

        def layer(x_BTD: Array, weights: nnx.State) -> tuple[Array, None]:
            return self._ready((graph, weights))(x_BTD, self.hooks, self.attention), None

        # Iterations of a loop do not share subexpressions: no barrier is needed against that. A loop of one is none.
        loops = jax.tree.leaves(stacked)[0].shape[0] > self.how.unroll
        layer = jax.checkpoint(layer, policy=_REMAT[self.how.remat], prevent_cse=not loops)
        return lax.scan(layer, x_BTD, stacked, unroll=self.how.unroll)[0]

    def losses(self, x_BTD: Float[Array, "B T D"], targets_BT: Int[Array, "B T"]) -> Float[Array, " N"]:
        """Residual stream to the loss of each token. For what is kept see `_HEAD` and `_HEAD_IN_CHUNKS`."""
        targets_BT = self.hooks.own_context(targets_BT, 1)

        def run(head: Split, token_VD: Array, x_BTD: Array) -> Array:
            return nnx.merge(*head)(x_BTD, token_VD, targets_BT, self.hooks)

        graph, weights = nnx.split(self.head)
        x_BTD, weights["norm"] = self.hooks.head(x_BTD, weights["norm"])
        head = self._ready((graph, weights))
        token_VD = head.token_VD[...] if hasattr(head, "token_VD") else self._gathered(self.embedding.token_VD)
        policy = _HEAD if self.how.logits_bytes is None else _HEAD_IN_CHUNKS
        return jax.checkpoint(run, policy=policy)(nnx.split(head), token_VD, x_BTD)

    def _ready(self, split: Split) -> Any:
        """A module with its weights gathered, in the dtype in which they are used."""

        def ready(weight: Any) -> Any:
            return weight.replace(self._gathered(weight))

        graph, weights = split
        return nnx.merge(graph, jax.tree.map(ready, weights, is_leaf=lambda leaf: isinstance(leaf, nnx.Param)))

    def _gathered(self, weight: Any) -> Array:
        return self.hooks.gather(weight[...], weight.dims, used_dtype(weight.dims, self.how.dtype))


def is_matrix(dims: Sequence[str]) -> bool:
    """Whether a weight is a matrix or a table of embeddings; else it is a vector: of a norm, or a bias."""
    return len(set(dims) - {"layers", "qkv"}) == 2


def used_dtype(dims: Sequence[str], dtype: Dtype) -> Dtype:
    """The dtype in which a weight is used: matrices in the compute dtype, vectors in float32.

    The gradient of a vector is a sum over all tokens, made in the dtype in which the vector is used.
    """
    return dtype if is_matrix(dims) else "float32"


@cache
def weight_dims(config: GPTConfig) -> Weights:
    """The dims of each weight in its place; those of the blocks are stacked over layers."""
    model = nnx.eval_shape(lambda: GPT(config, TrainConfig(batch_size=1), nnx.Rngs(0)))

    def dims(path: Any, weight: nnx.Param) -> Any:
        return ("layers", *weight.dims) if path[0].key == "blocks" else weight.dims

    weights = nnx.state(model, nnx.Param)
    return nnx.to_pure_dict(jax.tree.map_with_path(dims, weights, is_leaf=lambda leaf: isinstance(leaf, nnx.Param)))


_REARRANGING = {"all_gather", "sharding_constraint", "reshape", "transpose", "convert_element_type"}


def _all_but_gathered(primitive: Any, *_: Any, **__: Any) -> bool:
    """Keep what was computed, but nothing gathered, nor another view of it: fsdp would not be ZeRO-3 with it."""
    return primitive.name not in _REARRANGING


def _is_gathered(primitive: Any, *_: Any, **__: Any) -> bool:
    """Keep what was gathered, by hand or by the compiler."""
    return primitive.name in {"all_gather", "sharding_constraint"}


_POLICIES = jax.checkpoint_policies
_REMAT = {
    "none": _all_but_gathered,
    "dots": _POLICIES.save_from_both_policies(
        _POLICIES.dots_with_no_batch_dims_saveable, _POLICIES.save_only_these_names(KEPT, GATHERED, TOTALS)
    ),
    "full": _POLICIES.save_only_these_names(GATHERED, TOTALS),
}
_HEAD = _POLICIES.save_from_both_policies(_REMAT["dots"], _is_gathered)
"""The head keeps one copy of the logits, in the compute dtype, and what it gathered: its backward pass comes at once.

It computes again only what is elementwise. Whether a matmul or a gather is done again would be left to the compiler:
XLA's CPU backend shares it with the first in JAX 0.10, and keeps the barrier of `jax.checkpoint` against that in 0.12.
"""
_HEAD_IN_CHUNKS = _POLICIES.save_from_both_policies(_REMAT["full"], _is_gathered)
"""Of a head with `logits_bytes` no logits are kept."""
