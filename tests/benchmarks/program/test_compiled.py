"""What compiled programs are found to do: small ones, of which the answer is known by hand."""

import functools
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec

from benchmarks.program.collectives import KINDS, Collective
from benchmarks.program.compiled import ROW_KEYS, Program, read_program
from benchmarks.program.hlo import HLOError, parse
from strategies import MeshSpec
from strategies.mesh import AXES

MESH = {"data": 2, "tensor": 4}
BOTH = ("data", "tensor")


def text_of(lowered: jax.stages.Lowered) -> str:
    """The program that it is compiled to."""
    text = lowered.compile().as_text()
    assert text
    return text


def compiled(function: Callable[..., Any], *shapes: tuple[int, ...]) -> str:
    """The program of a function of float32 arrays, of which each of eight devices has its own."""
    mesh, spec = MeshSpec(tuple(MESH.items())).over(BOTH, jax.devices()[:8]), PartitionSpec(BOTH)
    spread = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    arrays = [jax.ShapeDtypeStruct((8 * rows, *rest), jnp.float32) for rows, *rest in shapes]
    return text_of(jax.jit(spread).lower(*arrays))


def collectives(function: Callable[[jax.Array], jax.Array]) -> tuple[Collective, ...]:
    """Those in the program of a function of [8,16], which are 512 bytes."""
    return read_program(compiled(function, (8, 16)), MESH).collectives


def permute(x: jax.Array, axis: Any) -> jax.Array:
    """To the next device along the axis."""
    size = lax.axis_size(axis)
    return lax.ppermute(x, axis, [(i, (i + 1) % size) for i in range(size)])


@pytest.mark.parametrize(("axis", "group"), [("data", 2), ("tensor", 4), (BOTH, 8)], ids=str)
@pytest.mark.parametrize(
    ("kind", "function", "operands"),
    [
        ("all_reduce", lax.psum, lambda n: 2 * (n - 1) / n),
        ("all_gather", lax.all_gather, lambda n: n - 1),
        ("reduce_scatter", lambda x, axis: lax.psum_scatter(x, axis, tiled=True), lambda n: (n - 1) / n),
        ("all_to_all", lambda x, axis: lax.all_to_all(x, axis, 0, 0, tiled=True), lambda n: (n - 1) / n),
        ("permute", permute, lambda n: 1),
    ],
    ids=KINDS,
)
def test_collectives_send_what_they_must(
    kind: str, function: Callable[..., Any], operands: Callable[[int], float], axis: Any, group: int
) -> None:
    """A collective over axes is found to be over these, and to send its part of the operand."""
    axes = axis if isinstance(axis, tuple) else (axis,)
    (found,) = collectives(lambda x: function(x, axis))
    assert found == Collective(kind, axes, times=1, in_loop=False, sent_bytes=int(512 * operands(group)))


def test_combined_collectives_send_all_their_parts() -> None:
    """The compiler makes one all-reduce of two; it sends both."""
    text = compiled(lambda x, y: lax.psum((x, y), "data"), (8, 16), (4,))
    assert read_program(text, MESH).collectives == (Collective("all_reduce", ("data",), 1, False, 512 + 16),)


