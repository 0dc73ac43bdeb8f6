"""What compiled programs are found to do."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.compiled import KINDS, ROW_KEYS, Collective, Program, read_program
from benchmarks.hlo import HLOError
from strategies import STRATEGIES, GPTConfig, MeshSpec, Step, TrainConfig
from strategies.mesh import AXES

MESH = {"data": 2, "tensor": 4}
BOTH = ("data", "tensor")


def compiled(function: Callable[..., Any], *shapes: tuple[int, ...]) -> str:
    """The program of a function of float32 arrays, where each of eight devices has its own."""
    mesh = MeshSpec(tuple(MESH.items())).over(BOTH, jax.devices()[:8])
    spread = jax.shard_map(function, mesh=mesh, in_specs=P(BOTH), out_specs=P(BOTH), check_vma=False)
    arrays = [jax.ShapeDtypeStruct((8 * rows, *rest), jnp.float32) for rows, *rest in shapes]
    return jax.jit(spread).lower(*arrays).compile().as_text()


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
    """What is in a loop runs as often as the loop does, and in a loop of loops as often as all together."""

    def inner(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return jnp.sin(lax.psum(x, "data")), None

    def outer(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return permute(lax.scan(inner, x, length=3)[0], "tensor"), None

    found = collectives(lambda x: lax.psum_scatter(lax.scan(outer, x, length=5)[0], BOTH, tiled=True))
    counts = {(each.kind, each.times, each.in_loop) for each in found}
    assert counts == {("all_reduce", 15, True), ("permute", 5, True), ("reduce_scatter", 1, False)}


def test_conditional_is_the_branch_that_sends_most() -> None:
    """Of several branches one counts: that which sends the most bytes."""

    def switched(x: jax.Array) -> jax.Array:
        branches = [jnp.sin, lambda x: lax.psum(x, "data"), lambda x: lax.all_gather(x, "tensor").sum(0)]
        return lax.switch(x[0, 0].astype(int), branches, x)

    assert collectives(switched) == (Collective("all_gather", ("tensor",), 1, False, 3 * 512),)


def test_conditional_is_the_branch_that_multiplies_most() -> None:
    """Where no branch sends anything, the one with the most FLOPs counts, be it the first or the last."""

    def switched(x: jax.Array) -> jax.Array:
        return lax.switch(x[0, 0].astype(int), [lambda x: x @ x.T @ x, lambda x: x, lambda x: x @ x], x)

    assert read_program(compiled(switched, (16, 16)), MESH).flops == 2 * 2 * 16**3


def test_loop_of_unknown_length_is_refused() -> None:
    """A loop that ends when its data says so is named, not counted as one."""
    text = compiled(lambda x: lax.while_loop(lambda x: x.sum() < 9, lambda x: lax.psum(x, "data"), x), (8, 16))
    with pytest.raises(HLOError, match=r"%while\S*: a loop of unknown length: no known_trip_count, and .*no get-tuple"):
        read_program(text, MESH)


def entry(*lines: str, before: str = "") -> str:
    """A program of 512 bytes of float32, `%p`."""
    *others, root = ("  %p = f32[8,16]{1,0} parameter(0)", *(f"  {line}" for line in lines))
    main = "\n".join([*others, root.replace("  %", "  ROOT %")])
    return f"HloModule m, num_partitions=8\n\n{before}ENTRY %main (p: f32[8,16]) -> f32[] {{\n{main}\n}}\n\n"


ASYNCHRONOUS = "channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true"


@pytest.mark.parametrize(
    ("kind", "sent_bytes", "lines"),
    [
        (
            "all_gather",
            3 * 512,
            [
                f"%s = (f32[8,16], f32[32,16]) all-gather-start(%p), dimensions={{0}}, {ASYNCHRONOUS}",
                "%d = f32[32,16] all-gather-done(%s)",
            ],
        ),
        (
            "all_reduce",
            2 * (512 + 512) * 3 // 4,
            [
                f"%s = (f32[8,16], f32[8,16]) all-reduce-start(%p, %p), {ASYNCHRONOUS}, to_apply=%sum",
                "%d = (f32[8,16], f32[8,16]) all-reduce-done(%s)",
            ],
        ),
        (
            "reduce_scatter",
            512 * 3 // 4,
            [
                f"%s = ((f32[8,16]), f32[2,16]) reduce-scatter-start(%p), dimensions={{0}}, {ASYNCHRONOUS}, to_apply=%sum",
                "%d = f32[2,16] reduce-scatter-done(%s)",
            ],
        ),
        (
            "permute",
            512,
            [
                "%s = (f32[8,16], f32[8,16], u32[], u32[]) collective-permute-start(%p), source_target_pairs={{0,1},{1,2}}",
                "%d = f32[8,16] collective-permute-done(%s)",
            ],
        ),
    ],
)
def test_asynchronous_collectives_count_once(kind: str, sent_bytes: int, lines: list[str]) -> None:
    """A start counts by its operands, whatever is in the tuple it makes; a done does not count."""
    (found,) = read_program(entry(*lines), MESH).collectives
    assert found == Collective(kind, ("tensor",), 1, False, sent_bytes)


def test_wrapped_collective_counts_once() -> None:
    """What an asynchronous computation does counts where it starts, not where it is waited for."""
    wrapped = (
        "%wrapped (q: f32[8,16]) -> f32[8,16] {\n  %q = f32[8,16] parameter(0)\n"
        "  ROOT %a = f32[8,16] all-to-all(%q), channel_id=1, replica_groups={{0,4},{1,5},{2,6},{3,7}}, dimensions={0}\n}\n\n"
    )
    lines = (
        "%s = ((f32[8,16]), f32[8,16], u32[]) async-start(%p), calls=%wrapped",
        "%u = ((f32[8,16]), f32[8,16], u32[]) async-update(%s), calls=%wrapped",
        "%d = f32[8,16] async-done(%u), calls=%wrapped",
    )
    assert read_program(entry(*lines, before=wrapped), MESH).collectives == (
        Collective("all_to_all", ("data",), 1, False, 256),
    )


def test_woven_collective_counts_once() -> None:
    """A TPU's program spells a collective in each of the fusions that it is woven into, with the same chain_id."""
    fusion = (
        "%f{0} (q: f32[8,16]) -> f32[32,16] {{\n  %q = f32[8,16] parameter(0)\n  ROOT %g{0} = f32[32,16] all-gather(%q),"
        ' replica_groups={{{{0,1,2,3}},{{4,5,6,7}}}}, dimensions={{0}}, frontend_attributes={{chain_id="{1}"}}\n}}\n\n'
    )
    before = "".join(fusion.format(index, chain) for index, chain in enumerate((0, 0, 1)))
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
    """A TPU's program says where a loop starts, where it ends and by what it steps: 2, 5, ... 29."""
    (found,) = read_program(entry(*LOOPING, before=LOOP), MESH).collectives
    assert found == Collective("all_reduce", ("data", "tensor"), 10, True, 2 * 512 * 7 // 8)


def test_what_the_compiler_says_of_a_loop_counts() -> None:
    """The known trip count is believed."""
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
        ("index=0\n  ROOT", "index=1\n  ROOT"),
    ],
)
def test_loop_that_counts_otherwise_is_refused(old: str, new: str) -> None:
    """Where anything but constants, an addition and a limit decide, the length is not guessed."""
    text = entry(*LOOPING, before=LOOP)
    assert text.count(old) == 1
    with pytest.raises(HLOError, match=r"%while.1: a loop of unknown length: no known_trip_count, and %"):
        read_program(text.replace(old, new), MESH)


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        (
            "all-reduce(%p), replica_groups={{0,1,2},{3,4,5},{6,7}}",
            r"%r: .*\[0, 1, 2\] make up no axes of .* data=2,tensor=4",
        ),
        ("all-reduce(%p), replica_groups={{0,1},{2,3},{4,5},{6,7}}", r"%r: .*\[0, 1\] make up no axes"),
        ("all-reduce(%p), replica_groups={{0,1,2,2},{4,5,6,7}}", r"%r: .*\[0, 1, 2, 2\] make up no axes"),
        ("all-reduce(%p), replica_groups={{0,9}}", r"%r: .*\[0, 9\] make up no axes"),
        ("all-reduce(%p), replica_groups=[2,8]<=[16]", r"%r: all-reduce cannot be read: .*cannot reshape"),
        ("all-reduce(%p), replica_groups=mesh['a'=4] {'a'}", r"%r: .*the mesh takes 4"),
        ("all-reduce(%p), replica_groups=all", r"%r: replica_groups=all cannot be read"),
        ("all-reduce(%p), to_apply=%sum", r"%r: all-reduce without replica_groups"),
        ("all-reduce(%q), replica_groups={}", r"%r: no q in %main"),
        ("collective-permute(%p), source_target_pairs={{0,8}}", r"%r: .*\[0, 8\] make up no axes"),
        (
            "collective-broadcast(%p), replica_groups={}",
            r"%r: a collective-broadcast is none of all-reduce, .*-permute",
        ),
        ("fusion(%p), kind=kLoop, calls=%gone", r"%r: fusion cannot be read: KeyError\('gone'\)"),
        ("dot(%p, %p), rhs_contracting_dims={1}", r"%r: dot without lhs_contracting_dims"),
        ("dot(%p, %p), lhs_contracting_dims={2}", r"%r: dot cannot be read: IndexError"),
        ("convolution(%p, %p), dim_labels=b0f_0io->b0f", r"%r: convolution cannot be read: ValueError"),
    ],
)
def test_what_cannot_be_read_is_named(instruction: str, message: str) -> None:
    """An instruction that makes no sense is refused by its name, and with what is wrong."""
    with pytest.raises(HLOError, match=message):
        read_program(entry(f"%r = f32[8,16] {instruction}"), MESH)


