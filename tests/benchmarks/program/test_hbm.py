"""Bytes that programs read and write in memory: small programs, summed by hand. `%p` and `%q` have 512 bytes."""

import pytest

from benchmarks.program.compiled import read_program

HBM, VMEM = "f32[8,16]{1,0:T(8,128)}", "f32[8,16]{1,0:T(8,128)S(1)}"


def bytes_moved(*lines: str, before: str = "") -> int:
    """The memory traffic of a TPU program whose last line is the root."""
    *others, root = (f"%p = {HBM} parameter(0)", f"%q = {VMEM} parameter(1)", *lines)
    main = "\n".join([*(f"  {line}" for line in others), f"  ROOT {root}"])
    return read_program(f"HloModule m\n\n{before}ENTRY %main (p: f32[8,16]) -> f32[] {{\n{main}\n}}\n", {}).memory_bytes


@pytest.mark.parametrize(
    ("line", "read_and_written"),
    [
        (f"%r = {HBM} add(%p, %p)", 3 * 512),
        (f"%r = {HBM} add(%p, %q)", 2 * 512),
        (f"%r = {VMEM} add(%q, %q)", 0),
        (f"%r = {HBM} bitcast(%p)", 0),
        (f"%r = ({HBM}, {VMEM}) tuple(%p, %q)", 0),
        ("%r = f32[2,16]{1,0:T(8,128)} dynamic-slice(%p, %i, %i), dynamic_slice_sizes={2,16}", 128 + 128),
        ("%r = f32[2,16]{1,0:T(8,128)S(1)} slice(%p), slice={[0:2], [0:16]}", 128),
        ("%r = f32[2,16]{1,0:T(8,128)} slice(%q), slice={[0:2], [0:16]}", 128),
        (f"%r = {HBM} dynamic-update-slice(%p, %u, %i, %i)", 128 + 128),
        (f"%r = ({VMEM}, {HBM}, u32[]{{:S(2)}}) copy-start(%p)", 512),
        (
            f"%r = (({HBM}), f32[2,16]{{1,0:T(8,128)S(1)}}, s32[]{{:S(2)}}) slice-start(%p), slice={{[0:2], [0:16]}}",
            128,
        ),
        (f"%r = ({HBM}, f32[32,16]{{1,0:T(8,128)}}) all-gather-start(%p), replica_groups={{{{0}}}}", 512 + 2048),
        (f"%r = (({HBM}), {HBM}) all-to-all-start(%p), replica_groups={{{{0}}}}", 2 * 512),
        (f"%r = {HBM} all-reduce-start(%p), replica_groups={{{{0}}}}, to_apply=%sum", 2 * 512),
        (f"%r = (({HBM}), {HBM}) all-reduce-start(%p), replica_groups={{{{0}}}}, to_apply=%sum", 2 * 512),
        (f'%r = {HBM} custom-call(), custom_call_target="AllocateBuffer"', 0),
        (f"%r = {HBM} all-reduce(%p), replica_groups={{{{0}}}}, to_apply=%sum", 2 * 512),
    ],
)
def test_traffic_is_operands_and_results_in_memory(line: str, read_and_written: int) -> None:
    """Operands and results in HBM count, those in VMEM do not; a slice or an in-place update counts its part only."""
    small = "%u = f32[2,16]{1,0:T(8,128)} parameter(2)", "%i = s32[]{:T(128)S(6)} parameter(3)"
    assert bytes_moved(*small, line) == read_and_written


def test_on_gpus_all_spaces_but_the_hosts_count() -> None:
    """On a GPU memory space S(1) is device memory and counts; only S(5), the host's, does not."""
    text = "HloModule m\nENTRY %main (p: f32[8]) -> f32[8] {{\n  %p = f32[8]{{0S(1)}} parameter(0)\n  ROOT %r = {0}\n}}"
    assert read_program(text.format("f32[8]{0} negate(%p)").replace("0S", "0:S"), {}).memory_bytes == 64
    assert read_program(text.format("f32[8]{0:S(5)} negate(%p)").replace("0S", "0:S"), {}).memory_bytes == 32