def test_loops_multiply() -> None:
    """What is in a loop runs as often as the loop does, and in a loop of loops as often as the inner ones together."""

    def inner(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return jnp.sin(lax.psum(x, "data")), None

    def outer(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return permute(lax.scan(inner, x, length=3)[0], "tensor"), None

    found = collectives(lambda x: lax.psum_scatter(lax.scan(outer, x, length=5)[0], BOTH, tiled=True))
    counts = {(each.kind, each.times, each.in_loop) for each in found}
    assert counts == {("all_reduce", 15, True), ("permute", 5, True), ("reduce_scatter", 1, False)}


def test_conditional_is_the_branch_that_sends_most() -> None:
    """Of several branches one counts: the one that sends the most bytes, however much others multiply."""

    def switched(x: jax.Array) -> jax.Array:
        branches = [lambda x: x @ x.T @ x, lambda x: lax.all_gather(x, "tensor").sum(0), lambda x: lax.psum(x, "data")]
        return lax.switch(x[0, 0].astype(int), branches, x)

    assert collectives(switched) == (Collective("all_gather", ("tensor",), 1, False, 3 * 512),)


def test_conditional_is_the_branch_that_multiplies_most() -> None:
    """Where no branch sends anything, the one with the most FLOPs counts."""

    def switched(x: jax.Array) -> jax.Array:
        return lax.switch(x[0, 0].astype(int), [lambda x: x, lambda x: x @ x.T @ x, lambda x: x @ x], x)

    assert read_program(compiled(switched, (16, 16)), MESH).flops == 2 * 2 * 16**3


def test_conditional_of_two_branches_may_name_them() -> None:
    """GPUs' programs spell the branches of a condition as true and false; that changes nothing."""
    text = compiled(lambda x: lax.cond(x[0, 0] > 0, lambda x: lax.psum(x, "data"), jnp.sin, x), (8, 16))
    for names in (r"true_computation=\2, false_computation=\1", r"true_computation=\1, false_computation=\2"):
        named = re.sub("branch_computations={(.*?), (.*?)}", names, text)
        assert "true_computation=%" in named
        assert read_program(named, MESH).collectives == read_program(text, MESH).collectives != ()


@pytest.mark.parametrize("length", [7, 8])
def test_conditional_counts_its_branches_as_often_as_it_is_told(length: int) -> None:
    """For as many trips of the loop around it as they add up to; in any other loop one counts each time."""

    def turn(x: jax.Array, t: jax.Array) -> tuple[jax.Array, None]:
        branches = [lambda x: x, lambda x: lax.psum(x @ x.T @ x, "data"), lambda x: permute(x @ x.T @ x, "tensor")]
        with jax.named_scope("taken_1_4_2"):
            x = lax.switch(t, branches, x)
        return lax.cond(t > 2, lambda x: lax.psum(x, BOTH), jnp.sin, x), None

    text = compiled(lambda x: lax.scan(turn, x, jnp.arange(length) % 3)[0], (8, 16))
    program = read_program(text, MESH)
    assert "taken={1,4,2}" in parse(text).text
    told = (
        {("all_reduce", ("data",), 4), ("permute", ("tensor",), 2)} if length == 7 else {("all_reduce", ("data",), 8)}
    )
    both = {("all_reduce", BOTH, length)}
    assert {(each.kind, each.axes, each.times) for each in program.collectives} == told | both
    assert program.flops == (6 if length == 7 else 8) * 2 * 2 * 8 * 8 * 16


def test_loop_counts_as_often_as_it_is_told_to_run_once() -> None:
    """A loop that runs once or not at all, inside another, is told in how many of that one's trips it runs."""

    def turn(x: jax.Array, t: jax.Array) -> tuple[jax.Array, None]:
        def once(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return jnp.zeros_like(state[0]), lax.psum(state[1] @ state[1].T @ state[1], "data") * t

        with jax.named_scope("taken_4_3"):
            return lax.while_loop(lambda state: state[0], once, (t > 0, x))[1], None

    text = compiled(lambda x: lax.scan(turn, x, jnp.arange(7) % 2)[0], (8, 16))
    program = read_program(text, MESH)
    assert [(each.kind, each.times, each.in_loop) for each in program.collectives] == [("all_reduce", 3, True)]
    assert program.flops == 3 * 2 * 2 * 8 * 8 * 16
    with pytest.raises(HLOError, match="a loop of unknown length"):
        read_program(text.replace("taken_4_3", "taken"), MESH)


def test_loop_of_unknown_length_is_refused() -> None:
    """A loop that goes on while its data says so is named, and not counted as one."""
    text = compiled(lambda x: lax.while_loop(lambda x: x.sum() < 9, lambda x: lax.psum(x, "data"), x), (8, 16))
    with pytest.raises(
        HLOError, match=r"%while\S*: a loop of unknown length: no known_trip_count, and .*not a get-tuple"
    ):
        read_program(text, MESH)


def entry(*lines: str, before: str = "") -> str:
    """The text of a program over `%p`, 512 bytes of float32; the last line is its root."""
    *others, root = ("%p = f32[8,16]{1,0} parameter(0)", *lines)
    main = "\n".join([*(f"  {line}" for line in others), f"  ROOT {root}"])
    return f"HloModule m, num_partitions=8\n\n{before}ENTRY %main (p: f32[8,16]) -> f32[] {{\n{main}\n}}\n\n"


GROUPS = "channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true"


@pytest.mark.parametrize(
    ("start", "done", "found"),
    [
        (
            f"(f32[8,16], f32[32,16]) all-gather-start(%p), dimensions={{0}}, {GROUPS}",
            "f32[32,16] all-gather-done(%s)",
            ("all_gather", 3 * 512),
        ),
        (
            f"(f32[8,16], f32[8,16]) all-reduce-start(%p, %p), {GROUPS}, to_apply=%sum",
            "(f32[8,16], f32[8,16]) all-reduce-done(%s)",
            ("all_reduce", 2 * (512 + 512) * 3 // 4),
        ),
        (
            f"((f32[8,16]), f32[2,16]) reduce-scatter-start(%p), dimensions={{0}}, {GROUPS}, to_apply=%sum",
            "f32[2,16] reduce-scatter-done(%s)",
            ("reduce_scatter", 512 * 3 // 4),
        ),
        (
            "(f32[8,16], f32[8,16], u32[]) collective-permute-start(%p), source_target_pairs={{0,1},{1,2}}",
            "f32[8,16] collective-permute-done(%s)",
            ("permute", 512),
        ),
    ],
)
def test_asynchronous_collectives_count_once(start: str, done: str, found: tuple[str, int]) -> None:
    """A start counts for its operands, whatever is in the tuple that it makes, and a done does not."""
    program = read_program(entry(f"%s = {start}", f"%d = {done}"), MESH)
    assert program.collectives == (Collective(found[0], ("tensor",), 1, False, found[1]),)


WRAPPED = """%wrapped (q: f32[8,16]) -> f32[8,16] {
  %q = f32[8,16] parameter(0)
  ROOT %a = f32[8,16] all-to-all(%q), channel_id=1, replica_groups={{0,4},{1,5},{2,6},{3,7}}, dimensions={0}
}

"""


@pytest.mark.parametrize(
    "lines",
    [
        (
            "%s = ((f32[8,16]), f32[8,16], u32[]) async-start(%p), calls=%wrapped",
            "%u = ((f32[8,16]), f32[8,16], u32[]) async-update(%s), calls=%wrapped",
            "%d = f32[8,16] async-done(%u), calls=%wrapped",
        ),
        ("%c = f32[8,16] call(%p), to_apply=%wrapped",),
        ("%f = f32[8,16] fusion(%p), kind=kCustom, calls=%wrapped",),
        ('%c = f32[8,16] custom-call(%p), custom_call_target="here", called_computations={%wrapped}',),
    ],
)
def test_wrapped_collective_counts_once(lines: tuple[str, ...]) -> None:
    """What a called computation does counts where it is called; if it is waited for, not there."""
    (found,) = read_program(entry(*lines, before=WRAPPED), MESH).collectives
    assert found == Collective("all_to_all", ("data",), 1, False, 256)


WOVEN = """%f{0} (q: f32[8,16]) -> f32[32,16] {{
  %q = f32[8,16] parameter(0)
  ROOT %g = f32[32,16] all-gather(%q), replica_groups=[2,4]<=[8], frontend_attributes={{chain_id="{1}"}}
}}

"""


def test_woven_collective_counts_once() -> None:
    """A TPU's program spells a collective in each of the fusions that it is woven into, with one and the same chain."""
    before = "".join(WOVEN.format(index, chain) for index, chain in enumerate((0, 0, 1)))
    lines = [f"%r{index} = f32[32,16] fusion(%p), kind=kCustom, calls=%f{index}" for index in range(3)]
    found = read_program(entry(*lines, before=before), MESH).collectives
    assert found == 2 * (Collective("all_gather", ("tensor",), 1, False, 3 * 512),)


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


def test_loop_is_counted_where_the_compiler_does_not() -> None:
    """A TPU's program shows where a loop starts, by what it steps and where it ends: at 2, 5, ... 29 it goes on."""
    (found,) = read_program(entry(*LOOPING, before=LOOP), MESH).collectives
    assert found == Collective("all_reduce", ("data", "tensor"), 10, True, 2 * 512 * 7 // 8)


def test_copies_of_copies_are_what_they_copy() -> None:
    """However often a TPU's program copies where a loop starts, it starts there; a copy of itself is none."""
    start, copy, *rest = LOOPING
    copied = (start, copy.replace("%copy =", "%first ="), "%copy = s32[] copy(%first)", *rest)
    (found,) = read_program(entry(*copied, before=LOOP), MESH).collectives
    assert found.times == 10
    itself = (start, "%copy = s32[] copy(%copy)", *rest)
    with pytest.raises(HLOError, match="%copy: a copy of itself"):
        read_program(entry(*itself, before=LOOP), MESH)


def test_condition_of_a_loop_runs_once_more() -> None:
    """A loop asks whether to go on once more than it does."""
    asking = "%limit = s32[] constant(32)\n  %all = s32[4] all-gather(%limit), replica_groups=[2,4]<=[8]\n"
    text = entry(*LOOPING, before=LOOP.replace("%limit = s32[] constant(32)\n", asking))
    assert Collective("all_gather", ("tensor",), 11, True, 3 * 4) in read_program(text, MESH).collectives


def test_compiler_is_believed() -> None:
    """The trips that the compiler knows of count."""
    config = ', backend_config={"known_init_step":{"init":"1","step":"1"},"known_trip_count":{"n":"7"}}'
    *lines, loop = LOOPING
    (found,) = read_program(entry(*lines, loop + config, before=LOOP), MESH).collectives
    assert found.times == 7


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("direction=LT", "direction=NE"),
        ("constant(32)", "parameter(1)"),
        ("constant(3)", "parameter(1)"),
        ("constant(2)", "parameter(1)"),
        ("add(%j", "multiply(%j"),
        ("index=0\n  %j", "index=1\n  %j"),
        ("index=0\n  ROOT", "index=1\n  ROOT"),
    ],
)
def test_loop_that_counts_otherwise_is_refused(old: str, new: str) -> None:
    """Where more than constants, an addition and a limit decide, the length is not guessed."""
    text = entry(*LOOPING, before=LOOP)
    assert text.count(old) == 1
    with pytest.raises(HLOError, match=r"%while.1: a loop of unknown length: no known_trip_count, and %"):
        read_program(text.replace(old, new), MESH)


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        (
            "all-reduce(%p), replica_groups=[2,4]<=[4,2]T(1,0)",
            r"\[0, 2, 4, 6\] do not form a group along axes of .* data=2,tensor=4",
        ),
        ("all-reduce(%p), replica_groups={{0,1},{2,3},{4,5},{6,7}}", r"\[0, 1\] do not form a group along axes"),
        ("all-reduce(%p), replica_groups={{0,1,2,2},{4,5,6,7}}", r"\[0, 1, 2, 2\] do not form a group along axes"),
        ("all-reduce(%p), replica_groups={{0,1,2,3},{4},{5},{6},{7}}", r"\[4\] do not form a group along axes"),
        ("all-reduce(%p), replica_groups={{0,9}}", r"\[0, 9\] do not form a group along axes"),
        ("all-reduce(%p), replica_groups=[2,8]<=[16]", "all-reduce cannot be read: .*cannot reshape"),
        ("all-reduce(%p), replica_groups=mesh['a'=4] {'a'}", "the mesh of the replica groups has 4 devices, not 8"),
        ("all-reduce(%p), replica_groups=all", "replica_groups=all cannot be read"),
        ("all-reduce(%p), to_apply=%sum", "all-reduce without replica_groups"),
        ("all-reduce(%q), replica_groups={}", "no q in %main"),
        ("collective-permute(%p), source_target_pairs={{0,8}}", r"\[0, 8\] do not form a group along axes"),
        (
            "collective-broadcast(%p), replica_groups={}",
            "collective-broadcast is not supported; supported are all-reduce, ",
        ),
        ("fusion(%p), kind=kLoop, calls=%gone", r"fusion cannot be read: KeyError\('gone'\)"),
        ("dot(%p, %p), rhs_contracting_dims={1}", "dot without lhs_contracting_dims"),
        ("dot(%p, %p), lhs_contracting_dims={2}", "dot cannot be read: IndexError"),
        ("convolution(%p, %p), dim_labels=b0f_0io->b0f", "convolution cannot be read: ValueError"),
    ],
)
def test_what_cannot_be_read_is_named(instruction: str, message: str) -> None:
    """An instruction that makes no sense is refused by its name, and with what is wrong."""
    with pytest.raises(HLOError, match=f"%r: .*{message}"):
        read_program(entry(f"%r = f32[8,16] {instruction}"), MESH)


def test_nothing_is_sent_without_company() -> None:
    """Groups of one device, and permutations that move nothing, are no collectives."""
    lines = (
        "%a = f32[8,16] all-reduce(%p), replica_groups=[8,1]<=[8], to_apply=%sum",
        "%b = f32[8,16] collective-permute(%a), source_target_pairs={{0,0},{1,1}}",
        "%c = f32[8,16] collective-permute(%b), source_target_pairs={}",
    )
    assert read_program(entry(*lines), MESH).collectives == ()


def test_dots_in_loops_are_multiplied() -> None:
    """A matmul [8,16] @ [16,32] is 2 x 8 x 16 x 32 FLOPs, and so is each of a batch, in a loop as often as it runs."""

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
        # Batches of four, as TPUs spell them: of what a window covers, all but one element are gaps or padding.
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
        # A convolution of images: 3 x 3 over 5 x 5 and a border of padding. A corner meets 4 of the 9, an edge 6.
        (
            "[2,5,5,3]",
            "[3,3,3,7]",
            "[2,5,5,7]",
            "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f",
            2 * (2 * 3 * 7) * (4 * 4 + 12 * 6 + 9 * 9),
        ),
    ],
)
def test_convolutions_multiply_what_is_there(lhs: str, rhs: str, out: str, attributes: str, flops: int) -> None:
    """A convolution counts its multiplications by elements, and not those by the zeros around and between them."""
    lines = (
        f"%l = bf16{lhs} parameter(1)",
        f"%r = bf16{rhs} parameter(2)",
        f"%o = bf16{out} convolution(%l, %r), {attributes}",
    )
    assert read_program(entry(*lines), MESH).flops == flops