def test_nothing_is_sent_without_company() -> None:
    """Groups of one device, and permutations that move nothing, are no collectives."""
    alone = "{{0},{1},{2},{3},{4},{5},{6},{7}}"
    lines = [
        f"%a = f32[8,16] all-reduce(%p), replica_groups={alone}, to_apply=%sum",
        "%b = f32[8,16] collective-permute(%a), source_target_pairs={{0,0},{1,1}}",
        "%c = f32[8,16] collective-permute(%b), source_target_pairs={}",
    ]
    assert read_program(entry(*lines), MESH) == Program(instructions=4, hash=read_program(entry(*lines), MESH).hash)


def test_dots_in_loops_are_multiplied() -> None:
    """A matmul [8,16] @ [16,32] is 2 x 8 x 16 x 32 FLOPs, and so is each of a batch, in a loop as often as it runs."""

    def looped(x: jax.Array, y: jax.Array) -> jax.Array:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.tanh(jnp.einsum("bij,jk->bik", x, y) @ y.T), None

        return lax.scan(step, x, length=7)[0]

    text = compiled(looped, (3, 8, 16), (16, 32))
    assert read_program(text, MESH).flops == 7 * 2 * 3 * (2 * 8 * 16 * 32)


CONVOLUTIONS = {
    "dim_labels=bf_io->bf": ("f32[8,16]", "f32[16,32]", "f32[8,32]", 2 * 8 * 16 * 32),
    # [4,8,16] times [4,32,16] for each of 4, from the program of a TPU: each window holds one element that is no gap.
    "window={size=4 stride=3 lhs_dilate=4}, dim_labels=0bf_0oi->0bf": (
        "bf16[4,8,16]{2,1,0:T(8,128)(2,1)}",
        "bf16[4,32,16]{2,1,0:T(8,128)(2,1)}",
        "bf16[4,8,32]{2,1,0:T(8,128)(2,1)}",
        4 * 2 * 8 * 16 * 32,
    ),
    "window={size=4 stride=4 pad=3_3 lhs_dilate=3 rhs_reversal=1}, dim_labels=0fb_0io->0bf": (
        "f32[4,16,8]",
        "f32[4,16,32]",
        "f32[4,8,32]",
        4 * 2 * 8 * 16 * 32,
    ),
    # A real one: 3 x 3 over 5 x 5 with padding; a corner meets 4 of the 9, an edge 6.
    "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f": (
        "f32[2,5,5,3]",
        "f32[3,3,3,4]",
        "f32[2,5,5,4]",
        2 * 2 * 3 * 4 * (4 * 4 + 12 * 6 + 9 * 9),
    ),
}


