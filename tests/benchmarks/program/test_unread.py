"""What the reader does not know is named, and never counted as nothing."""

import pytest

from benchmarks.program.compiled import Program, read_program
from benchmarks.program.flops import KNOWN, TARGETS
from tests.benchmarks.program.programs import LOOP, LOOPING, MESH, entry

BRANCHES = """%some (a: f32[8,16]) -> f32[8,16] {
  %a = f32[8,16] parameter(0)
  ROOT %sent = f32[8,16] all-reduce(%a), replica_groups={}, to_apply=%sum
}

%none (b: f32[8,16]) -> f32[8,16] {
  ROOT %b = f32[8,16] parameter(0)
}

"""
CONDITIONAL = "%c = f32[8,16] conditional(%p, %p, %p), branch_computations={%some, %none}"
COUNTED = ', metadata={op_name="jit(f)/taken_1_0/cond"}'
HEAVIEST = ', metadata={op_name="jit(f)/heaviest/cond"}'
NOT_JSON = 'backend_config={"known_trip_count":{"n":7,}}'
GEMM = '%m = (f32[8,8], s8[9]) custom-call(%p, %p), custom_call_target="__cublas$gemm"'
CUDNN = '%m = f32[8,8] custom-call(%p, %p), custom_call_target="__cudnn$fmhaSoftmax"'


@pytest.mark.parametrize(
    ("lines", "before", "unread"),
    [
        (('%c = f32[8,16] custom-call(%p), custom_call_target="foo"',), "", "custom call foo"),
        (("%r = f32[8,16] all-to-some(%p), replica_groups={}",), "", "opcode all-to-some"),
        (("%r = f32[8,16] collective-broadcast-start(%p)",), "", "opcode collective-broadcast-start"),
        (("%r = f32[8,16] collective-broadcast(%p), replica_groups={}",), "", "opcode collective-broadcast"),
        (LOOPING, LOOP.replace("direction=LT", "direction=NE"), "%while.1: a loop of unknown length: no known_trip_"),
        ((CONDITIONAL,), BRANCHES, "%c: a conditional that does not say how often each branch is taken"),
        ((*LOOPING[:-1], f"{LOOPING[-1]}, {NOT_JSON}"), LOOP, "%while.1: backend_config of while is not JSON"),
        ((GEMM,), "", "custom call __cublas$gemm without gemm_backend_config.dot_dimension_numbers"),
        ((CUDNN,), "", "custom call __cudnn$fmhaSoftmax without cudnn_fmha_backend_config.mask_type"),
    ],
)
def test_what_is_not_known_is_named(lines: tuple[str, ...], before: str, unread: str) -> None:
    """What is unknown is named in `compiled.unread`, and the row has no counts."""
    program = read_program(entry(*lines, before=before), MESH)
    assert program.unread.startswith(unread)
    row = program.as_row() | program.as_row_between(["data"])
    assert row["compiled.unread"] == program.unread
    counted = {name for name, count in row.items() if name.endswith("flops") or "sent_bytes" in name}
    assert {row[name] for name in counted} == {None}
    assert row["compiled.instructions"]


def test_all_that_is_unread_is_named_once() -> None:
    """Everything that is unread is named in alphabetical order, once each."""
    lines = ("%a = f32[8,16] foo(%p)", "%b = f32[8,16] bar(%p)", "%c = f32[8,16] foo(%p)")
    assert read_program(entry(*lines), MESH).unread == "opcode bar; opcode foo"


@pytest.mark.parametrize("metadata", [COUNTED, HEAVIEST])
def test_conditionals_with_metadata_are_read(metadata: str) -> None:
    """A conditional is read that says how often each branch is taken, or that the heaviest branch counts."""
    program = read_program(entry(CONDITIONAL + metadata, before=BRANCHES), MESH)
    assert program.unread == ""
    assert program.sent_bytes == 2 * 512 * 7 // 8


def test_branches_with_equal_work_need_no_metadata() -> None:
    """There is nothing to guess in a conditional whose branches send and multiply the same."""
    conditional = CONDITIONAL.replace("%some", "%none")
    assert read_program(entry(conditional, before=BRANCHES), MESH).unread == ""


def test_what_is_known_is_listed_once() -> None:
    """Opcodes are listed without their asynchronous forms, and a program without instructions is read."""
    assert not [opcode for opcode in KNOWN if opcode.endswith(("-start", "-done"))]
    assert not KNOWN & TARGETS
    assert Program().as_row()["compiled.unread"] is None