def test_matmuls_of_libraries_count() -> None:
    """Calls of cuBLAS and of cuDNN's attention, as a GPU's programs have them, are the matmuls that they stand for.

    Of attention as the other devices compute it: without early queries to late keys.
    """
    config = '{"gemm_backend_config":{"beta":0,"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}'
    lines = (
        "%w = f32[16,32] parameter(1)",
        f'%m = (f32[8,32], s8[9]) custom-call(%p, %w), custom_call_target="__cublas$gemm", backend_config={config}',
        "%q = bf16[2,128,8,32]{3,1,2,0} parameter(2)",
        '%f = (bf16[2,8,128,32], f32[2,8,128]) custom-call(%q, %q, %q), custom_call_target="__cudnn$fmhaSoftmax"',
        '%b = (bf16[2,8,128,32]) custom-call(%q, %q, %q, %f), custom_call_target="__cudnn$fmhaSoftmaxBackward"',
    )
    assert read_program(entry(*lines), MESH).flops == MATMUL + (2 + 5) * 2 * 8 * (2 * 128 * 128 * 32) * 3 / 4


def test_row_is_a_table_of_kinds_and_axes() -> None:
    """Every program has the same columns: bytes by kind and axis, executions by kind and place, zeros too."""
    collectives = (
        Collective("all_gather", ("fsdp",), 3, True, 10),
        Collective("all_gather", ("fsdp",), 1, False, 5),
        Collective("all_gather", ("data", "fsdp"), 2, False, 100),
        Collective("permute", ("pipeline",), 4, True, 1000),
    )
    row = Program(collectives, flops=7, instructions=8, hash="9").as_row()
    assert tuple(row) == ROW_KEYS
    assert len(ROW_KEYS) == 5 + len(KINDS) * (len(AXES) + 1 + 2)
    assert {key.removeprefix("compiled."): value for key, value in row.items() if value} == {
        "flops": 7,
        "instructions": 8,
        "hash": "9",
        "sent_bytes": 4235,
        "sent_bytes.all_gather.fsdp": 35,
        "sent_bytes.all_gather.several": 200,
        "sent_bytes.permute.pipeline": 4000,
        "collectives.all_gather.outside_loops": 3,
        "collectives.all_gather.in_loops": 3,
        "collectives.permute.in_loops": 4,
    }


