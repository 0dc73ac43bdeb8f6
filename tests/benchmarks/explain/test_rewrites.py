"""Differences between predicted and compiled collectives are explained as named rewrites, with their bytes."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.explain.rewrites import NAMES, Rewrite, rewrites, summarized
from benchmarks.program.collectives import Collective
from benchmarks.program.flops import unstated_flops
from benchmarks.program.hlo import bytes_of
from strategies import GPTConfig, MeshSpec, TrainConfig
from strategies.core.traffic import SENT
from strategies.costs.predict import Cost, predict

SMALL = GPTConfig(layers=2, embed=64, heads=4, vocab=384, sequence=16)


def cost(strategy: str, mesh: str, **train: Any) -> Cost:
    """The predictions for a small model."""
    return predict(strategy, SMALL, MeshSpec.parse(mesh), TrainConfig(16, **{"dtype": "bfloat16", **train}))


def sends(cost: Cost, kind: str, axes: tuple[str, ...], *arrays: str, times: int = 1, **known: Any) -> Collective:
    """A collective over axes that sends some arrays."""
    operand = sum(bytes_of(array) for array in arrays)
    sent = SENT[kind](operand, cost.plan.size(*axes))
    return Collective(kind, axes, times, False, sent, operand, arrays, **known)


def as_stated(cost: Cost, *but: tuple[str, tuple[str, ...]]) -> list[Collective]:
    """The predicted collectives, except those of some kinds over some axes."""
    return [
        Collective(each.kind, each.axes, 1, False, each.sent_bytes, each.operand_bytes)
        for each in cost.traffic
        if (each.kind, each.axes) not in but
    ]


def operands(cost: Cost, kind: str, axes: tuple[str, ...]) -> int:
    """The predicted operand bytes of a kind of collective over axes."""
    return sum(each.operand_bytes for each in cost.traffic if (each.kind, each.axes) == (kind, axes))


def check(cost: Cost, compiled: Sequence[Collective]) -> list[Rewrite]:
    """The rewrites found, after checking that their costs add up to the bytes sent beyond the prediction."""
    found = rewrites(cost, compiled)
    assert {each.name for each in found} <= set(NAMES)
    sent = sum(each.times * each.sent_bytes for each in compiled)
    assert sum(each.cost_bytes for each in found) == sent - cost.sent_bytes
    return found


FSDP = ("fsdp",)


@pytest.mark.parametrize(
    ("strategy", "mesh"),
    [("data", "data=8"), ("fsdp", "fsdp=8"), ("tensor", "tensor=4"), ("three_d", "fsdp=2,context=2,tensor=2")],
)
def test_a_program_as_predicted_has_no_rewrites(strategy: str, mesh: str) -> None:
    """A program that sends what is predicted has no rewrites."""
    stated = cost(strategy, mesh)
    assert check(stated, as_stated(stated)) == []


def test_all_gather_that_became_an_all_reduce() -> None:
    """An all-gather compiled as an all-reduce sends twice as much, and names the weight whose shape the array has."""
    stated = cost("fsdp", "fsdp=8")
    rest = operands(stated, "all_gather", FSDP) - 384 * 64 * 2 // 8
    compiled = [
        *as_stated(stated, ("all_gather", FSDP)),
        sends(stated, "all_reduce", FSDP, "bf16[384,64]", decomposed=("all_gather",)),
        sends(stated, "all_gather", FSDP, f"u8[{rest}]"),
    ]
    (found,) = check(stated, compiled)
    once = 384 * 64 * 2 * 7 // 8
    assert found == Rewrite("all_gather_as_all_reduce", "bf16[384,64] (embedding.token_VD)", FSDP, once, 2 * once)
    assert str(found).startswith("bf16[384,64] (embedding.token_VD) over fsdp: the all-gather became an all-reduce of")


def test_reduce_scatter_that_became_an_all_reduce() -> None:
    """A reduce-scatter compiled as an all-reduce sends twice as much."""
    stated = cost("fsdp", "fsdp=8")
    whole = operands(stated, "reduce_scatter", FSDP)
    compiled = [
        *as_stated(stated, ("reduce_scatter", FSDP)),
        sends(stated, "all_reduce", FSDP, f"u8[{whole}]", decomposed=("reduce_scatter",)),
    ]
    once = SENT["reduce_scatter"](whole, 8)
    assert check(stated, compiled) == [
        Rewrite("reduce_scatter_as_all_reduce", f"u8[{whole}]", FSDP, once, SENT["all_reduce"](whole, 8))
    ]


def test_all_reduce_is_not_taken_for_what_is_not_stated() -> None:
    """An all-reduce is no rewritten reduce-scatter if none is predicted over its axes."""
    stated = cost("data", "data=8")
    more = sends(stated, "all_reduce", ("data",), "f32[64]", decomposed=("reduce_scatter",))
    (found,) = check(stated, [*as_stated(stated), more])
    assert found == Rewrite("unexplained", "all_reduce", ("data",), 0, more.sent_bytes)


def test_a_scalar_is_no_array_that_was_gathered() -> None:
    """All-reduces of scalars such as the loss are not taken for rewritten gathers."""
    stated = cost("zero1", "data=8")
    compiled = as_stated(stated, ("all_reduce", ("data",)))
    compiled.append(sends(stated, "all_reduce", ("data",), "f32[]", "f32[]", decomposed=("all_gather",) * 2))
    assert check(stated, compiled) == []


def test_padding_and_shifts_of_a_reduce_scatter() -> None:
    """The padding of a reduce-scatter is named with its bytes, and so are the permutes that shift padded rows."""
    stated = cost("fsdp", "fsdp=8")
    whole = operands(stated, "reduce_scatter", FSDP)
    compiled = [
        *as_stated(stated, ("reduce_scatter", FSDP)),
        sends(stated, "reduce_scatter", FSDP, f"u8[{whole}]", "u8[800]", padding_bytes=800),
        sends(stated, "permute", FSDP, "bf16[50]", times=2),
    ]
    assert check(stated, compiled) == [
        Rewrite("padded", "gradients", FSDP, 0, 700),
        Rewrite("shifted", "gradients", FSDP, 0, 200),
    ]


def test_permute_that_a_function_asks_for_is_no_shift() -> None:
    """A permute that the program asks for is not taken for a shift of padded rows."""
    stated = cost("fsdp", "fsdp=8")
    whole = operands(stated, "reduce_scatter", FSDP)
    compiled = [
        *as_stated(stated, ("reduce_scatter", FSDP)),
        sends(stated, "reduce_scatter", FSDP, f"u8[{whole}]", "u8[800]", padding_bytes=800),
        sends(stated, "permute", FSDP, "bf16[50]", source="jit(update)/ppermute"),
    ]
    assert [each.name for each in check(stated, compiled)] == ["padded", "unexplained"]


def test_gradients_that_are_moved_out_of_the_loop_over_microbatches() -> None:
    """Gradients that are sent once, and not for each microbatch, were moved out of the loop; other sizes are
    unexplained.
    """
    stated = cost("zero2", "data=4", microbatches=4)
    whole = operands(stated, "reduce_scatter", ("data",))
    others = as_stated(stated, ("reduce_scatter", ("data",)))
    (found,) = check(stated, [*others, sends(stated, "reduce_scatter", ("data",), f"u8[{whole // 4}]")])
    assert found == Rewrite("moved_out", "gradients", ("data",), whole * 3 // 4, whole // 4 * 3 // 4)
    (found,) = check(stated, [*others, sends(stated, "reduce_scatter", ("data",), f"u8[{whole // 2}]")])
    assert found.name == "unexplained"


def test_bfloat16_that_is_sent_as_float32() -> None:
    """bfloat16 arrays that are sent as float32 are widened, and cost twice the bytes."""
    stated, wide = cost("fsdp", "fsdp=8", reduce_dtype="bfloat16"), cost("fsdp", "fsdp=8", dtype="float32")
    found = check(stated, as_stated(wide))
    assert {(each.name, each.what) for each in found} == {
        ("widened", "gradients"),
        ("widened", "weights, weights again"),
    }
    assert all(each.sent_bytes == 2 * each.stated_bytes for each in found)


def test_heads_weights_that_are_gathered_again() -> None:
    """Another gather of the head's weights is named as such; of other sizes it is a gather of unknown weights."""
    stated = cost("fsdp", "fsdp=8")
    head = sends(stated, "all_gather", FSDP, "bf16[384,8]", "f32[8]", "f32[8]")
    (found,) = check(stated, [*as_stated(stated), head])
    assert found == Rewrite("gathered_again", "the head's weights", FSDP, 0, (384 * 2 + 2 * 4) * 64 * 7 // 8)
    (found,) = check(stated, [*as_stated(stated), head, sends(stated, "all_gather", FSDP, "bf16[8]")])
    assert (found.name, found.what) == ("gathered_again", "weights")


def test_gradients_of_a_tied_table_that_are_added_up() -> None:
    """A tied table's gradients that are scattered once, not twice, were added up first; other sizes are unexplained."""
    stated = cost("fsdp", "fsdp=8", dtype="float32")
    table = 4 * 384 * 64
    whole, others = operands(stated, "reduce_scatter", FSDP), as_stated(stated, ("reduce_scatter", FSDP))
    (found,) = check(stated, [*others, sends(stated, "reduce_scatter", FSDP, f"u8[{whole - table}]")])
    once = table * 7 // 8
    assert found == Rewrite("added_up", "embedding.token_VD", FSDP, 2 * once, once)
    (found,) = check(stated, [*others, sends(stated, "reduce_scatter", FSDP, f"u8[{whole - table // 2}]")])
    assert found.name == "unexplained"


def test_unknown_differences_are_unexplained_rewrites() -> None:
    """Bytes that no rewrite explains are listed as unexplained, with their kind of collective."""
    stated = cost("tensor", "tensor=4")
    compiled = [
        *as_stated(stated, ("reduce_scatter", ("tensor",))),
        sends(stated, "all_to_all", ("tensor",), "f32[64]"),
    ]
    less = SENT["reduce_scatter"](operands(stated, "reduce_scatter", ("tensor",)), 4)
    assert check(stated, compiled) == [
        Rewrite("unexplained", "reduce_scatter", ("tensor",), less, 0),
        Rewrite("unexplained", "all_to_all", ("tensor",), 0, 192),
    ]


def test_digest_adds_up_what_has_one_name() -> None:
    """Rewrites with one name over the same axes are summed into one line."""
    found = [
        Rewrite("all_gather_as_all_reduce", "bf16[384,64]", FSDP, 10, 20),
        Rewrite("merged", "f32[]", ("data", "fsdp"), 10, 7),
        Rewrite("all_gather_as_all_reduce", "bf16[64]", FSDP, 3, 6),
    ]
    assert summarized(found) == [Rewrite("all_gather_as_all_reduce", "bf16[384,64] and 1 more", FSDP, 13, 26), found[1]]


def test_digest_does_not_add_up_what_is_unexplained() -> None:
    """Unexplained bytes of two kinds of collectives stay two lines, though one sends more and the other fewer."""
    found = [Rewrite("unexplained", "reduce_scatter", FSDP, 0, 7), Rewrite("unexplained", "all_gather", FSDP, 7, 0)]
    assert summarized(found) == found


def test_flops_besides_those_stated() -> None:
    """FLOPs beyond the prediction are named: recomputed logits, a padded vocabulary, or unexplained."""
    stated = cost("fsdp", "fsdp=8")
    flops, row = sum(stated.flops.values()) // 8, 2 * 64 * (16 * 16 // 8)
    assert unstated_flops(stated, flops) == {}
    assert unstated_flops(stated, flops + 384 * row) == {"logits again": 384 * row}
    assert unstated_flops(stated, flops + 399 * row) == {"logits again": 384 * row, "padding": 15 * row}
    assert unstated_flops(stated, flops + 7) == {"unexplained": 7}
    assert unstated_flops(stated, flops - row) == {"unexplained": -row}


STEP = """
    import json, os, sys
    from benchmarks.program.compiled import read_program
    from benchmarks.explain.rewrites import rewrites
    from benchmarks.devices.topology import Topology
    from strategies import STRATEGIES, GPTConfig, MeshSpec, TrainConfig
    from strategies.costs.predict import predict
    topology = Topology.parse("v5e:4x4")
    topology.prepare()
    config, mesh = GPTConfig(layers=2, embed=512, heads=4, vocab=512, sequence=128), MeshSpec.parse("fsdp=16")
    train = TrainConfig(16, dtype="bfloat16", remat="full")
    step = STRATEGIES["fsdp"].build(config, mesh, train, topology.devices())
    program = read_program(step.lower().compile().as_text(), step.mesh.shape)
    found = rewrites(predict("fsdp", config, mesh, train), program.collectives)
    print(json.dumps([[each.name, each.what, each.cost_bytes] for each in found]))
"""


@pytest.mark.factorisations  # every day test_splash.py compiles a step for TPUs
@pytest.mark.libtpu
def test_all_that_a_tpus_compiler_does_is_explained() -> None:
    """For fsdp on 16 TPUs libtpu turns reduce-scatters into all-reduces, and no byte is unexplained."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(STEP)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert "reduce_scatter_as_all_reduce" in {name for name, _, _ in found}
    assert "unexplained" not in {name for name, _, _ in found}
