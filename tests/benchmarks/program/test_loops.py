"""How often the loops and branches of a compiled program run."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from benchmarks.program.collectives import Collective
from benchmarks.program.compiled import read_program
from benchmarks.program.hlo import HLOError, parse
from tests.benchmarks.program.programs import BOTH, LOOP, LOOPING, MESH, collectives, compiled, entry, permute


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
    with pytest.raises(HLOError, match=r"%while\S*: a loop of unknown length: no known_trip_count, and .*no get-tuple"):
        read_program(text, MESH)


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
