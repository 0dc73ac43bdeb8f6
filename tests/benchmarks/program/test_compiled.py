"""What is read from a compiled program: its collectives, its row and its hash."""

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

from benchmarks.program.collectives import KINDS, Collective
from benchmarks.program.compiled import ROW_KEYS, Program, read_program
from benchmarks.program.hlo import HLOError
from strategies.mesh import all_axes
from tests.benchmarks.program.programs import BOTH, LOOP, LOOPING, MESH, collectives, compiled, entry, permute, text_of


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
    """A collective has its kind, its mesh axes and the bytes that a ring algorithm sends."""
    axes = axis if isinstance(axis, tuple) else (axis,)
    (found,) = collectives(lambda x: function(x, axis))
    assert found == Collective(kind, axes, times=1, in_loop=False, sent_bytes=int(512 * operands(group)))


def test_combined_collectives_send_all_their_parts() -> None:
    """An all-reduce that the compiler combined from two sends the bytes of both."""
    text = compiled(lambda x, y: lax.psum((x, y), "data"), (8, 16), (4,))
    assert read_program(text, MESH).collectives == (Collective("all_reduce", ("data",), 1, False, 512 + 16),)


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
    """An asynchronous collective counts once: its start by the operands, its done not at all."""
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
    """A collective in a called computation counts once where it is called; updates and dones count nothing."""
    (found,) = read_program(entry(*lines, before=WRAPPED), MESH).collectives
    assert found == Collective("all_to_all", ("data",), 1, False, 256)


ON_SPARSECORE = """%c (q: f32[8,16]) -> f32[8,8] {
  %q = f32[8,16] parameter(0)
  ROOT %d = f32[8,8] dot(%q, %q), lhs_contracting_dims={1}, rhs_contracting_dims={1}
}

"""


@pytest.mark.parametrize(
    ("target", "unread"), [("PrepareAsyncCall", ""), ("Other", "custom call OtherDone; custom call OtherStart")]
)
def test_a_prepared_call_counts_once(target: str, unread: str) -> None:
    """A TPU's asynchronous call, as of a scatter on SparseCores, counts; what prepares it does not, if it is known."""
    program = read_program(
        entry(
            f'%s = s32[]{{:S(2)}} custom-call(), custom_call_target="{target}Start"',
            f'%t = token[] custom-call(%s), custom_call_target="{target}Done"',
            '%b = ((f32[8,16], token[]), f32[8,8]) call-start(%p, %t), async_execution_thread="s", to_apply=%c',
            "%r = f32[8,8] call-done(%b)",
            before=ON_SPARSECORE,
        ),
        MESH,
    )
    assert program.flops == 2 * 8 * 8 * 16
    assert program.unread == unread


WOVEN = """%f{0} (q: f32[8,16]) -> f32[32,16] {{
  %q = f32[8,16] parameter(0)
  ROOT %g = f32[32,16] all-gather(%q), replica_groups=[2,4]<=[8], frontend_attributes={{chain_id="{1}"}}
}}

"""


