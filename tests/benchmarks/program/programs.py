"""Small programs with known facts, compiled or written by hand."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from benchmarks.program.collectives import Collective
from benchmarks.program.compiled import read_program
from strategies import MeshSpec
from strategies.backends.device_mesh import device_mesh

MESH = {"data": 2, "tensor": 4}
BOTH = ("data", "tensor")


def text_of(lowered: jax.stages.Lowered) -> str:
    """The text of the compiled program."""
    text = lowered.compile().as_text()
    assert text
    return text


def compiled(function: Callable[..., Any], *shapes: tuple[int, ...]) -> str:
    """Compile a function of float32 arrays for eight devices, each with its own arrays."""
    mesh, spec = device_mesh(MeshSpec(tuple(MESH.items())), BOTH, jax.devices()[:8]), PartitionSpec(BOTH)
    spread = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    arrays = [jax.ShapeDtypeStruct((8 * rows, *rest), jnp.float32) for rows, *rest in shapes]
    return text_of(jax.jit(spread).lower(*arrays))


def collectives(function: Callable[[jax.Array], jax.Array]) -> tuple[Collective, ...]:
    """The collectives in the program of a function of an array [8,16], which has 512 bytes."""
    return read_program(compiled(function, (8, 16)), MESH).collectives


def permute(x: jax.Array, axis: Any) -> jax.Array:
    """Send an array to the next device along the axis."""
    size = lax.axis_size(axis)
    return lax.ppermute(x, axis, [(i, (i + 1) % size) for i in range(size)])


def entry(*lines: str, before: str = "") -> str:
    """The text of a program over `%p`, 512 bytes of float32; the last line is its root."""
    *others, root = ("%p = f32[8,16]{1,0} parameter(0)", *lines)
    main = "\n".join([*(f"  {line}" for line in others), f"  ROOT {root}"])
    return f"HloModule m, num_partitions=8\n\n{before}ENTRY %main (p: f32[8,16]) -> f32[] {{\n{main}\n}}\n\n"


LOOP = """%body (q: (s32[], f32[8,16])) -> (s32[], f32[8,16]) {
  %q = (s32[], f32[8,16]) parameter(0)
  %i = s32[] get-tuple-element(%q), index=0
  %j = s32[] copy(%i)
  %step = s32[] constant(3)
  %next = s32[] add(%j, %step)
  %x = f32[8,16] get-tuple-element(%q), index=1
  %y = f32[8,16] all-reduce(%x), replica_groups={}, to_apply=%sum
  ROOT %t = (s32[], f32[8,16]) tuple(%next, %y)
}

%condition (r: (s32[], f32[8,16])) -> pred[] {
  %limit = s32[] constant(32)
  %r = (s32[], f32[8,16]) parameter(0)
  %k = s32[] get-tuple-element(%r), index=0
  ROOT %less = pred[] compare(%k, %limit), direction=LT
}

"""
LOOPING = (
    "%start = s32[] constant(2)",
    "%copy = s32[] copy(%start)",
    "%state = (s32[], f32[8,16]) tuple(%copy, %p)",
    "%while.1 = (s32[], f32[8,16]) while(%state), condition=%condition, body=%body",
)