FUSION = f"""%fused (a: f32[8,16], b: f32[8,16], i: s32[]) -> (f32[8,16], f32[2,16]) {{
  %a = {HBM} parameter(0)
  %b = {HBM} parameter(1)
  %i = s32[]{{:T(128)S(6)}} parameter(2)
  %same = {HBM} bitcast(%b)
  %part = f32[2,16]{{1,0:T(8,128)}} dynamic-slice(%same, %i, %i), dynamic_slice_sizes={{2,16}}
  %more = f32[2,16]{{1,0:T(8,128)}} add(%part, %part)
  %new = {HBM} dynamic-update-slice(%a, %more, %i, %i)
  ROOT %both = ({HBM}, f32[2,16]{{1,0:T(8,128)}}) tuple(%new, %more)
}}

"""
FUSED = f"%r = ({HBM}, f32[2,16]{{1,0:T(8,128)}}) fusion(%p, %p, %i), kind=kLoop, calls=%fused"
INDEX = "%i = s32[]{:T(128)S(6)} parameter(2)"


def test_a_fusion_touches_what_it_slices_and_updates() -> None:
    """A fusion counts the slices it reads and the parts it updates, and nothing inside."""
    assert bytes_moved(INDEX, FUSED, before=FUSION) == 3 * 128


def test_a_fusion_that_is_started_and_awaited_counts_once() -> None:
    """`fusion-start` counts as the fusion that it calls, although its shape repeats the operands; its end is free."""
    result = FUSED.removeprefix("%r = ").partition(" fusion")[0]
    start = FUSED.replace(result, f"(({HBM}, {HBM}, s32[]), {result}, u32[])").replace("fusion(", "fusion-start(")
    done = f"%done = {result} fusion-done(%r)"
    assert bytes_moved(INDEX, start, done, before=FUSION) == bytes_moved(INDEX, FUSED, before=FUSION)


def test_a_fusion_in_a_fusion_is_looked_into() -> None:
    """A slice in a nested fusion limits what the outer fusion reads."""
    nested = FUSION + (
        f"%outer (a: f32[8,16], b: f32[8,16], i: s32[]) -> (f32[8,16], f32[2,16]) {{\n  %a = {HBM} parameter(0)\n"
        f"  %b = {HBM} parameter(1)\n  %i = s32[]{{:T(128)S(6)}} parameter(2)\n"
        f"  ROOT {FUSED.replace('%p, %p', '%a, %b')}\n}}\n\n"
    )
    assert bytes_moved(INDEX, FUSED.replace("%fused", "%outer"), before=nested) == 3 * 128


def test_a_fusion_reads_the_whole_of_what_it_does_not_only_slice() -> None:
    """An operand with any other use is read in full, and a new array is written in full whatever is updated in it."""
    assert bytes_moved(INDEX, FUSED, before=FUSION.replace("add(%part, %part)", "add(%part, %b)")) == 512 + 2 * 128
    fresh = FUSION.replace("slice(%a, %more", "slice(%zeros, %more").replace(
        "  %new", f"  %zeros = {HBM} broadcast(%i), dimensions={{}}\n  %new"
    )
    assert bytes_moved(INDEX, FUSED, before=fresh) == 128 + 512 + 128


VIEWED = f"""%view (b: f32[1,8,16]) -> f32[8,16] {{
  %b = f32[1,8,16]{{2,1,0:T(8,128)}} parameter(0)
  ROOT %v = {HBM} bitcast(%b)
}}

%product (a: f32[8,16], b: f32[1,8,16]) -> f32[8,8] {{
  %a = {HBM} parameter(0)
  %b = f32[1,8,16]{{2,1,0:T(8,128)}} parameter(1)
  %same = {HBM} fusion(%b), kind=kLoop, calls=%view
  ROOT %m = f32[8,8]{{1,0:T(8,128)}} convolution(%a, %same), dim_labels=bf_oi->bf
}}

"""


def test_what_a_nested_fusion_only_views_is_read_by_its_users() -> None:
    """A matmul reads a weight in full, although it takes it from a nested fusion that only removes a dim."""
    weight = "%w = f32[1,8,16]{2,1,0:T(8,128)} parameter(2)"
    product = "%r = f32[8,8]{1,0:T(8,128)} fusion(%p, %w), kind=kOutput, calls=%product"
    assert bytes_moved(weight, product, before=VIEWED) == 2 * 512 + 256