def test_woven_collective_counts_once() -> None:
    """A collective that a TPU's compiler repeats in several fusions counts once for each chain id."""
    before = "".join(WOVEN.format(index, chain) for index, chain in enumerate((0, 0, 1)))
    lines = [f"%r{index} = f32[32,16] fusion(%p), kind=kCustom, calls=%f{index}" for index in range(3)]
    found = read_program(entry(*lines, before=before), MESH).collectives
    assert found == 2 * (Collective("all_gather", ("tensor",), 1, False, 3 * 512),)


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        (
            "all-reduce(%p), replica_groups=[2,4]<=[4,2]T(1,0)",
            r"\[0, 2, 4, 6\] do not form a group along axes of .* data=2,tensor=4",
        ),
        ("all-reduce(%p), replica_groups={{0,1},{2,3},{4,5},{6,7}}", r"\[0, 1\] do not form a group along axes"),
        ("all-gather(%p), replica_groups={{0,2},{1,3},{4,6},{5,7}}", r"\[0, 2\] do not form a group along axes"),
        ("all-reduce(%p), replica_groups={{0,1,2,2},{4,5,6,7}}", r"\[0, 1, 2, 2\] do not form a group along axes"),
        ("all-reduce(%p), replica_groups={{0,1,2,3},{4},{5},{6},{7}}", r"\[4\] do not form a group along axes"),
        ("all-reduce(%p), replica_groups={{0,9}}", r"\[0, 9\] do not form a group along axes"),
        ("all-reduce(%p), replica_groups=[2,8]<=[16]", "all-reduce cannot be read: .*cannot reshape"),
        ("all-reduce(%p), replica_groups=mesh['a'=4] {'a'}", "the mesh of the replica groups has 4 devices, not 8"),
        ("all-reduce(%p), replica_groups=all", "replica_groups=all cannot be read"),
        ("all-reduce(%p), to_apply=%sum", "all-reduce without replica_groups"),
        ("all-reduce(%q), replica_groups={}", "no q in %main"),
        ("collective-permute(%p), source_target_pairs={{0,8}}", r"\[0, 8\] do not form a group along axes"),
        ("fusion(%p), kind=kLoop, calls=%gone", r"fusion cannot be read: KeyError\('gone'\)"),
        ("dot(%p, %p), rhs_contracting_dims={1}", "dot without lhs_contracting_dims"),
        ("dot(%p, %p), lhs_contracting_dims={2}", "dot cannot be read: IndexError"),
        ("convolution(%p, %p), dim_labels=b0f_0io->b0f", "convolution cannot be read: ValueError"),
    ],
)
def test_unreadable_instructions_are_named(instruction: str, message: str) -> None:
    """An instruction that cannot be interpreted is unread, with its name and the cause."""
    assert re.search(f"%r: .*{message}", read_program(entry(f"%r = f32[8,16] {instruction}"), MESH).unread)


def test_groups_of_one_device_send_nothing() -> None:
    """Groups of one device, and permutations that move nothing, are not collectives."""
    lines = (
        "%a = f32[8,16] all-reduce(%p), replica_groups=[8,1]<=[8], to_apply=%sum",
        "%b = f32[8,16] collective-permute(%a), source_target_pairs={{0,0},{1,1}}",
        "%c = f32[8,16] collective-permute(%b), source_target_pairs={}",
    )
    assert read_program(entry(*lines), MESH).collectives == ()


def test_row_is_a_table_of_kinds_and_axes() -> None:
    """All programs have the same columns, zeros too: bytes by kind and axis, counts by kind, in loops and outside."""
    collectives = (
        Collective("all_gather", ("fsdp",), 3, True, 10),
        Collective("all_gather", ("fsdp",), 1, False, 5),
        Collective("all_gather", ("data", "fsdp"), 2, False, 100),
        Collective("permute", ("pipeline",), 4, True, 1000),
    )
    row = Program(collectives, flops=7, instructions=8, hash="9").as_row()
    assert tuple(row) == ROW_KEYS
    assert len(ROW_KEYS) == 6 + len(KINDS) * (len(all_axes()) + 1 + 2)
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
    """Each instruction of the text counts once, in the entry and in loops, however often it runs."""
    assert read_program(entry(*LOOPING, before=LOOP), MESH).instructions == (1 + 4) + 8 + 4


def test_hash_is_that_of_what_is_computed() -> None:
    """A function that is compiled again under other names has the same hash; one that computes more has another."""

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
    """A program that is compiled in another process, with one core, has the same hash."""
    x = jax.ShapeDtypeStruct((2048, 512), jnp.float32)
    here = text_of(jax.jit(lambda x: jnp.tanh(jnp.sin(x).T @ jnp.exp(x))).lower(x))
    there = subprocess.run([sys.executable, "-c", ELSEWHERE], capture_output=True, text=True, check=True).stdout
    assert read_program(here, {}).hash == read_program(there, {}).hash


@functools.cache
def real() -> str:
    """A compiled program with a loop, a conditional and collectives."""

    def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        x = lax.cond(x[0, 0] > 0, lambda x: lax.psum(x @ x, "data"), jnp.sin, x)
        return permute(x, "tensor"), None

    return compiled(lambda x: lax.all_gather(lax.scan(step, x, length=3)[0], BOTH), (16, 16))


@given(data=st.data())
@settings(max_examples=200)
def test_broken_programs_are_read_or_refused(data: st.DataObject) -> None:
    """A program with lost, repeated or truncated text is read, or refused with an HLOError."""
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