@pytest.mark.parametrize("attributes", CONVOLUTIONS)
def test_convolutions_multiply_what_is_there(attributes: str) -> None:
    """A convolution counts its multiplications by elements; TPUs spell matmuls as convolutions."""
    lhs, rhs, out, flops = CONVOLUTIONS[attributes]
    lines = f"%l = {lhs} parameter(1)", f"%r = {rhs} parameter(2)", f"%o = {out} convolution(%l, %r), {attributes}"
    assert read_program(entry(*lines), MESH).flops == flops


def test_matmuls_of_libraries_count() -> None:
    """Calls of cuBLAS and of cuDNN's attention, as a GPU's programs have them, are the matmuls that they stand for."""
    config = '{"gemm_backend_config":{"beta":0,"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}'
    text = entry(
        "%w = f32[16,32] parameter(1)",
        '%m = (f32[8,32], s8[99]) custom-call(%p, %w), custom_call_target="__cublas$lt$matmul", backend_config='
        + config,
        "%q = bf16[2,128,8,32]{3,1,2,0} parameter(2)",
        '%f = (bf16[2,8,128,32], f32[2,8,128]) custom-call(%q, %q, %q), custom_call_target="__cudnn$fmhaSoftmax"',
        '%b = (bf16[2,8,128,32]) custom-call(%q, %q, %q, %f), custom_call_target="__cudnn$fmhaSoftmaxBackward"',
    )
    attention = 2 * 8 * (2 * 128 * 128 * 32)
    assert read_program(text, MESH).flops == 2 * 8 * 16 * 32 + (2 + 5) * attention


