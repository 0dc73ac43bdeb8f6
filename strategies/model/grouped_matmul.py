"""Matmuls of the rows of experts: of buffers side by side, or of blocks one after another, a grouped matmul.

In a grouped matmul each block has the matrix of its expert. It multiplies no more rows than the blocks have, on every
backend. `jax.lax.ragged_dot` of JAX 0.10 does not: where XLA has no kernel for it, and none was found for the gradient
of the matrices, it multiplies all rows with the matrices of all experts
(docs/experiments/2026-11-26-grouped-matmul.md).

Dims: S blocks, R rows of a block, E experts, G groups, C capacity, D and F features.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int


def batched_matmul(x_EGCD: Float[Array, "E G C D"], w_EDF: Float[Array, "E D F"]) -> Float[Array, "E G C F"]:
    """The rows of the buffers of each expert times its matrix."""
    x_ERD = x_EGCD.reshape(x_EGCD.shape[0], -1, x_EGCD.shape[-1])
    return jnp.einsum("erd,edf->erf", x_ERD, w_EDF).reshape(*x_EGCD.shape[:-1], -1)


@jax.custom_vjp
def grouped_matmul(
    x_SRD: Float[Array, "S R D"], w_EDF: Float[Array, "E D F"], expert_S: Int[Array, " S"]
) -> Float[Array, "S R F"]:
    """Each block times the matrix of its expert. The gradient of the matrices is summed over blocks in float32."""
    return _products(x_SRD, w_EDF, expert_S)


def _products(x_SRD: Array, w_EDF: Array, expert_S: Array) -> Array:
    def multiply(_: None, block: tuple[Array, Array]) -> tuple[None, Array]:
        x_RD, expert = block
        return None, x_RD @ w_EDF[expert]

    return lax.scan(multiply, None, (x_SRD, expert_S))[1]


def _backward(kept: tuple[Array, Array, Array], dy_SRF: Array) -> tuple[Array, Array, None]:
    x_SRD, w_EDF, expert_S = kept

    def add(dw_EDF: Array, block: tuple[Array, Array, Array]) -> tuple[Array, None]:
        x_RD, dy_RF, expert = block
        product_DF = jnp.einsum("rd,rf->df", x_RD, dy_RF, preferred_element_type=jnp.float32)
        return dw_EDF.at[expert].add(product_DF), None

    def multiply(_: None, block: tuple[Array, Array]) -> tuple[None, Array]:
        dy_RF, expert = block
        return None, jnp.einsum("rf,df->rd", dy_RF, w_EDF[expert])

    dx_SRD = lax.scan(multiply, None, (dy_SRF, expert_S))[1]
    dw_EDF = lax.scan(add, jnp.zeros_like(w_EDF, jnp.float32), (x_SRD, dy_SRF, expert_S))[0]
    return dx_SRD, dw_EDF.astype(w_EDF.dtype), None


grouped_matmul.defvjp(lambda *arguments: (_products(*arguments), arguments), _backward)