WOVEN = f"""%begin (a: f32[8,16]) -> (f32[8,16], f32[32,16]) {{
  %a = {HBM} parameter(0)
  %g = f32[32,16]{{1,0:T(8,128)}} all-gather(%a), replica_groups={{{{0}}}}, frontend_attributes={{chain_id="0"}}
  ROOT %s = ({HBM}, f32[32,16]{{1,0:T(8,128)}}) custom-call(%g), custom_call_target="AsyncCollectiveStart"
}}

%middle (a: f32[8,16], b: f32[32,16], x: f32[8,16]) -> (f32[8,16], f32[32,16]) {{
  %a = {HBM} parameter(0)
  %b = f32[32,16]{{1,0:T(8,128)}} parameter(1)
  %x = {HBM} parameter(2)
  %y = {HBM} negate(%x)
  %g = f32[32,16]{{1,0:T(8,128)}} all-gather(%a), replica_groups={{{{0}}}}, frontend_attributes={{chain_id="0"}}
  ROOT %t = ({HBM}, f32[32,16]{{1,0:T(8,128)}}) tuple(%y, %b)
}}

%end (a: f32[8,16], b: f32[32,16]) -> f32[32,16] {{
  %a = {HBM} parameter(0)
  %b = f32[32,16]{{1,0:T(8,128)}} parameter(1)
  %g = f32[32,16]{{1,0:T(8,128)}} all-gather(%a), replica_groups={{{{0}}}}, frontend_attributes={{chain_id="0"}}
  ROOT %d = f32[32,16]{{1,0:T(8,128)}} custom-call(%a, %b, %g), custom_call_target="AsyncCollectiveDone"
}}

"""


def test_a_collective_that_is_woven_into_fusions_counts_where_it_starts() -> None:
    """A collective woven into fusions reads its operand and writes its result once, beside what they compute."""
    fusions = (
        f"%1 = ({HBM}, f32[32,16]{{1,0:T(8,128)}}) fusion(%p), kind=kCustom, calls=%begin",
        "%2 = f32[32,16]{1,0:T(8,128)} get-tuple-element(%1), index=1",
        f"%3 = ({HBM}, f32[32,16]{{1,0:T(8,128)}}) fusion(%p, %2, %p), kind=kOutput, calls=%middle",
        "%4 = f32[32,16]{1,0:T(8,128)} fusion(%p, %2), kind=kCustom, calls=%end",
    )
    assert bytes_moved(*fusions, before=WOVEN) == (512 + 2048) + 2 * 512


LOOP = f"""%body (s: (s32[], f32[8,16])) -> (s32[], f32[8,16]) {{
  %s = (s32[]{{:T(128)S(6)}}, {HBM}) parameter(0)
  %i = s32[]{{:T(128)S(6)}} get-tuple-element(%s), index=0
  %x = {HBM} get-tuple-element(%s), index=1
  %y = {HBM} negate(%x)
  ROOT %t = (s32[]{{:T(128)S(6)}}, {HBM}) tuple(%i, %y)
}}

%condition (s: (s32[], f32[8,16])) -> pred[] {{
  %s = (s32[]{{:T(128)S(6)}}, {HBM}) parameter(0)
  ROOT %less = pred[]{{:T(512)S(6)}} constant(true)
}}

"""


def test_loops_multiply() -> None:
    """The traffic of a loop body counts once for each trip."""
    loop = f"%w = (s32[]{{:T(128)S(6)}}, {HBM}) while(%s), condition=%condition, body=%body"
    loop += ', backend_config={"known_trip_count":{"n":"7"}}'
    state = f"%s = (s32[]{{:T(128)S(6)}}, {HBM}) tuple(%i, %p)"
    assert bytes_moved(INDEX, state, loop, before=LOOP) == 7 * 2 * 512


def test_a_librarys_workspace_is_no_traffic() -> None:
    """A cuBLAS call counts operands and result, and not its workspace."""
    text = "HloModule m\nENTRY %main (p: f32[8,16]) -> f32[8,8] {\n  %p = f32[8,16]{1,0} parameter(0)\n"
    text += '  ROOT %r = (f32[8,8]{1,0}, s8[4194304]{0}) custom-call(%p, %p), custom_call_target="__cublas$gemm", '
    text += 'backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}\n}'
    assert read_program(text, {}).memory_bytes == 2 * 512 + 256