SMALL = GPTConfig(layers=2, embed=32, heads=4, vocab=256, sequence=16)
BATCH = 16
TOKENS = BATCH * SMALL.sequence
BTD = TOKENS * SMALL.embed
L, T, D, F = SMALL.layers, SMALL.sequence, SMALL.embed, SMALL.mlp_dim


def built(strategy: str, mesh: str, **train: Any) -> Step:
    """A step of the small model."""
    spec = MeshSpec.parse(mesh)
    return STRATEGIES[strategy].build(SMALL, spec, TrainConfig(BATCH, **train), jax.devices()[: spec.size])


def read(step: Step) -> Program:
    """What its compiled program does."""
    return read_program(step.lower().compile().as_text(), step.mesh.shape)


@pytest.mark.parametrize(
    ("remat", "recomputed_per_token"),
    [
        # The backward pass of attention computes the scores again, 2 T D a layer.
        ("none", 2 * L * T * D),
        ("dots", 2 * L * T * D),
        # And here the backward pass of a block all of it but the last matmul, and attention once: its scores are the
        # same ones. The logits, outside the loop over layers, the compiler finds computed.
        ("full", 2 * L * T * D + 2 * L * (4 * D**2 + D * F) + 2 * L * T * D),
    ],
)
def test_flops_of_a_step_are_those_of_its_matmuls(remat: Any, recomputed_per_token: int) -> None:
    """On one device a step is the model's FLOPs and those of what is recomputed, to the last one."""
    program = read(built("single", "data=1", remat=remat))
    assert program.flops == TOKENS * (SMALL.flops_per_token + recomputed_per_token)