def test_instructions_are_those_of_the_text() -> None:
    """Each counts once: those of the entry and those of a loop, however often it runs."""
    assert read_program(entry(*LOOPING, before=LOOP), MESH).instructions == (1 + 4) + 8 + 4


def test_hash_is_that_of_what_is_computed() -> None:
    """A function compiled again, with other names, has the same hash; one that does a little more has another."""

    def tanh_of_square(argument: jax.Array) -> jax.Array:
        return jnp.tanh(argument @ argument.T)

    steps = tanh_of_square, lambda x: jnp.tanh(x @ x.T), lambda x: jnp.tanh(x @ x.T) + 1
    first, again, more = (read_program(compiled(step, (8, 8)), MESH).hash for step in steps)
    assert first == again != more
    assert re.fullmatch("[0-9a-f]{16}", first)


ELSEWHERE = """
import os
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
import jax, jax.numpy as jnp
jax.config.update("jax_platforms", "cpu")
x = jax.ShapeDtypeStruct((2048, 512), jnp.float32)
print(jax.jit(lambda x: jnp.tanh(jnp.sin(x).T @ jnp.exp(x))).lower(x).compile().as_text())
"""


def test_hash_is_the_same_elsewhere() -> None:
    """Another process, which has one core alone, gives a program the same hash."""
    x = jax.ShapeDtypeStruct((2048, 512), jnp.float32)
    here = text_of(jax.jit(lambda x: jnp.tanh(jnp.sin(x).T @ jnp.exp(x))).lower(x))
    there = subprocess.run([sys.executable, "-c", ELSEWHERE], capture_output=True, text=True, check=True).stdout
    assert read_program(here, {}).hash == read_program(there, {}).hash


