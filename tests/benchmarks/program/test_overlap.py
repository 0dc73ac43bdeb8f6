"""What runs while a collective is in flight: fragments of GPU and TPU programs, with smaller arrays."""

from typing import cast

import pytest

from benchmarks.program.collectives import OverlappedWork
from benchmarks.program.compiled import Program
from benchmarks.program.explanations import OVERLAP_KINDS, overlap
from tests.benchmarks.program.fragments import DONE, DOT, GATHER, GROUPS, LOOP, LOOPING, MATMUL, program


def row(program: Program) -> tuple[int | None, ...]:
    """Bytes sent beside matmuls, beside memory traffic, beside nothing, and waited for."""
    found = overlap(program)
    return tuple(cast(int | None, found[f"overlap.sent_bytes.{kind}"]) for kind in OVERLAP_KINDS)


@pytest.mark.parametrize(
    ("lines", "overlapped", "columns"),
    [
        ((GATHER, DOT, DONE), MATMUL, (1536, 0, 0, 0)),
        ((GATHER, DONE, DOT), OverlappedWork(), (0, 0, 1536, 0)),
        ((DOT, GATHER, DONE), OverlappedWork(), (0, 0, 1536, 0)),
        ((GATHER, "%n = f32[8,16] negate(%p)", DONE), OverlappedWork(0, 1024), (0, 1536, 0, 0)),
        (
            (GATHER + ', backend_config={"collective_backend_config":{"is_sync":true}}', DOT, DONE),
            None,
            (0, 0, 0, 1536),
        ),
        ((GATHER.replace("-start", "").replace("(f32[8,16], f32[32,16])", "f32[32,16]"), DOT), None, (0, 0, 0, 1536)),
    ],
)
def test_what_stands_between_start_and_done(
    lines: tuple[str, ...], overlapped: OverlappedWork | None, columns: tuple[int, ...]
) -> None:
    """FLOPs and memory bytes from a start to its done overlap the collective; a synchronous one overlaps nothing."""
    found = program(*lines)
    assert [each.overlapped for each in found.collectives] == [overlapped]
    assert row(found) == columns


def test_concurrent_collectives_overlap_the_same_work() -> None:
    """Collectives that overlap each other each overlap all work between their own start and done."""
    other = GATHER.replace("%s", "%s.2"), DONE.replace("%d", "%d.2").replace("%s", "%s.2")
    first, second = program(GATHER, DOT, other[0], DONE, DOT.replace("%m", "%m.2"), other[1]).collectives
    assert first.overlapped
    assert second.overlapped
    assert first.overlapped.flops == second.overlapped.flops == MATMUL.flops


WRAPPED = f"""%wrapped (q: f32[8,16]) -> f32[2,16] {{
  %q = f32[8,16] parameter(0)
  ROOT %a = f32[2,16] reduce-scatter(%q), {GROUPS}, dimensions={{0}}, to_apply=%sum
}}

"""


@pytest.mark.parametrize(
    "lines",
    [
        (
            "%s = ((f32[8,16]), f32[2,16], u32[]) async-start(%p), calls=%wrapped",
            "%u = ((f32[8,16]), f32[2,16], u32[]) async-update(%s), calls=%wrapped",
            DOT,
            "%d = f32[2,16] async-done(%u), calls=%wrapped",
        ),
        (
            '%s = ((f32[8,16]), f32[2,16]) call-start(%p), async_execution_thread="sparsecore", to_apply=%wrapped',
            DOT,
            "%d = f32[2,16] call-done(%s)",
        ),
    ],
)
def test_wrapped_collective_is_asynchronous(lines: tuple[str, ...]) -> None:
    """A collective in a computation that is called asynchronously lasts until the call is done."""
    found = program(*lines, before=WRAPPED)
    assert [each.overlapped for each in found.collectives] == [MATMUL]
    assert row(found) == (384, 0, 0, 0)


def woven(name: str, chain: int, *lines: str) -> str:
    """A fusion into which a TPU compiler weaves a collective of a chain."""
    body = "".join(f"  {line}\n" for line in lines)
    gather = f'all-gather(%p), dimensions={{0}}, {GROUPS}, frontend_attributes={{chain_id="{chain}"}}'
    return (
        f"%{name} (p: f32[8,16], q: f32[32,16]) -> f32[32,16] {{\n  %p = f32[8,16] parameter(0)\n"
        f"  %q = f32[32,16] parameter(1)\n{body}  ROOT %g = f32[32,16] {gather}\n}}\n\n"
    )


WOVEN = woven("start", 0) + woven("compute", 0, DOT) + woven("done", 0) + woven("start.1", 1) + woven("done.1", 1)


def fusion(name: str, calls: str) -> str:
    """A call of a fusion."""
    return f"%{name} = f32[32,16] fusion(%p, %p), kind=kCustom, calls=%{calls}"


def test_chain_is_behind_the_fusions_that_it_is_woven_into() -> None:
    """A chain lasts from its first fusion to its last, and overlaps the compute of the fusions in between."""
    chain = fusion("a", "start"), fusion("b", "compute"), fusion("c", "done")
    found = program(*chain, DOT, before=WOVEN)
    (only,) = found.collectives
    assert only.overlapped
    assert only.overlapped.flops == MATMUL.flops
    assert row(found) == (1536, 0, 0, 0)
    found = program(*chain, fusion("d", "start.1"), fusion("e", "done.1"), before=WOVEN)
    assert row(found) == (1536, 0, 1536, 0)


def test_loops_multiply_bytes_and_not_what_is_meanwhile() -> None:
    """A collective in a loop counts its bytes at each trip; work after the loop does not overlap it."""
    found = program(*LOOPING, DOT, before=LOOP)
    assert [(each.times, each.overlapped) for each in found.collectives] == [(7, MATMUL)]
    assert row(found) == (7 * 1536, 0, 0, 0)


def test_an_unscheduled_program_has_no_overlap() -> None:
    """A program that is not scheduled has no overlap: the order of its text means nothing."""
    assert overlap(program(GATHER, DOT, DONE, header="")) == {}


def test_text_lists_what_each_collective_overlaps() -> None:
    """The text lists each collective with what it overlaps, most bytes first."""
    other = (GATHER.replace("%s", "%s.2"), DONE.replace("%d", "%d.2").replace("%s", "%s.2"))
    reduce = f"%r = f32[8,8] all-reduce(%m), {GROUPS}, to_apply=%sum"
    assert overlap(program(GATHER, DOT, DONE, *other, reduce))["overlap.text"] == (
        "all_gather over fsdp: 1.54 kB, overlaps matmuls (2.05 kFLOP, 1.28 kB of memory); "
        "all_gather over fsdp: 1.54 kB, overlaps nothing; all_reduce over fsdp: 384 B, synchronous"
    )