def test_devices_share_the_flops() -> None:
    """Two devices of one step do half of it each, whether they share its sequences or its layers' dims."""
    flops = TOKENS * (SMALL.flops_per_token + 2 * L * T * D)
    assert read(built("data", "data=2")).flops == flops // 2
    assert read(built("tensor", "tensor=2")).flops == flops // 2


V, P = SMALL.vocab, SMALL.param_count
BLOCKS = L * (4 * D**2 + 2 * D * F + 9 * D + F)
VECTORS = (6 * L + 2 + T) * D  # of norms, biases behind a cut matmul, and positions


@pytest.mark.parametrize(
    ("strategy", "mesh", "train", "elements"),
    [
        ("data", "data=8", {}, {"all_reduce.data": 2 * (P + 1) * 7 / 8}),
        (
            "fsdp",
            "fsdp=8",
            {},
            # Less than its docstring says, for outside the loop over layers the compiler gathers nothing twice.
            {
                "all_gather.fsdp": (P + BLOCKS - L * D)
                * 7
                / 8,  # a bias is of no use to the backward pass of its layer
                "reduce_scatter.fsdp": (P + V * D) * 7 / 8,  # the table for the head, and for the embedding
                "all_reduce.fsdp": 2 * 2 * 7 / 8,  # loss and norm
            },
        ),
        (
            "tensor",
            "tensor=4",
            {},
            {
                "all_gather.tensor": (6 * L + 3) * BTD * 3 / 4,
                "reduce_scatter.tensor": (4 * L + 2) * BTD * 3 / 4,
                "all_reduce.tensor": 2 * (5 * TOKENS + VECTORS + 1) * 3 / 4,
            },
        ),
        (
            "tensor",
            "tensor=4",
            {"sequence_parallel": False},
            {"all_reduce.tensor": 2 * ((4 * L + 2) * BTD + 5 * TOKENS + 1) * 3 / 4},
        ),
        (
            "pipeline",
            "pipeline=2",
            {"microbatches": 4},
            {
                "permute.pipeline": 2 * (4 + 2 - 1) * BTD / 4,
                "all_reduce.pipeline": 2 * (4 * BTD + 5 * TOKENS + 2 * D + 1) / 2,
            },
        ),
        (
            "three_d",
            "data=2,pipeline=2,tensor=2",
            {"microbatches": 2},
            # Half of the sequences and of the layers; a stage that works does so at each of three ticks, not of two.
            {
                "all_gather.tensor": (6 * L / 2 * 3 / 2 + 3) * BTD / 2 / 2,
                "reduce_scatter.tensor": (4 * L / 2 * 3 / 2 + 2) * BTD / 2 / 2,
                "permute.pipeline": 2 * 3 * BTD / 2 / 2 / 2,
                "all_reduce.pipeline": 2 * (4 * BTD / 2 / 2 + 2 * D + 1) / 2,
                "all_reduce.several": 2 * (5 * TOKENS / 2 + 1) * 3 / 4,
                "all_reduce.tensor": 2 * (VECTORS - 6 * L / 2 * D) / 2,
                "all_reduce.data": (V * D / 4 + VECTORS - 6 * L / 2 * D + (BLOCKS / L - 6 * D) / 2 + 1),
            },
        ),
    ],
)
def test_strategies_send_what_they_say(
    strategy: str, mesh: str, train: dict[str, Any], elements: dict[str, float]
) -> None:
    """A step sends the elements that its strategy's docstring says, and those for loss and norm, to the last byte."""
    row = read(built(strategy, mesh, **train)).as_row()
    prefix = "compiled.sent_bytes."
    found = {key.removeprefix(prefix): sent for key, sent in row.items() if key.startswith(prefix) and sent}
    assert found == {key: 4 * count for key, count in elements.items()}