@functools.cache
def real() -> str:
    """A program that has a bit of everything."""

    def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        x = lax.cond(x[0, 0] > 0, lambda x: lax.psum(x @ x, "data"), jnp.sin, x)
        return permute(x, "tensor"), None

    return compiled(lambda x: lax.all_gather(lax.scan(step, x, length=3)[0], BOTH), (16, 16))


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_broken_programs_are_read_or_refused(data: st.DataObject) -> None:
    """A program that lost lines or characters, that repeats a line, or that ends early is read, or refused as none."""
    text = data.draw(st.sampled_from([real(), entry(*LOOPING, before=LOOP)]))
    for _ in range(data.draw(st.integers(1, 3))):
        lines, place = text.splitlines(keepends=True), data.draw(st.integers(0, len(text)))
        line = data.draw(st.integers(0, len(lines)))
        broken = {
            "ends": text[:place],
            "lost characters": text[:place] + text[place + data.draw(st.integers(1, 9)) :],
            "lost a line": "".join(lines[:line] + lines[line + 1 :]),
            "repeats a line": "".join(lines[:line] + lines[max(line - 1, 0) :]),
        }
        text = broken[data.draw(st.sampled_from(sorted(broken)))]
    try:
        found = read_program(text, MESH)
    except HLOError:
        return
    assert tuple(found.as_row()) == ROW_KEYS
