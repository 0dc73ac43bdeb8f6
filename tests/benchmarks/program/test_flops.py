"""The FLOPs of a compiled program: matmuls, convolutions, and calls of libraries."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from benchmarks.program.compiled import read_program
from tests.benchmarks.program.programs import MESH, compiled, entry


def test_dots_in_loops_are_multiplied() -> None:
    """A matmul [8,16] @ [16,32] is 2 x 8 x 16 x 32 FLOPs, times its batch and the trips of its loop."""

    def looped(x: jax.Array, y: jax.Array) -> jax.Array:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.tanh(jnp.einsum("bij,jk->bik", x, y) @ y.T), None

        return lax.scan(step, x, length=7)[0]

    assert read_program(compiled(looped, (3, 8, 16), (16, 32)), MESH).flops == 7 * 2 * 3 * (2 * 8 * 16 * 32)


MATMUL = 2 * 8 * 16 * 32


@pytest.mark.parametrize(
    ("lhs", "rhs", "out", "attributes", "flops"),
    [
        ("[8,16]", "[16,32]", "[8,32]", "dim_labels=bf_io->bf", MATMUL),
        # TPUs write a batch of four as a window; all but one element it covers are dilation or padding.
        (
            "[4,8,16]",
            "[4,32,16]",
            "[4,8,32]",
            "window={size=4 stride=3 lhs_dilate=4}, dim_labels=0bf_0oi->0bf",
            4 * MATMUL,
        ),
        (
            "[4,16,8]",
            "[4,16,32]",
            "[4,8,32]",
            "window={size=4 stride=4 pad=3_3 lhs_dilate=3 rhs_reversal=1}, dim_labels=0fb_0io->0bf",
            4 * MATMUL,
        ),
        # A 3 x 3 convolution of 5 x 5 images with padding: 4 of the 9 products in a corner, 6 at an edge.
        (
            "[2,5,5,3]",
            "[3,3,3,7]",
            "[2,5,5,7]",
            "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f",
            2 * (2 * 3 * 7) * (4 * 4 + 12 * 6 + 9 * 9),
        ),
    ],
)
def test_convolutions_count_no_padding(lhs: str, rhs: str, out: str, attributes: str, flops: int) -> None:
    """A convolution counts the multiplications by elements, not those by zeros of padding and dilation."""
    lines = (
        f"%l = bf16{lhs} parameter(1)",
        f"%r = bf16{rhs} parameter(2)",
        f"%o = bf16{out} convolution(%l, %r), {attributes}",
    )
    assert read_program(entry(*lines), MESH).flops == flops


def test_matmuls_of_libraries_count() -> None:
    """Calls of cuBLAS and of cuDNN attention count as their matmuls.

    Causal attention counts as on other devices, without the blocks of early queries and late keys.
    """
    config = '{"gemm_backend_config":{"beta":0,"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}'
    lines = (
        "%w = f32[16,32] parameter(1)",
        f'%m = (f32[8,32], s8[9]) custom-call(%p, %w), custom_call_target="__cublas$gemm", backend_config={config}',
        "%q = bf16[2,128,8,32]{3,1,2,0} parameter(2)",
        f"%f = (bf16[2,8,128,32], f32[2,8,128]) custom-call(%q, %q, %q), {attention('fmhaSoftmax')}",
        f"%b = (bf16[2,8,128,32]) custom-call(%q, %q, %q, %f), {attention('fmhaSoftmaxBackward')}",
    )
    assert read_program(entry(*lines), MESH).flops == MATMUL + (2 + 5) * 2 * 8 * (2 * 128 * 128 * 32) * 3 / 4


def test_attention_of_cudnn_counts_values_narrower_than_keys() -> None:
    """With values of 16 features and keys of 32, forward one matmul of each; backward three of keys, two of values."""
    lines = (
        "%q = bf16[2,128,8,32]{3,1,2,0} parameter(1)",
        "%v = bf16[2,128,8,16]{3,1,2,0} parameter(2)",
        f"%f = (bf16[2,8,128,16], f32[2,8,128]) custom-call(%q, %q, %v), {attention('fmhaSoftmax')}",
        f"%b = (bf16[2,8,128,32]) custom-call(%q, %q, %v, %f), {attention('fmhaSoftmaxBackward')}",
    )
    features = (32 + 16) + (3 * 32 + 2 * 16)
    assert read_program(entry(*lines), MESH).flops == features * 2 * 8 * (2 * 128 * 128) * 3 / 4


def attention(kernel: str, **fields: Any) -> str:
    """The attributes of a call of cuDNN's attention to 128 keys; `fields` of its configuration, None for none."""
    config = {"intermediate_tensor_shape": {"dimensions": ["2", "8", "128", "128"]}, "mask_type": "CAUSAL", **fields}
    known = {"cudnn_fmha_backend_config": {name: value for name, value in config.items() if value is not None}}
    return f'custom_call_target="__cudnn${kernel}", backend_config={json.dumps(known)}'


@pytest.mark.parametrize(
    ("fields", "keys"),
    [
        ({"mask_type": "NO_MASK"}, 128),
        ({"sliding_window_length": 16}, 24),
        ({"sliding_window_length": "128"}, 96),
        ({"sliding_window_length": 0}, 96),
    ],
)
def test_attention_of_cudnn_counts_the_keys_of_its_mask(fields: dict[str, Any], keys: int) -> None:
    """Without a mask nothing is skipped, and a window counts the keys of blocks that sparse attention computes.

    Heads may come before tokens; the shape of the scores says which are keys.
    """
    lines = (
        "%q = bf16[2,8,128,32]{3,2,1,0} parameter(1)",
        f"%f = (bf16[2,8,128,32], f32[2,8,128]) custom-call(%q, %q, %q), {attention('fmhaSoftmax', **fields)}",
    )
    assert read_program(entry(*lines), MESH).flops == 2 * 2 * 8 * (2 * 128 * keys * 32)
