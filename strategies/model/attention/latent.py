"""Keys and values as latents: the input of multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1).

A token has C latents, from which the keys and values of all heads are computed, and one rotary key, which all heads
share. A kernel's backward pass computes keys and values again from the latents. Only the latents are kept for it,
unless devices exchange keys and values.

Dims: B batch, T tokens, H heads, K = N + R features of a query or key: N computed from latents, R rotary;
V features of a value, C latents, L = C + R, E = H x N, F = H x V.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from strategies.model.attention.qkv import QKV


@dataclass(frozen=True)
class QueriesApart:
    """Queries in an array of their own, and what else has members as those of `QKV`."""

    q_BTHK: Array
    sink_H: ClassVar[None] = None

    @property
    def tokens(self) -> int:
        """T."""
        return self.q_BTHK.shape[1]

    def heads_of(self, x_BTF: Float[Array, "B T F"]) -> Float[Array, "B T H V"]:
        """Split features into heads as large as the values."""
        return x_BTF.reshape(*x_BTF.shape[:2], self.q_BTHK.shape[2], -1)

    def together(self, grads: Sequence[Array]) -> tuple[Array, ...]:
        """Gradients of queries, keys and values, as they are."""
        return tuple(grads)

    def with_together(self, grads: tuple[Array, ...], dsink_H: None) -> Any:
        """The gradient of this value, from a sum of `together`."""
        return self.with_gradients(*(grad.swapaxes(1, 2) for grad in grads), dsink_H=dsink_H)

    def with_gradients(self, dq_BHTK: Array, dk_BHTK: Array, dv_BHTV: Array, dsink_H: None) -> Any:
        """The gradient of this value, from those of `heads_first`."""
        raise NotImplementedError


@partial(jax.tree_util.register_dataclass, data_fields=["q_BTHK", "k_BTHK", "v_BTHV"], meta_fields=[])
@dataclass(frozen=True)
class HeadsQKV(QueriesApart):
    """Queries, keys and values with the same number of heads; values may be narrower than keys."""

    k_BTHK: Array
    v_BTHV: Array

    @property
    def heads_first(self) -> tuple[Float[Array, "B H T K"], Float[Array, "B H T K"], Float[Array, "B H T V"]]:
        """Queries, keys and values, in the layout of batched matmuls."""
        q_BHTK, k_BHTK, v_BHTV = (x.swapaxes(1, 2) for x in (self.q_BTHK, self.k_BTHK, self.v_BTHV))
        return q_BHTK, k_BHTK, v_BHTV

    def with_gradients(self, dq_BHTK: Array, dk_BHTK: Array, dv_BHTV: Array, dsink_H: None) -> "HeadsQKV":
        """The gradient of this value, from those of `heads_first`."""
        dtype = self.q_BTHK.dtype
        return HeadsQKV(*(x.swapaxes(1, 2).astype(dtype) for x in (dq_BHTK, dk_BHTK, dv_BHTV)))


@dataclass(frozen=True)
class Expansion:
    """How keys and values are computed from latents; without arrays.

    Attributes:
        rank: latents, C.
        heads: H of this device.
    """

    rank: int
    heads: int

    def keys(self, weights: tuple[Array, Array], latent_XSL: Float[Array, "*X S L"]) -> tuple[Array, Array]:
        """Keys [X,H,S,K] and values [X,H,S,V] of tokens, from their latents followed by their rotary keys."""
        up_CE, up_CF = weights
        latent_XSC, key_XSR = latent_XSL[..., : self.rank], latent_XSL[..., self.rank :]
        plain_XHSN, v_XHSV = (self._by_head(latent_XSC @ up) for up in (up_CE, up_CF))
        shared_XHSR = jnp.broadcast_to(key_XSR[..., None, :, :], (*plain_XHSN.shape[:-1], key_XSR.shape[-1]))
        return jnp.concatenate([plain_XHSN, shared_XHSR], -1), v_XHSV

    def _by_head(self, x_XSE: Array) -> Array:
        return x_XSE.reshape(*x_XSE.shape[:-1], self.heads, -1).swapaxes(-2, -3)

    def gradients(self, weights: tuple[Array, Array], latent_XSL: Array, dk: Array, dv: Array) -> Any:
        """Gradients of weights and latents from those of keys and values, which are float32."""
        (k, _), pull = jax.vjp(self.keys, weights, latent_XSL)
        return pull((dk.astype(k.dtype), dv.astype(k.dtype)))


@partial(jax.tree_util.register_dataclass, data_fields=["q_BTHK", "latent_BTL", "up_CE", "up_CF"], meta_fields=["rank"])
@dataclass(frozen=True)
class LatentQKV(QueriesApart):
    """Queries, and latents from which a kernel computes keys and values.

    Attributes:
        latent_BTL: latents, then the rotary key, with its position applied.
        up_CE: weights from latents to all heads' keys without rotary features.
        up_CF: weights from latents to all heads' values.
    """

    latent_BTL: Array
    up_CE: Array
    up_CF: Array
    rank: int

    @property
    def expansion(self) -> Expansion:
        """How keys and values are computed."""
        return Expansion(self.rank, self.q_BTHK.shape[2])

    @property
    def weights(self) -> tuple[Array, Array]:
        """The weights of `expansion`."""
        return self.up_CE, self.up_CF

    @property
    def heads_first(self) -> tuple[Float[Array, "B H T K"], Float[Array, "B H T K"], Float[Array, "B H T V"]]:
        """Queries, and keys and values computed from latents, in the layout of batched matmuls."""
        return self.q_BTHK.swapaxes(1, 2), *self.expansion.keys(self.weights, self.latent_BTL)

    @property
    def expanded(self) -> HeadsQKV:
        """The same with keys and values."""
        q_BTHK, k_BTHK, v_BTHV = (x.swapaxes(1, 2) for x in self.heads_first)
        return HeadsQKV(q_BTHK, k_BTHK, v_BTHV)

    def with_gradients(self, dq_BHTK: Array, dk_BHTK: Array, dv_BHTV: Array, dsink_H: None) -> "LatentQKV":
        """The gradient of this value, from those of `heads_first`."""
        (dup_CE, dup_CF), dlatent_BTL = self.expansion.gradients(self.weights, self.latent_BTL, dk_BHTK, dv_BHTV)
        dq_BTHK = dq_BHTK.swapaxes(1, 2).astype(self.q_BTHK.dtype)
        return replace(self, q_BTHK=dq_BTHK, latent_BTL=dlatent_BTL, up_CE=dup_CE, up_CF=dup_CF)


Attended = QKV | HeadsQKV | LatentQKV
"""What kernels take."""
