"""How often the loops and branches of a compiled program run."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.devices.topology import Topology
from benchmarks.program.collectives import Collective
from benchmarks.program.compiled import read_program
from benchmarks.program.hlo import parse
from tests.benchmarks.program.programs import BOTH, LOOP, LOOPING, MESH, collectives, compiled, entry, permute


def test_loops_multiply() -> None:
    """A collective counts once for each trip of its loop, and in nested loops for the product of the trips."""

    def inner(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return jnp.sin(lax.psum(x, "data")), None

    def outer(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return permute(lax.scan(inner, x, length=3)[0], "tensor"), None

    found = collectives(lambda x: lax.psum_scatter(lax.scan(outer, x, length=5)[0], BOTH, tiled=True))
    counts = {(each.kind, each.times, each.in_loop) for each in found}
    assert counts == {("all_reduce", 15, True), ("permute", 5, True), ("reduce_scatter", 1, False)}


def test_conditional_is_the_branch_that_sends_most() -> None:
    """Of a conditional's branches only the one that sends the most bytes counts."""

    def switched(x: jax.Array) -> jax.Array:
        branches = [lambda x: x @ x.T @ x, lambda x: lax.all_gather(x, "tensor").sum(0), lambda x: lax.psum(x, "data")]
        return lax.switch(x[0, 0].astype(int), branches, x)

    assert collectives(switched) == (Collective("all_gather", ("tensor",), 1, False, 3 * 512),)


def test_conditional_is_the_branch_that_multiplies_most() -> None:
    """Where no branch sends anything, only the one with the most FLOPs counts."""

    def switched(x: jax.Array) -> jax.Array:
        return lax.switch(x[0, 0].astype(int), [lambda x: x, lambda x: x @ x.T @ x, lambda x: x @ x], x)

    assert read_program(compiled(switched, (16, 16)), MESH).flops == 2 * 2 * 16**3


def test_conditional_of_two_branches_may_name_them() -> None:
    """The GPU spelling of a conditional, with a true and a false computation, is read like the list of branches."""
    text = compiled(lambda x: lax.cond(x[0, 0] > 0, lambda x: lax.psum(x, "data"), jnp.sin, x), (8, 16))
    for names in (r"true_computation=\2, false_computation=\1", r"true_computation=\1, false_computation=\2"):
        named = re.sub("branch_computations={(.*?), (.*?)}", names, text)
        assert "true_computation=%" in named
        assert read_program(named, MESH).collectives == read_program(text, MESH).collectives != ()


@pytest.mark.parametrize("length", [7, 8])
def test_conditional_counts_its_branches_as_often_as_it_is_told(length: int) -> None:
    """A scope name `taken_...` gives how often each branch runs in the loop around it, if these sum to its trips."""

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
    """A loop that runs zero or one times counts for as many trips of the outer loop as its scope name says."""

    def turn(x: jax.Array, t: jax.Array) -> tuple[jax.Array, None]:
        def once(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return jnp.zeros_like(state[0]), lax.psum(state[1] @ state[1].T @ state[1], "data") * t

        with jax.named_scope("taken_4_3"):
            return lax.while_loop(lambda state: state[0], once, (t > 0, x))[1], None

    text = compiled(lambda x: lax.scan(turn, x, jnp.arange(7) % 2)[0], (8, 16))
    program = read_program(text, MESH)
    assert [(each.kind, each.times, each.in_loop) for each in program.collectives] == [("all_reduce", 3, True)]
    assert program.flops == 3 * 2 * 2 * 8 * 8 * 16
    assert "a loop of unknown length" in read_program(text.replace("taken_4_3", "taken"), MESH).unread


def test_loop_of_unknown_length_is_refused() -> None:
    """A loop whose length depends on data is unread, and named."""
    text = compiled(lambda x: lax.while_loop(lambda x: x.sum() < 9, lambda x: lax.psum(x, "data"), x), (8, 16))
    unread = r"%while\S*: a loop of unknown length: no known_trip_count, and .*not a get-tuple"
    assert re.match(unread, read_program(text, MESH).unread)


def test_loop_is_counted_where_the_compiler_does_not() -> None:
    """Without a known trip count, a TPU loop's trips follow from its start, step and limit: 2, 5, ..., 29 are ten."""
    (found,) = read_program(entry(*LOOPING, before=LOOP), MESH).collectives
    assert found == Collective("all_reduce", ("data", "tensor"), 10, True, 2 * 512 * 7 // 8)


def test_copies_of_copies_are_what_they_copy() -> None:
    """The start of a loop is found through copies of copies; a copy of itself is refused."""
    start, copy, *rest = LOOPING
    copied = (start, copy.replace("%copy =", "%first ="), "%copy = s32[] copy(%first)", *rest)
    (found,) = read_program(entry(*copied, before=LOOP), MESH).collectives
    assert found.times == 10
    itself = (start, "%copy = s32[] copy(%copy)", *rest)
    assert "%copy: a copy of itself" in read_program(entry(*itself, before=LOOP), MESH).unread


def test_condition_of_a_loop_runs_once_more() -> None:
    """A loop's condition runs once more than its body."""
    asking = "%limit = s32[] constant(32)\n  %all = s32[4] all-gather(%limit), replica_groups=[2,4]<=[8]\n"
    text = entry(*LOOPING, before=LOOP.replace("%limit = s32[] constant(32)\n", asking))
    assert Collective("all_gather", ("tensor",), 11, True, 3 * 4) in read_program(text, MESH).collectives


def test_a_stated_trip_count_takes_precedence() -> None:
    """A trip count that the compiler states takes precedence."""
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
def test_loops_without_constant_steps_are_refused(old: str, new: str) -> None:
    """A loop that does not add a constant up to a constant limit is unread rather than guessed."""
    text = entry(*LOOPING, before=LOOP)
    assert text.count(old) == 1
    unread = read_program(text.replace(old, new), MESH).unread
    assert unread.startswith("%while.1: a loop of unknown length: no known_trip_count, and %")


@pytest.mark.libtpu
def test_loop_of_a_windowed_einsum_is_counted() -> None:
    """The TPU compiler partitions a matmul into a loop over parts, which go around the ring of devices both ways.

    By hand: a device multiplies all tokens with its share of the weights. It needs the parts of seven others, and sends
    nine: one before the loop, and two in each of four passes, which are two trips of a loop unrolled twice. The last
    two are not used.
    """
    topology = Topology.parse("v5e:2x4")
    topology.prepare()
    mesh = Mesh(np.array(topology.devices()), ("tensor",))

    def array(spec: PartitionSpec, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))

    x_BTD = array(PartitionSpec(None, "tensor"), 8, 2048, 4096)
    w_DF = array(PartitionSpec(None, "tensor"), 4096, 16384)
    out = NamedSharding(mesh, PartitionSpec(None, None, "tensor"))
    text = jax.jit(lambda x, w: x @ w, out_shardings=out).lower(x_BTD, w_DF).compile().as_text() or ""
    program = read_program(text, {"tensor": 8})
    assert "windowed_dot_general_body" in text
    assert program.flops == 2 * 8 * 2048 * 4096 * 16384 // 8
    assert {each.kind for each in program.collectives} == {"permute"}
    assert program.sent_bytes == 9 * (2 * 8 * 2048 * 4096 // 8)
    ways = [each.direction for each in program.collectives if each.in_loop]
    assert sorted(ways) == [-1, -1, 1, 1]
