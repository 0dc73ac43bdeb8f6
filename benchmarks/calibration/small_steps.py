"""Training steps of small models, which show what a layer does besides matmuls."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import jax
import numpy as np

from benchmarks.calibration.probes import Probe
from benchmarks.cases.case import default_microbatches
from benchmarks.devices.topology import CPU, Topology
from benchmarks.seconds.published import Run
from benchmarks.seconds.stack import Stack
from strategies import STRATEGIES, GPTConfig, MeshSpec, TrainConfig
from strategies.backends.backend import platform_of
from strategies.config import Remat
from strategies.costs.predict import predict
from strategies.infeasible import Infeasible

MODELS = (
    GPTConfig(layers=4, embed=64, heads=4, vocab=256, sequence=64),
    GPTConfig(layers=4, embed=256, heads=8, vocab=512, sequence=128),
    GPTConfig(layers=2, embed=384, heads=6, vocab=1024, sequence=192),
    GPTConfig(layers=8, embed=64, heads=8, vocab=128, sequence=128),
)
"""None of the presets."""
SHALLOW = GPTConfig(layers=2, embed=256, heads=8, vocab=512, sequence=128)
SPREAD = (("context", SHALLOW), ("pipeline", MODELS[3]), ("tensor", SHALLOW), ("fsdp", MODELS[3]))
"""Steps of many short kernels and collectives: strategies on as many devices as there are, and models.

On eight virtual devices their temporaries, and those of `LARGE_VOCAB`, are small enough for the C library to keep them
(predicted.py). Between 20 and 36 MiB a device it keeps more in one process than in another: of `tensor` with four
layers 6 to 82 MiB of a step were page faults, and the step took 244 to 264 ms. With twice the tokens that of
`LARGE_VOCAB` took 37 or 45 ms.
"""
KEEPING = MODELS[1], MODELS[2]
"""Models whose residuals are also kept as a whole, which shows what that costs."""
LARGE_VOCAB = GPTConfig(layers=2, embed=64, heads=4, vocab=8192, sequence=32)
"""A model whose step is mostly logits and their loss."""
BATCH_SIZE = 16


def steps(devices: int, stack: Stack, dtype: str) -> Iterator[tuple[Probe, Callable[[float], Run]]]:
    """Yield steps on two and on all devices, each with a function that makes a run of its seconds.

    Those that do not fit the number of devices are left out.
    """
    for strategy, count, config, remat in _wanted(devices):
        with suppress(Infeasible):
            yield _step(strategy, count, config, stack, dtype, remat)


def _wanted(devices: int) -> Iterator[tuple[str, int, GPTConfig, Remat]]:
    """Yield strategies, numbers of devices, models, and what their backward passes recompute."""
    for count in sorted({min(2, devices), devices}):
        for config in MODELS:
            yield "data", count, config, "dots"
    if devices > 1:
        for strategy, config in SPREAD:
            yield strategy, devices, config, "dots"
    for config in KEEPING:
        yield "data", devices, config, "none"
    yield "data", devices, LARGE_VOCAB, "dots"


def _step(
    strategy: str, devices: int, config: GPTConfig, stack: Stack, dtype: Any, remat: Remat
) -> tuple[Probe, Callable]:
    mesh = MeshSpec.parse(f"{strategy}={devices}")
    train = TrainConfig(BATCH_SIZE, default_microbatches(strategy, mesh, BATCH_SIZE), dtype=dtype, remat=remat)
    cost = predict(strategy, config, mesh, train, platform_of(jax.devices()[0]))
    return _probe(strategy, config, mesh, train), lambda seconds: Run(cost, Topology(CPU, (devices,)), stack, seconds)


def _probe(strategy: str, config: GPTConfig, mesh: MeshSpec, train: TrainConfig) -> Probe:
    step = STRATEGIES[strategy].build(config, mesh, train)
    state = step.init(jax.random.key(0))
    tokens = step.place(np.random.default_rng(0).integers(0, config.vocab, step.batch.shape))

    def run(times: int) -> None:
        nonlocal state
        for _ in range(times):
            state, metrics = step(state, tokens)
            jax.block_until_ready((state, metrics))

    run(1)
    return Probe("step", mesh.size, 0, 0, run)
