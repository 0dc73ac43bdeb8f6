"""Grouped matmuls as kernels for NVIDIA GPUs, written in Pallas and compiled by Triton.

A loop over blocks launches one or more kernels per block. A single kernel for all blocks reads a block's expert index
on the device, multiplies with that expert's matrix, and skips empty blocks (Gale et al. 2022, "MegaBlocks", section
5.1). The gradient of the matrices is also one kernel: each program sums over one expert's blocks, in float32.

Tile sizes are among the fastest measured (docs/experiments/2026-11-26-first-gpu.md). Programs that run at the same time
share rows and matrices, which then come from the cache. JAX 0.11 warns that a later version drops Triton below Pallas;
without it loops are used (`available`).

Dims: S blocks, R rows of a block, E experts, D and F features; M = S x R.
"""

import math
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

ROWS, COLUMNS, INNER = 128, 256, 64
"""Upper bounds on a result tile's rows and columns, and on the summed dim that a program multiplies at once."""
WARPS, STAGES = 8, 3
SMALLEST = 16
"""Smallest number of rows or columns of a Triton tile."""
TOGETHER = 8
"""Row tiles that run concurrently, for all columns, before the next ones."""


@cache
def available() -> bool:
    """Whether the installed JAX has Triton below Pallas. Does not import it."""
    pallas = find_spec("jax.experimental.pallas")
    folders = (pallas and pallas.submodule_search_locations) or ()
    return any((Path(folder) / "triton.py").exists() for folder in folders)


def fits(rows: int, *features: int) -> bool:
    """Whether the kernels support blocks of `rows` rows and matrices of these features: tiles are powers of two.

    >>> fits(512, 2880, 2880), fits(8, 2048, 1024), fits(512, 2048, 1000)
    (True, False, False)
    """
    return all(_tile(size, SMALLEST) == SMALLEST for size in (rows, *features))


def multiply(
    x_SRD: Float[Array, "S R D"], w_EDF: Float[Array, "E D F"], expert_S: Int[Array, " S"], filled: int, **kwargs: Any
) -> Float[Array, "S R F"]:
    """Each block times its expert's matrix. Blocks of expert E are empty: their results are zero.

    Args:
        x_SRD: rows, of which `fits` is true.
        expert_S: each block's expert, in increasing order.
        filled: number of non-empty blocks under balanced routing, for FLOP counts of the compiled program.
    """
    return _multiplied(x_SRD, w_EDF, expert_S, filled, transposed=False, **kwargs)


def rows_gradient(
    dy_SRF: Float[Array, "S R F"], w_EDF: Float[Array, "E D F"], expert_S: Int[Array, " S"], filled: int, **kwargs: Any
) -> Float[Array, "S R D"]:
    """Gradient of the rows: each block's gradients times its expert's transposed matrix. Arguments: see `multiply`."""
    return _multiplied(dy_SRF, w_EDF, expert_S, filled, transposed=True, **kwargs)


