"""Experts' rows: moving tokens to rows and back, and matmuls of rows in buffers (batched) or in blocks (grouped).

In a grouped matmul each block uses its expert's matrix. It is a kernel on NVIDIA GPUs (pallas/grouped_kernel.py), and a
loop over blocks elsewhere. On every backend it multiplies no more rows than the blocks have. Kernels skip empty blocks;
loops skip them where a conditional is cheap (`Backend.waits_at_conditionals`).

`jax.lax.ragged_dot` is not used: without an XLA kernel it multiplies all rows with all experts' matrices, and no kernel
was found for the gradient of the matrices (docs/experiments/2026-11-26-grouped-matmul.md).

Dims: S blocks, R rows of a block, E experts, G groups, C capacity, D and F features.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from strategies.model.pallas import grouped_kernel
from strategies.model.pallas.vma import call_without_vma
from strategies.model.router import RowAssignment

GroupedMatmuls = Literal["loop", "skipping_loop", "kernel"]
"""A loop over all blocks, a loop that skips empty blocks by conditionals, or a kernel that skips them."""


class Rows(NamedTuple):
    """How rows of experts are multiplied.

    Attributes:
        matmul: (rows, experts' matrices [E,D,F]) -> each row times its expert's matrix.
        spread: experts' biases [E,F] -> biases in a shape that broadcasts over rows.
    """

    matmul: Callable[[Array, Array], Array]
    spread: Callable[[Array], Array]

    @classmethod
    def of_blocks(cls, expert_S: Int[Array, " S"], filled: int, how: GroupedMatmuls) -> "Rows":
        """Rows in blocks of these experts; `filled` and `how` as for `grouped_matmul`."""
        return cls(lambda x, w: grouped_matmul(x, w, expert_S, filled, how), partial(_biases, expert_S=expert_S))

    @classmethod
    def of_buffers(cls) -> "Rows":
        """Rows in buffers."""
        return cls(batched_matmul, lambda b_EF: b_EF[:, None, None])


def batched_matmul(x_EGCD: Float[Array, "E G C D"], w_EDF: Float[Array, "E D F"]) -> Float[Array, "E G C F"]:
    """Each expert's rows times its matrix."""
    x_ERD = x_EGCD.reshape(x_EGCD.shape[0], -1, x_EGCD.shape[-1])
    return jnp.einsum("erd,edf->erf", x_ERD, w_EDF).reshape(*x_EGCD.shape[:-1], -1)


def grouped_matmul(
    x_SRD: Float[Array, "S R D"],
    w_EDF: Float[Array, "E D F"],
    expert_S: Int[Array, " S"],
    filled: int,
    how: GroupedMatmuls,
) -> Float[Array, "S R F"]:
    """Each block times its expert's matrix. The gradient of the matrices is summed over blocks in float32.

    Args:
        x_SRD: rows. Rows of empty blocks are zero.
        expert_S: each block's expert, in increasing order. Blocks of expert E are empty.
        filled: number of non-empty blocks under balanced routing, for FLOP counts of the compiled program.
        how: the implementation. A kernel needs an NVIDIA GPU and shapes that it fits.
    """
    if how == "kernel":
        return cast(Array, _by_kernel(x_SRD, w_EDF, expert_S, filled))
    return cast(Array, _by_loop(x_SRD, w_EDF, expert_S, filled if how == "skipping_loop" else None))


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _by_kernel(x_SRD: Array, w_EDF: Array, expert_S: Array, filled: int) -> Array:
    return call_without_vma(partial(grouped_kernel.multiply, filled=filled), x_SRD, w_EDF, expert_S)


def _kernel_backward(filled: int, kept: tuple[Array, Array, Array], dy_SRF: Array) -> tuple[Array, Array, None]:
    x_SRD, w_EDF, expert_S = kept
    dx_SRD = call_without_vma(partial(grouped_kernel.rows_gradient, filled=filled), dy_SRF, w_EDF, expert_S)
    matrices_gradient = partial(grouped_kernel.matrices_gradient, experts=len(w_EDF), filled=filled)
    return dx_SRD, call_without_vma(matrices_gradient, x_SRD, dy_SRF, expert_S), None


_by_kernel.defvjp(
    lambda x_SRD, w_EDF, expert_S, filled: (_by_kernel(x_SRD, w_EDF, expert_S, filled), (x_SRD, w_EDF, expert_S)),
    _kernel_backward,
)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _by_loop(x_SRD: Array, w_EDF: Array, expert_S: Array, filled: int | None) -> Array:
    def multiply(_: None, block: tuple[Array, Array]) -> tuple[None, Array]:
        x_RD, expert = block
        return None, unless_empty(expert, lambda: x_RD @ w_EDF[expert])

    unless_empty = _unless_empty(w_EDF, expert_S, filled)
    return lax.scan(multiply, None, (x_SRD, expert_S))[1]


def _loop_backward(filled: int | None, kept: tuple[Array, Array, Array], dy_SRF: Array) -> tuple[Array, Array, None]:
    x_SRD, w_EDF, expert_S = kept
    unless_empty = _unless_empty(w_EDF, expert_S, filled)

    def add(dw_EDF: Array, block: tuple[Array, Array, Array]) -> tuple[Array, None]:
        x_RD, dy_RF, expert = block
        product = partial(jnp.einsum, "rd,rf->df", x_RD, dy_RF, preferred_element_type=jnp.float32)
        return dw_EDF.at[expert].add(unless_empty(expert, product)), None

    def multiply(_: None, block: tuple[Array, Array]) -> tuple[None, Array]:
        dy_RF, expert = block
        return None, unless_empty(expert, lambda: jnp.einsum("rf,df->rd", dy_RF, w_EDF[expert]))

    dx_SRD = lax.scan(multiply, None, (dy_SRF, expert_S))[1]
    dw_EDF = lax.scan(add, jnp.zeros_like(w_EDF, jnp.float32), (x_SRD, dy_SRF, expert_S))[0]
    return dx_SRD, dw_EDF.astype(w_EDF.dtype), None


_by_loop.defvjp(
    lambda x_SRD, w_EDF, expert_S, filled: (_by_loop(x_SRD, w_EDF, expert_S, filled), (x_SRD, w_EDF, expert_S)),
    _loop_backward,
)


def _unless_empty(w_EDF: Array, expert_S: Array, filled: int | None) -> Callable[[Array, Callable[[], Array]], Array]:
    """A function (a block's expert, a callable) -> the callable's product, or zeros if the block is empty."""

    def product_of(expert: Array, product: Callable[[], Array]) -> Array:
        if filled is None:
            return product()
        with jax.named_scope(f"taken_{len(expert_S) - filled}_{filled}"):  # read by FLOP counts of the program
            return lax.cond(expert < len(w_EDF), product, lambda: jnp.zeros_like(product()))

    return product_of


@jax.custom_vjp
def _biases(b_EF: Float[Array, "E F"], expert_S: Int[Array, " S"]) -> Float[Array, "S 1 F"]:
    """The bias of each block's expert. Its gradient is summed block by block, in a fixed order."""
    return b_EF[expert_S][:, None]


def _biases_backward(kept: tuple[Array, Array], dbias_S1F: Array) -> tuple[Array, None]:
    b_EF, expert_S = kept

    def add(db_EF: Array, block: tuple[Array, Array]) -> tuple[Array, None]:
        dbias_1F, expert = block
        return db_EF.at[expert].add(dbias_1F[0]), None

    return lax.scan(add, jnp.zeros_like(b_EF), (dbias_S1F, expert_S))[0], None


_biases.defvjp(lambda b_EF, expert_S: (_biases(b_EF, expert_S), (b_EF, expert_S)), _biases_backward)


def _take(rows: Array, index: Array) -> Array:
    """Rows by index; zeros for the index after the last."""
    return jnp.take(rows, index, axis=0, mode="fill", fill_value=0)


def to_rows(x_MX: Array, found: RowAssignment, choices: int) -> Array:
    """Arrays of tokens (or of their choices, if `choices` is 1) to rows. Empty rows are zero.

    It and `from_rows` are each other's transpose. Both sum in a fixed order, unlike a scatter.
    """
    return cast(Array, _to_rows(x_MX, found, choices))


def from_rows(rows_RX: Array, found: RowAssignment, choices: int) -> Array:
    """Sums of rows over the `choices` of each token; with 1, each choice's row. Dropped choices are zero."""
    return cast(Array, _from_rows(rows_RX, found, choices))


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _to_rows(x_MX: Array, found: RowAssignment, choices: int) -> Array:
    return _take(x_MX, found.choice_R // choices)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _from_rows(rows_RX: Array, found: RowAssignment, choices: int) -> Array:
    return _take(rows_RX, found.row_Nk.reshape(-1, choices)).sum(1)


_to_rows.defvjp(
    lambda x_MX, found, choices: (to_rows(x_MX, found, choices), found),
    lambda choices, found, drows_RX: (from_rows(drows_RX, found, choices), None),
)
_from_rows.defvjp(
    lambda rows_RX, found, choices: (from_rows(rows_RX, found, choices), found),
    lambda choices, found, dy_MX: (to_rows(dy_MX, found, choices), None),
)