def test_row_is_a_table_of_kinds_and_axes() -> None:
    """Every program has the same columns: bytes by kind and axis, executions by kind and place, zeros too."""
    program = Program(
        (
            Collective("all_gather", ("fsdp",), 3, True, 10),
            Collective("all_gather", ("fsdp",), 1, False, 5),
            Collective("all_gather", ("data", "fsdp"), 2, False, 100),
            Collective("permute", ("pipeline",), 4, True, 1000),
        ),
        flops=7,
        instructions=8,
        hash="9",
    )
    row = program.as_row()
    assert tuple(row) == ROW_KEYS
    assert len(ROW_KEYS) == 4 + len(KINDS) * (len(AXES) + 1 + 2)
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
    """Each counts once: of the entry, of a fusion, of a loop however long, and of what reduces."""
    assert read_program(entry(*LOOPING, before=LOOP), MESH).instructions == 9 + 4 + 5


def test_hash_is_that_of_the_program() -> None:
    """A step compiled again has the same hash, and one that does a little more has another."""
    step = jax.jit(lambda x: jnp.tanh(x @ x.T))
    again = jax.jit(lambda y: jnp.tanh(y @ y.T))
    more = jax.jit(lambda x: jnp.tanh(x @ x.T) + 1)
    hashes = [read_program(each.lower(jnp.ones((64, 64))).compile().as_text(), {}).hash for each in (step, again, more)]
    assert hashes[0] == hashes[1] != hashes[2]
    assert re.fullmatch("[0-9a-f]{16}", hashes[0])


ELSEWHERE = """
import os
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
import jax, jax.numpy as jnp

def another(y):
    return jnp.tanh(jnp.sin(y).T @ jnp.exp(y))

jax.config.update("jax_platforms", "cpu")
print(jax.jit(another).lower(jax.ShapeDtypeStruct((2048, 512), jnp.float32)).compile().as_text())
"""


def test_hash_is_the_same_in_other_processes() -> None:
    """The same program, from other sources and for a single core, has the same hash."""
    here = jax.jit(lambda x: jnp.tanh(jnp.sin(x).T @ jnp.exp(x))).lower(jax.ShapeDtypeStruct((2048, 512), jnp.float32))
    there = subprocess.run([sys.executable, "-c", ELSEWHERE], capture_output=True, text=True, check=True).stdout
    assert read_program(there, {}).hash == read_program(here.compile().as_text(), {}).hash


@pytest.fixture(scope="module")
def real() -> str:
    """A program that has a bit of everything."""

    def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        x = lax.cond(x[0, 0] > 0, lambda x: lax.psum(x @ x, "data"), jnp.sin, x)
        return permute(x, "tensor"), None

    return compiled(lambda x: lax.all_gather(lax.scan(step, x, length=3)[0], BOTH), (16, 16))


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_broken_programs_are_read_or_refused(real: str, data: st.DataObject) -> None:
    """A program that lost or repeats lines or characters, or ends early, is still a program or refused as none."""
    text = data.draw(st.sampled_from([real, entry(*LOOPING, before=LOOP)]))
    for _ in range(data.draw(st.integers(1, 3))):
        between = st.integers(0, len(text))
        start, end = sorted((data.draw(between), data.draw(between)))
        lines = text.splitlines(keepends=True)
        line = data.draw(st.integers(0, len(lines)))
        text = data.draw(
            st.sampled_from(
                [
                    text[:end],
                    text[:start] + text[min(end, start + 9) :],
                    "".join(lines[:line] + lines[line + 1 :]),
                    "".join(lines[:line] + lines[line - 1 :]),
                ]
            )
        )
    try:
        program = read_program(text, MESH)
    except HLOError:
        return
    assert tuple(program.as_row()) == ROW_KEYS
