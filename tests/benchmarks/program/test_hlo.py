"""Parsing the text of a compiled program."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.program.collectives import replica_groups
from benchmarks.program.hlo import HLOError, parse

TEXT = r"""HloModule jit_step, is_scheduled=true, num_partitions=8, frontend_attributes={fingerprint_before_lhs="1a"}

FileNames
1 "step (old) {.py"

StackFrames
1 {file_location_id=1 parent_frame_id=1}

%sum.1 (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add.1 = f32[] add(%a, %b), metadata={op_name="f(\"{x\")" stack_frame_id=1}
}

ENTRY %main.7 (p: (f32[8,64], s32[])) -> (f32[64], (s32[], /*index=5*/s32[])) {
  %p = (f32[8,64]{1,0:T(8,128)(2,1)S(1)}, s32[]{:T(128)}) parameter(0), sharding={{devices=[8,1]<=[8]}, {replicated}}
  %get.1 = f32[8,64]{1,0:T(8,128)(2,1)S(1)} get-tuple-element(%p), index=0
  %zero = f32[] constant(-0.5)
  %table = f32[2,2]{1,0} constant({ { 1, 2 }, { 3, 4 } })
  %reduce.1 = f32[64]{0} reduce(%get.1, /*index=5*/%zero), dimensions={0}, to_apply=%sum.1, metadata={op_name="jit(f)"}
  ROOT %both = (f32[64]{0}, (s32[])) custom-call(%reduce.1), backend_config={"a":"{,(","b":[1]}, custom_call_target="f"
}

"""


def test_a_module_has_computations_and_an_entry() -> None:
    """A module has its computations, callees first, and an entry; tables of sources are skipped."""
    module = parse(TEXT)
    assert list(module.computations) == ["sum.1", "main.7"]
    assert module.entry.name == "main.7"
    assert module.entry.root.name == "both"
    assert list(module.entry.instructions) == ["p", "get.1", "zero", "table", "reduce.1", "both"]


def test_instructions_are_split_into_their_parts() -> None:
    """An instruction is split into shape, opcode, operands and attributes, whatever brackets these have."""
    main = parse(TEXT).entry
    parameter, reduce, call = (main.instructions[name] for name in ("p", "reduce.1", "both"))
    assert parameter.shape == "(f32[8,64]{1,0:T(8,128)(2,1)S(1)}, s32[]{:T(128)})"
    assert parameter["sharding"] == "{{devices=[8,1]<=[8]}, {replicated}}"
    assert (reduce.opcode, reduce.operands) == ("reduce", ("get.1", "zero"))
    assert reduce.computations("to_apply") == ["sum.1"]
    assert call.attributes == {"backend_config": '{"a":"{,(","b":[1]}', "custom_call_target": '"f"'}
    assert main.instructions["zero"].operands == ("-0.5",)


def test_operands_are_found_by_name() -> None:
    """Operands are looked up in their computation; an unknown name raises an HLOError."""
    main = parse(TEXT).entry
    assert [each.opcode for each in main.operands(main.instructions["reduce.1"])] == ["get-tuple-element", "constant"]
    with pytest.raises(HLOError, match=r"%add.1: no a in %main.7"):
        main.operands(parse(TEXT).computations["sum.1"].root)


def test_canonical_text_ignores_names_and_locations() -> None:
    """The canonical text ignores source locations, names and the partitioning over cores, but no constant."""
    partitions = '"outer_dimension_partitions":["2"]'
    other = TEXT.replace("jit_step", "jit_other").replace("step (old)", "path").replace("jit(f)", "jit(g)")
    other = other.replace("%get.1", "%got.9").replace("%main.7 (p:", "%main (x:").replace("%sum.1", "%sum")
    other = other.replace("1a", "2b")
    other = other.replace("index=0\n", f"index=0, backend_config={{{partitions}}}\n")
    other = other.replace(":[1]}", f":[1],{partitions}}}")
    assert other.count("outer_dimension_partitions") == 2
    assert parse(other).text == parse(TEXT).text
    assert parse(TEXT.replace("-0.5", "0.5")).text != parse(TEXT).text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ENTRY ", "", "no ENTRY computation"),
        ("\n}\n\n", "\n", "%sum.1 does not end"),
        ("  ROOT %both", "  %both", "%main.7 has no ROOT"),
        ("  %zero = f32[] constant(-0.5)", "  %zero", "%main.7: not an instruction:   %zero"),
        ("f32[] constant(-0.5)", "f32[]", r"%zero: no opcode: f32\[\]"),
    ],
)
def test_broken_text_is_refused(old: str, new: str, message: str) -> None:
    """Text that is no program raises an HLOError that names what is missing."""
    with pytest.raises(HLOError, match=message):
        parse(TEXT.replace(old, new))


@pytest.mark.parametrize(
    ("spelling", "groups"),
    [
        ("{{0,1},{2,3},{4,5},{6,7}}", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("{}", [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("[2,4]<=[8]", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("[4,2]<=[2,4]T(1,0)", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("[4,2]<=[2,2,2]T(0,2,1)", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ("mesh['a'=2,'b'=4] {'b'}", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("mesh['a'=2,'b'=4] {'a'}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("mesh['a'=2,'b'=2,'c'=2] {'a','c'}", [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ("mesh['a'=8] {'a':(2)2}", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        # As printed for a transposed mesh: jit(lambda x: x) from P("a", "b") to P("b", "a") over a=2, b=4.
        ("mesh['a'=4,'b'=2], device_ids=([2,2,2]T(0,2,1)) {'a':(2)2}", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("mesh['a'=2,'b'=4], device_ids=(0,2,4,6,1,3,5,7) {'b'}", [[0, 2, 4, 6], [1, 3, 5, 7]]),
    ],
)
def test_groups_in_every_spelling(spelling: str, groups: list[list[int]]) -> None:
    """Every spelling of replica groups is read: lists, iota tiles and named meshes."""
    root = f"ROOT %r = f32[] all-reduce(%p), replica_groups={spelling}, to_apply=%sum"
    text = f"HloModule m\nENTRY %main (p: f32[]) -> f32[] {{\n  {root}\n}}"
    assert sorted(replica_groups(parse(text).entry.root, 8)) == groups


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    """Arbitrary text raises an HLOError."""
    with pytest.raises(HLOError):
        parse(text)
