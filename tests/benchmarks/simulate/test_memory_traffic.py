"""Bytes of passes over memory by formula are those of steps that are compiled for GPUs, which are absent."""

import dataclasses
from collections.abc import Iterator, Sequence

import pytest

from benchmarks.devices.topology import Topology
from benchmarks.program.compiled import read_program
from benchmarks.program.work import Event
from benchmarks.simulate.kernels import head, kept_bytes, layer
from benchmarks.simulate.machines import machine
from benchmarks.simulate.step import Step
from strategies import PRESETS, STRATEGIES, MeshSpec, TrainConfig
from strategies.core.plan import Plan
from strategies.costs.layer import kept_bytes as residual_bytes
from strategies.costs.predict import predict
from tests.benchmarks.simulate.host import MPT
from tests.strategies.sampling import nightly

GPUS = machine("meshmark_gpus").stack
GPT2 = dataclasses.replace(PRESETS["gpt2"], layers=4)
LLAMA = dataclasses.replace(PRESETS["llama3.2-1b"], layers=4)
QWEN3 = dataclasses.replace(PRESETS["qwen3-0.6b"], layers=4, sequence=1024)
NO_LOOP, LOOP = {"batch_size": 16}, {"batch_size": 16, "unroll": 1}


def plan(**options: object) -> Plan:
    """The plan of a step on one GPU."""
    options = {**LOOP, "dtype": "bfloat16", **options}
    return predict("single", GPT2, "data=1", TrainConfig(**options), "cuda").plan  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("remat", ["none", "dots"])
def test_a_loop_copies_what_layers_keep(remat: str) -> None:
    """So it moves more than layers without a loop, the more of it the more they keep, and the same for weights."""
    looped, straight = plan(remat=remat), plan(remat=remat, unroll=4)
    with_loop, without = (sum(kept_bytes(each, GPUS)) for each in (looped, straight))
    fuller = plan(remat=remat, batch_size=32)
    of_loop = with_loop - without
    assert sum(kept_bytes(fuller, GPUS)) - with_loop > without > 0
    assert of_loop > residual_bytes(looped.share) > 0
    assert not any(kept_bytes(looped, MPT))


def passes(events: Sequence[Event], times: float = 1, trips: int = 0) -> Iterator[float]:
    """Yield the bytes of what neither multiplies, attends nor sends."""
    for event in events:
        for part in event.parts:
            yield from passes(part.events, times * part.mean_times(trips), part.times if part.taken is None else 0)
        if not (event.parts or event.work.flops or event.work.collectives or "attention" in event.name):
            yield times * event.work.memory_bytes


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("name", "mesh", "config", "train"),
    [
        ("single", "data=1", GPT2, LOOP),
        *nightly(
            ("single", "data=1", GPT2, NO_LOOP),
            ("single", "data=1", GPT2, {**LOOP, "remat": "none"}),
            ("single", "data=1", LLAMA, {"batch_size": 2}),
            ("single", "data=1", LLAMA, {"batch_size": 2, "remat": "full"}),
            ("single", "data=1", QWEN3, LOOP),
            ("fsdp", "fsdp=8", GPT2, {"batch_size": 64}),
            ("data", "data=8", GPT2, {"batch_size": 64}),
            ("tensor", "tensor=8", LLAMA, {"batch_size": 16}),
            ("pipeline", "pipeline=4", dataclasses.replace(LLAMA, layers=8), {"batch_size": 8, "microbatches": 8}),
        ),
    ],
    ids=str,
)
def test_passes_over_memory_are_within_15_percent(name, mesh, config, train) -> None:
    """In bfloat16, of layers, head and optimizer together."""
    spec, train = MeshSpec.parse(mesh), TrainConfig(dtype="bfloat16", **train)
    topology, its = Topology.parse(f"h100:1x{spec.size}"), machine("meshmark_gpus", "h100")
    step = STRATEGIES[name].build(config, spec, train, topology.devices())
    text = step.lower().compile(step.xla_options_with({})).as_text()
    assert text
    compiled = read_program(text, spec.sizes)
    cost = predict(name, config, spec, train, "cuda")
    kernels, ends = layer(cost.plan, its.stack), head(cost.plan, its.stack, cost.plan.size(*cost.plan.vocab_axes))
    moved = [(cost.plan.layers, each) for each in (*kernels.forward, *kernels.backward)]
    moved += [(1, each) for way in ends for each in way]
    predicted = train.microbatches * sum(times * each.moved_bytes for times, each in moved if each.kind == "memory")
    predicted += Step(cost, its, topology).afterwards["optimizer"] * its.effective_chip.memory_bytes_per_second
    assert predicted == pytest.approx(sum(passes(compiled.events)), rel=0.15)