def _multiplied(x_SRK: Array, w: Array, expert_S: Array, filled: int, *, transposed: bool, **kwargs: Any) -> Array:
    from jax.experimental import pallas as pl  # 0.2 s, only needed on GPUs

    (blocks, rows, summed), columns = x_SRK.shape, w.shape[1 if transposed else 2]
    tile_m, tile_n, tile_k = _tile(rows, ROWS), _tile(columns, COLUMNS), _tile(summed, INNER)
    tiles = blocks * rows // tile_m

    def row_tile(near: Any, column: Any, far: Any) -> tuple[Any, int]:
        return far * TOGETHER + near, 0

    def kernel(expert_S: Any, x_MK: Any, w: Any, y_MN: Any) -> None:
        tile = pl.program_id(2) * TOGETHER + pl.program_id(0)

        @pl.when(tile < tiles)
        def _() -> None:
            expert = expert_S[tile * tile_m // rows]

            def add(step: Array, sum_MN: Array) -> Array:
                part = pl.ds(step * tile_k, tile_k)
                w_KN = w[expert, :, part].T if transposed else w[expert, part, :]
                return sum_MN + _dot(x_MK[:, part], w_KN)

            steps = (expert < w.shape[0]).astype(jnp.int32) * (summed // tile_k)
            y_MN[...] = lax.fori_loop(0, steps, add, jnp.zeros((tile_m, tile_n), jnp.float32)).astype(y_MN.dtype)

    y_MN = pl.pallas_call(
        kernel,
        grid=(TOGETHER, columns // tile_n, pl.cdiv(tiles, TOGETHER)),
        in_specs=[
            pl.BlockSpec((blocks,), lambda *_: (0,)),
            pl.BlockSpec((tile_m, summed), row_tile),
            pl.BlockSpec((w.shape[0], tile_n, summed), lambda near, column, far: (0, column, 0))
            if transposed
            else pl.BlockSpec((w.shape[0], summed, tile_n), lambda near, column, far: (0, 0, column)),
        ],
        out_specs=pl.BlockSpec((tile_m, tile_n), lambda near, column, far: (far * TOGETHER + near, column)),
        out_shape=jax.ShapeDtypeStruct((blocks * rows, columns), x_SRK.dtype),
        compiler_params=_compiler_params(),
        name=f"grouped_matmul_{filled * rows}",
        **kwargs,
    )(expert_S, x_SRK.reshape(-1, summed), w)
    return y_MN.reshape(blocks, rows, columns)


def matrices_gradient(
    x_SRD: Float[Array, "S R D"],
    dy_SRF: Float[Array, "S R F"],
    expert_S: Int[Array, " S"],
    experts: int,
    filled: int,
    **kwargs: Any,
) -> Float[Array, "E D F"]:
    """Gradient of the matrices: for each of `experts`, the sum over its blocks. Arguments as for `multiply`."""
    from jax.experimental import pallas as pl

    (blocks, rows, embed), features = x_SRD.shape, dy_SRF.shape[2]
    tile_d, tile_f, tile_r = _tile(embed, ROWS), _tile(features, COLUMNS), _tile(rows, INNER)
    begin_E1 = jnp.searchsorted(expert_S, jnp.arange(experts + 1)).astype(jnp.int32)  # blocks before each expert's

    def kernel(begin_E1: Any, x_MD: Any, dy_MF: Any, dw_1DF: Any) -> None:
        expert = pl.program_id(2)

        def add(step: Array, sum_DF: Array) -> Array:
            part = pl.ds(step * tile_r, tile_r)
            return sum_DF + _dot(x_MD[part, :].T, dy_MF[part, :])

        begin, end = (begin_E1[expert + index] * (rows // tile_r) for index in (0, 1))
        sum_DF = lax.fori_loop(begin, end, add, jnp.zeros((tile_d, tile_f), jnp.float32))
        dw_1DF[...] = sum_DF.astype(dw_1DF.dtype)[None]

    return pl.pallas_call(
        kernel,
        grid=(embed // tile_d, features // tile_f, experts),
        in_specs=[
            pl.BlockSpec((experts + 1,), lambda *_: (0,)),
            pl.BlockSpec((blocks * rows, tile_d), lambda row, column, expert: (0, row)),
            pl.BlockSpec((blocks * rows, tile_f), lambda row, column, expert: (0, column)),
        ],
        out_specs=pl.BlockSpec((1, tile_d, tile_f), lambda row, column, expert: (expert, row, column)),
        out_shape=jax.ShapeDtypeStruct((experts, embed, features), x_SRD.dtype),
        compiler_params=_compiler_params(),
        name=f"grouped_matmul_{filled * rows}",
        **kwargs,
    )(begin_E1, x_SRD.reshape(-1, embed), dy_SRF.reshape(-1, features))


def _tile(size: int, most: int) -> int:
    """The largest power of two that divides `size`, at most `most`, which is a power of two."""
    return math.gcd(size, most)


def _dot(x: Array, y: Array) -> Array:
    from jax.experimental.pallas import triton

    return triton.dot(x, y)


def _compiler_params() -> Any:
    from jax.experimental.pallas import triton

    return triton.CompilerParams(num_warps=WARPS, num_stages=STAGES)
