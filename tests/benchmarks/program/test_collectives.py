"""Collectives as compilers print them: program fragments with smaller arrays."""

import pytest

from benchmarks.program.collectives import Collective
from benchmarks.program.compiled import read_program

MESH = {"data": 2, "fsdp": 4}
GROUPS = "replica_groups={{0,1,2,3},{4,5,6,7}}, use_global_device_ids=true"
PART = "bf16[20,16]{1,0:T(8,128)(2,1)S(1)}"
EMITTER = '"collective_algorithm_config":{"emitter":"SingleInputAllReduceScatterFusion","strategy":"StrategyRing"}'

FUSED = f"""HloModule m, is_scheduled=true

%all-reduce-scatter (input: bf16[64,16]) -> bf16[20,16] {{
  %input = bf16[64,16]{{1,0:T(8,128)(2,1)S(1)}} parameter(0)
  %zero = bf16[] constant(0)
  %pad = bf16[80,16]{{1,0:T(8,128)(2,1)}} pad(%input, %zero), padding=0_16x0_0
  %all-reduce.1 = bf16[80,16]{{1,0:T(8,128)(2,1)}} all-reduce(%pad), channel_id=2, {GROUPS}, to_apply=%region_0.0.clone
  %shard = u32[]{{:T(128)}} partition-id()
  %rows = u32[] constant(20)
  %begin = u32[]{{:T(128)}} multiply(%shard, %rows)
  ROOT %part = {PART} dynamic-slice(%all-reduce.1, %begin, %shard), dynamic_slice_sizes={{20,16}}
}}

ENTRY %main (p: bf16[64,16]) -> bf16[20,16] {{
  %p = bf16[64,16]{{1,0:T(8,128)(2,1)}} parameter(0)
  ROOT %fusion = {PART} fusion(%p), kind=kCustom, calls=%all-reduce-scatter, backend_config={{{EMITTER}}}
}}
"""


def test_reduce_scatter_that_is_spelt_as_an_all_reduce_and_a_slice() -> None:
    """A TPU's fused all-reduce and slice counts as a reduce-scatter, padding of its operand included."""
    (found,) = read_program(FUSED, MESH).collectives
    assert found == Collective("reduce_scatter", ("fsdp",), 1, False, 80 * 16 * 2 * 3 // 4)
    assert found.operand_bytes == 80 * 16 * 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SingleInputAllReduceScatterFusion", "RotatedPincerEmitter"),
        ("bf16[20,16]", "bf16[40,16]"),
        ("bf16[20,16]", "bf16[18,16]"),
        ("dynamic-slice(", "slice("),
        ("dynamic-slice(%all-reduce.1,", "dynamic-slice(%pad,"),
    ],
)
def test_all_reduce_is_one_unless_its_emitter_says_otherwise(old: str, new: str) -> None:
    """With another emitter, or another slice than a device's own, it is an all-reduce of the full array."""
    assert old in FUSED
    (found,) = read_program(FUSED.replace(old, new), MESH).collectives
    assert found == Collective("all_reduce", ("fsdp",), 1, False, 2 * 80 * 16 * 2 * 3 // 4)


def test_sums_are_of_the_type_of_the_result() -> None:
    """An all-reduce that sums bfloat16 in float32 sends float32, the type of its result."""
    text = "HloModule m\nENTRY %main (p: bf16[8]) -> f32[8] {\n  %p = bf16[8] parameter(0)\n"
    text += f"  ROOT %r = f32[8] all-reduce(%p), {GROUPS}, to_apply=%region_0.0\n}}"
    (found,) = read_program(text, MESH).collectives
    assert (found.operand_bytes, found.sent_bytes) == (32, 48)


@pytest.mark.parametrize("shape", ["RESULT", "((f32[8], f32[2,3]), RESULT)", "((f32[8], f32[2,3]), RESULT, u32[])"])
def test_started_sums_are_those_of_the_result(shape: str) -> None:
    """An `all-reduce-start` sends its arrays once, whether or not its shape repeats the operands."""
    result = "(f32[8], f32[2,3])"
    start = f"{shape.replace('RESULT', result)} all-reduce-start(%p, %q)"
    text = "HloModule m\nENTRY %main (p: f32[8], q: f32[2,3]) -> f32[8] {\n  %p = f32[8] parameter(0)\n"
    text += f"  %q = f32[2,3] parameter(1)\n  %s = {start}, {GROUPS}, to_apply=%region_0.0\n"
    text += f"  ROOT %r = {result} all-reduce-done(%s)\n}}"
    program = read_program(text, MESH)
    (found,) = program.collectives
    assert (found.operand_bytes, found.sent_bytes) == (56, 84)
    assert program.memory_bytes == 2 * 56


RAGGED = f"""HloModule m, is_scheduled=true

ENTRY %main (p: bf16[64,16], there: bf16[96,16], n: s32[4]) -> bf16[96,16] {{
  %p = bf16[64,16]{{1,0}} parameter(0)
  %there = bf16[96,16]{{1,0}} parameter(1)
  %n = s32[4]{{0}} parameter(2)
  ROOT %sent = bf16[96,16]{{1,0}} ragged-all-to-all(%p, %there, %n, %n, %n, /*index=5*/%n), channel_id=1, {GROUPS}
}}
"""


@pytest.mark.parametrize("swapped", [False, True])
def test_a_ragged_exchange_sends_the_rows_that_there_are(swapped: bool) -> None:
    """On the way there these are its operand, and on the way back its result. All but those for itself are sent."""
    text = RAGGED.replace("(%p, %there", "(%there, %p").replace("ROOT %sent = bf16[96", "ROOT %sent = bf16[64")
    program = read_program(text if swapped else RAGGED, MESH)
    assert program.unread == ""
    assert program.collectives == (Collective("all_to_all", ("fsdp",), 1, False, 64 * 16 * 2 * 3 // 4),)
    assert program.collectives[0].operand_bytes == 64 * 16 * 2
