"""Queries, keys and values: the input of attention. latent.py has other forms with the same members.

Dims: B batch, T tokens, J KV heads, G query heads per KV head, H = G x J query heads, C = G + 2 (queries, key, value),
K head dim, A = H x K, E = J x K.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from strategies.infeasible import require_divides

ATTENDED = "attended"
"""`checkpoint_name` of what a kernel keeps for its backward pass: its output and log-sum-exp."""


@partial(jax.tree_util.register_dataclass, data_fields=["qkv_BTCE", "sink_H"], meta_fields=["head_dim"])
@dataclass(frozen=True)
class QKV:
    """Queries, keys and values of the same tokens, in one array.

    With G = 1 attention is multi-head attention, with J = 1 multi-query attention, otherwise grouped-query attention
    (Ainslie et al. 2023, "GQA: Training Generalized Multi-Query Transformer Models", section 2.2). G consecutive query
    heads share a KV head. Rotary positions are already applied.

    They are one array because one projection writes them, and their gradient is written at once. C and E are separate
    dims so that a mesh axis which splits the KV heads splits one dim, with the queries that attend to them; the
    compiler would gather a combined dim.

    Attributes:
        qkv_BTCE: for each KV head its queries, then its key, then its value.
        sink_H: for each query head a score that joins the softmax, like the score of one more key whose value is zero
            (OpenAI 2025, "gpt-oss", section 2.2); None without sinks.
    """

    qkv_BTCE: Array
    head_dim: int
    sink_H: Array | None = None

    @classmethod
    def of(cls, q_BTHK: Array, k_BTJK: Array, v_BTJK: Array) -> "QKV":
        """Join queries, keys and values."""
        qkv_BTCJK = joined((q_BTHK, k_BTJK, v_BTJK), 2)
        return cls(qkv_BTCJK.reshape(*qkv_BTCJK.shape[:3], -1), qkv_BTCJK.shape[-1])

    @property
    def tokens(self) -> int:
        """T."""
        return self.qkv_BTCE.shape[1]

    @property
    def key_heads(self) -> int:
        """Number of KV heads, J."""
        return self.qkv_BTCE.shape[3] // self.head_dim

    @property
    def qkv_BTCJK(self) -> Float[Array, "B T C J K"]:
        """The array by heads."""
        return self.qkv_BTCE.reshape(*self.qkv_BTCE.shape[:3], -1, self.head_dim)

    @property
    def apart(self) -> tuple[Float[Array, "B T H K"], Float[Array, "B T J K"], Float[Array, "B T J K"]]:
        """Queries, keys and values."""
        *q_BTJK, k_BTJK, v_BTJK = map(self.heads_of, _split(self.qkv_BTCE))
        return in_a_row(q_BTJK, 2), k_BTJK, v_BTJK

    @property
    def heads_first(self) -> tuple[Float[Array, "B H T K"], Float[Array, "B J T K"], Float[Array, "B J T K"]]:
        """Queries, keys and values, in the layout of batched matmuls."""
        *q_BJTK, k_BJTK, v_BJTK = self.qkv_BTCJK.transpose(2, 0, 3, 1, 4)
        return in_a_row(q_BJTK, 1), k_BJTK, v_BJTK

    def for_devices(self, count: int) -> "QKV":
        """A copy whose number of KV heads `count` divides: if there are too few, each is replicated."""
        heads, copies = self.key_heads, math.lcm(self.key_heads, count) // self.key_heads
        require_divides("devices", count, heads=(self.qkv_BTCE.shape[2] - 2) * heads)
        return replace(self, qkv_BTCE=copied(self.qkv_BTCE, self.head_dim, copies))

    def together(self, grads: Sequence[Array]) -> Float[Array, "B T C J K"]:
        """Gradients of queries [B,T,H,K], keys and values [B,T,J,K] as what is added up and `with_together` takes."""
        return joined(grads, 2)

    def with_together(self, dqkv_BTCJK: Array, dsink_H: Array | None) -> "QKV":
        """The gradient of this value, from a sum of `together`, and that of the sinks."""
        dqkv_BTCE = dqkv_BTCJK.reshape(self.qkv_BTCE.shape).astype(self.qkv_BTCE.dtype)
        return replace(self, qkv_BTCE=dqkv_BTCE, sink_H=dsink_H)

    def with_gradients(self, dq_BHTK: Array, dk_BJTK: Array, dv_BJTK: Array, dsink_H: Array | None) -> "QKV":
        """The gradient of this value, from those of `heads_first` and of the sinks."""
        dqkv_CBJTK = joined((dq_BHTK, dk_BJTK, dv_BJTK), 1, at=0)
        dqkv_BTCE = dqkv_CBJTK.transpose(1, 3, 0, 2, 4).reshape(self.qkv_BTCE.shape)
        return replace(self, qkv_BTCE=dqkv_BTCE.astype(self.qkv_BTCE.dtype), sink_H=dsink_H)

    def heads_of(self, x_BTA: Float[Array, "B T A"]) -> Float[Array, "B T H K"]:
        """Split features into heads as large as these."""
        return x_BTA.reshape(*x_BTA.shape[:2], -1, self.head_dim)


@jax.custom_vjp
def _split(qkv_BTCE: Array) -> tuple[Array, ...]:
    """The array along C. Gradients are stacked; autodiff would add up padded arrays."""
    return tuple(qkv_BTCE[:, :, c] for c in range(qkv_BTCE.shape[2]))


_split.defvjp(lambda qkv_BTCE: (_split(qkv_BTCE), None), lambda _, grads: (jnp.stack(grads, 2),))


def copied(x_XCE: Float[Array, "*X C E"], head_dim: int, copies: int, keys: int = 2) -> Array:
    """Replicate each KV head `copies` times, side by side, and divide its queries among the replicas.

    x is like `QKV.qkv_BTCE`, with any dims before C. `keys` of C, the last ones, are replicated: the key and the value.
    """
    if copies == 1:
        return x_XCE
    *rest, count, features = x_XCE.shape
    queries = (count - keys) // copies
    q = x_XCE[..., :-keys, :].reshape(*rest, copies, queries, -1, head_dim)
    k = jnp.repeat(x_XCE[..., -keys:, :].reshape(*rest, keys, -1, 1, head_dim), copies, axis=-2)
    shape = features * copies
    q, k = jnp.moveaxis(q, -4, -2).reshape(*rest, queries, shape), k.reshape(*rest, keys, shape)
    return jnp.concatenate([q, k], -2)


def in_a_row(queries: Sequence[Array], dim: int) -> Array:
    """Join G arrays of J query heads each, so that a KV head's query heads are neighbours. `dim` is of heads."""
    if len(queries) == 1:
        return queries[0]
    q = jnp.stack(queries, dim + 1)
    return q.reshape(*q.shape[:dim], -1, *q.shape[dim + 2 :])


def joined(qkv: Sequence[Array], dim: int, at: int | None = None) -> Array:
    """Stack queries, keys and values along C, a new dim `at`; default: before their heads, dim `dim`."""
    q, k, v = qkv
    queries, keys, values = (x.shape[dim] for x in qkv)
    if queries % keys or keys != values:
        raise ValueError(f"{queries} query heads cannot share {keys} key heads and {values} value heads")
    groups = [q]
    if queries > keys:
        grouped = q.reshape(*q.shape[:dim], keys, -1, *q.shape[dim + 1 :])
        groups = [grouped.take(group, dim + 1) for group in range(queries // keys)]
    return jnp.stack([*groups, k, v], dim if at is None else at)
