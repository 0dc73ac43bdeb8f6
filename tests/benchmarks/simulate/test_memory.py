"""Memory under Megatron-LM is the sum of its papers' formulas, by hand."""

import statistics
from dataclasses import replace

import pytest

from benchmarks.simulate.memory import activation_bytes, held_bytes, megatron_bytes
from benchmarks.simulate.predict import read_rows
from benchmarks.simulate.published import run_of
from benchmarks.simulate.stack import MEGATRON, MPT
from benchmarks.simulate.stacks import MEGATRON_CORE
from strategies.config import TrainConfig
from strategies.costs.predict import predict
from strategies.gpt_config import GPTConfig
from strategies.mesh import MeshSpec
from tests.benchmarks.simulate.test_folding import DENSE
from tests.processes import ROOT

PUBLISHED = ROOT / "results" / "published"
CONFIG = GPTConfig(layers=8, embed=64, heads=4, vocab=1024, sequence=32)
TRAIN = TrainConfig(16, 4, dtype="bfloat16", remat="full", schedule="1f1b", sequence_parallel=False)
STREAM = 32 * 4 * 64
"""s b h, of 4 sequences."""
SCORES = 5 * 4 * 32 / 64
"""5 a s / h."""


LOGITS = 4 * 32 * 4 * 1024
"""In float32. With `tensor=2` they are more than a layer."""


def cost(mesh, **training):
    """A step by formulas."""
    spec = MeshSpec.parse(mesh)
    strategy = next(iter(spec.sizes)) if len(spec.sizes) == 1 else "three_d"
    return predict(strategy, CONFIG, spec, replace(TRAIN, **training), "cuda")


@pytest.mark.parametrize(
    ("mesh", "training", "expected"),
    [
        ("tensor=2", {"remat": "none"}, 8 * STREAM * (10 + 24 / 2 + SCORES / 2) + LOGITS / 2),
        ("tensor=2", {"remat": "none", "sequence_parallel": True}, 8 * STREAM / 2 * (34 + SCORES) + LOGITS / 2),
        ("tensor=2", {"remat": "dots", "sequence_parallel": True}, 8 * STREAM / 2 * 34 + LOGITS / 2),
        ("tensor=2", {}, 8 * 2 * STREAM + LOGITS / 2),
        ("pipeline=4", {}, 4 * 2 * 2 * STREAM + STREAM * (34 + SCORES)),
        ("pipeline=4", {"microbatches": 2, "batch_size": 8}, 2 * 2 * 2 * STREAM + STREAM * (34 + SCORES)),
        ("pipeline=2", {"schedule": "interleaved", "chunks": 2}, 2.5 * 4 * 2 * STREAM + STREAM * (34 + SCORES)),
    ],
)
def test_activations_are_those_of_the_paper(mesh, training, expected):
    """Of all layers of a stage for the microbatches in flight, and of a layer that is computed again, or the logits."""
    assert activation_bytes(cost(mesh, **training).plan) == pytest.approx(expected)


def test_the_first_stage_has_the_whole_table_and_20_bytes_a_parameter():
    """A layer has 12 h^2 weights, and 13 h in norms and biases where the model has them."""
    one, two = (cost(mesh).plan for mesh in ("pipeline=4", "pipeline=2,tensor=2"))
    of_blocks = sum(each.elements for each in one.weights if each.spec.is_stacked)
    assert of_blocks == pytest.approx(2 * 12 * 64**2, rel=0.1)
    assert megatron_bytes(one) - activation_bytes(one) == 20 * (of_blocks + (1024 + 32) * 64)
    split = sum(each.elements for each in two.weights if each.spec.is_stacked)
    assert megatron_bytes(two) - activation_bytes(two) == 20 * (split + (512 + 32) * 64)


@pytest.mark.parametrize(("mesh", "parts"), [("data=4,tensor=2", 4), ("context=4,tensor=2", 4), ("tensor=8", 1)])
def test_replicas_share_the_optimizer_of_megatron_core(mesh, parts):
    """It keeps 6 + 12 / d bytes of each parameter, with d replicas."""
    axes = {"data": 1, "context": 1, "tensor": 1, **MeshSpec.parse(mesh).sizes}
    row = {**DENSE, **axes, "stack": "Megatron-LM", "device": "B200", "fsdp": 1, "recompute": "none"}
    few, many = (run_of({**row, "mlp": mlp}).cost for mlp in (14336, 28672))
    more = many.plan.elements - few.plan.elements
    kept = 8 * (many.plan.block.kept_bytes(many.plan.share) - few.plan.block.kept_bytes(few.plan.share))
    grown = held_bytes(many, MEGATRON_CORE) - held_bytes(few, MEGATRON_CORE)
    assert grown - kept == pytest.approx(more * (6 + 12 / parts), rel=1e-6)


def test_memory_of_megatron_core_is_within_five_percent():
    """Of dense models on one host of B200s, on average; of each by 6%, but with a context axis and long sequences."""
    rows = [row for row in read_rows(PUBLISHED / "simumax_b200.csv") if not row["experts"]]
    runs = [(row, run_of(row), float(row["peak_memory_gib"])) for row in rows if row["peak_memory_gib"]]
    errors = [(row, abs(held_bytes(run.cost, run.stack) / 2**30 / peak - 1)) for row, run, peak in runs]
    assert len(errors) > 30
    assert statistics.mean(error for _, error in errors) < 0.05
    assert max(error for row, error in errors if row["context"] == "1") < 0.06


def test_other_stacks_hold_what_the_formulas_say():
    """Those without rules of their own."""
    its = cost("data=2")
    assert held_bytes(its, MPT) == its.needed_bytes
    assert held_bytes(its, MEGATRON) == megatron_bytes(its.plan) != its.needed_bytes
