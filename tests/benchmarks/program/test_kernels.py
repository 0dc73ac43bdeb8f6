"""Pallas kernels in compiled programs: calls whose text spans several lines, with FLOPs that their authors state."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.sharding import Mesh, PartitionSpec

from benchmarks.devices.topology import Topology
from benchmarks.program.compiled import read_program
from benchmarks.program.hlo import parse
from tests.benchmarks.program.programs import MESH, entry

HEADS, TOKENS, HEAD_DIM = 2, 256, 128
SCORES = 2 * HEADS * TOKENS * HEAD_DIM
"""FLOPs of a matmul of scores for each key."""
METADATA = r'kernel_metadata={\n"xprof_metadata":"{\"block_q\": 128}"\n}'


def kernel(scope: str, name: str, metadata: str = METADATA) -> str:
    """A program that calls a kernel of splash attention in a scope."""
    call = "%y = bf16[2,256,128] custom-call(%mask, %q, %q, %q), "
    call += f'custom_call_target="tpu_custom_call", frontend_attributes={{{metadata}}}'.replace("\\n", "\n")
    call += (
        f', metadata={{op_name="jit(f)/{scope}/{name}/pallas_call" stack_frame_id=9}}, backend_config={{"body":"TUz"}}'
    )
    return entry("%mask = s8[1,2,2] constant({...})", "%q = bf16[2,256,128] bitcast(%p)", call)


@pytest.mark.parametrize(("name", "matmuls"), [("fwd_residuals", 2), ("dq_no_residuals", 3), ("dkv_no_residuals", 4)])
def test_kernels_of_splash_attention_count_their_matmuls(name: str, matmuls: int) -> None:
    """A kernel of splash attention computes its matmuls for as many keys as its scope says, or else for all."""
    for scope, keys in (("jvp(keys_192)", 192), ("transpose(jvp(keys_128))", 128), ("jvp(vmap(f))", TOKENS)):
        text = kernel(scope, f"splash_mha_{name}")
        assert read_program(text, MESH).flops == matmuls * SCORES * keys
    assert list(parse(text).entry.instructions) == ["p", "mask", "q", "y"]
    assert read_program(kernel("keys_128", "my_kernel"), MESH).unread == (
        "custom call tpu_custom_call without a cost estimate"
    )


def test_the_fused_backward_pass_has_five_matmuls() -> None:
    """The fused kernel of the backward pass of splash attention computes the scores once, and all three gradients."""
    fused = METADATA.replace("block_q", "use_fused_bwd_kernel").replace("128", "true")
    assert read_program(kernel("keys_1", "splash_mha_dkv", fused), MESH).flops == 5 * SCORES


def test_kernels_of_grouped_matmuls_count_the_rows_that_they_name() -> None:
    """Of a grouped matmul on GPUs the name has the rows, and the array of three dims the matrices or their gradient."""
    multiply = "%y = bf16[512,32] custom-call(%e, %x, %w), "
    differentiate = "%dw = bf16[4,16,32] custom-call(%e, %x, %y), "
    known = "%e = s32[8] constant({...})", "%x = bf16[512,16] bitcast(%p)", "%w = bf16[4,16,32] bitcast(%p)"
    target = 'custom_call_target="__gpu$xla.gpu.triton", metadata={op_name="jit(f)/jvp()/NAME/pallas_call"}'
    named = [call + target.replace("NAME", "grouped_matmul_384") for call in (multiply, differentiate)]
    assert read_program(entry(*known, *named), MESH).flops == 2 * 2 * 384 * 16 * 32
    other = read_program(entry(*known, multiply + target.replace("NAME", "my_kernel")), MESH)
    assert other.unread == "custom call __gpu$xla.gpu.triton that is not a grouped matmul"


def compiled_for_tpus(function: Any, *shapes: tuple[int, ...]) -> str:
    """The program of a function of bfloat16 arrays, compiled for four TPUs that each have all of them."""
    topology = Topology.parse("v5e:2x2")
    topology.prepare()
    mesh = Mesh(np.array(topology.devices()), ("data",))
    spec = PartitionSpec()
    spread = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    arrays = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    return jax.jit(spread).lower(*arrays).compile().as_text() or ""


@pytest.mark.libtpu
def test_kernels_that_a_tpu_runs_are_read() -> None:
    """Splash attention and its gradients have nine matmuls of scores; other kernels count their own cost estimate."""
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    attend: Any = splash.make_splash_mha_single_device(
        splash.MultiHeadMask([splash.CausalMask((TOKENS, TOKENS))] * HEADS)
    )

    def gradients(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
        with jax.named_scope("keys_192"):
            return jax.grad(lambda *qkv: attend(*qkv).astype(jnp.float32).sum(), (0, 1, 2))(q, k, v)

    shape = HEADS, TOKENS, HEAD_DIM
    assert read_program(compiled_for_tpus(gradients, shape, shape, shape), {"data": 4}).flops == 9 * SCORES * 192

    def doubled(x: jax.Array) -> jax.Array:
        def double(x_ref: Any, y_ref: Any) -> None:
            y_ref[...] = 2 * x_ref[...]

        estimate = pl.CostEstimate(flops=12345, bytes_accessed=0, transcendentals=0)
        return pl.pallas_call(double, jax.ShapeDtypeStruct(x.shape, x.dtype), cost_estimate=estimate)(x)

    found = read_program(compiled_for_tpus(doubled, (TOKENS, HEAD_DIM)), {"data": 4})
    assert (found.flops, found.memory_bytes) == (12345, 2 * 2 * TOKENS * HEAD_DIM)
