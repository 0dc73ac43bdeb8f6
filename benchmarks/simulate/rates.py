"""Timings of probes, and the rates of a machine that they show, by nonnegative least squares of relative errors."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from benchmarks.devices.chips import Chip
from benchmarks.simulate.machine import NOT_FITTED, START, Machine
from benchmarks.simulate.machines import CARRIED_ERROR, machine

AGAIN = "calibrate again while the machine does nothing else"


class Timing(NamedTuple):
    """A probe and its median seconds.

    Attributes:
        kind: "matmul", "stream", "launch", "dispatch", or a kind of collective. All but "dispatch" are an iteration of
            a loop, which takes its own time.
        work: FLOPs of a matmul, bytes that a device streams or sends, or launches.
        inverse_dim: of matmuls, the mean of one over the contracted dims.
        calls: collectives in it.
        filled: of matmuls on a GPU whose cores are known, the share of its peak that tiles allow (`tiles_filled`).
    """

    kind: str
    devices: int
    work: float
    inverse_dim: float = 0.0
    dtype: str = "float32"
    calls: int = 0
    seconds: float = 0.0
    filled: float = 1.0


class NotMeasurableError(ValueError):
    """Timings do not show a rate; the message says which, and what to do."""


def matmul_rate(timings: Sequence[Timing]) -> tuple[float, float]:
    """FLOP/s of large matmuls, and `Constants.matmul_dim`."""
    tiles = [(matmul.work / matmul.filled, matmul.inverse_dim) for matmul in timings]
    per_flop, per_inverse_dim = _shares(timings, [(work, work * inverse_dim) for work, inverse_dim in tiles])
    if not per_flop:
        raise NotMeasurableError(f"the rate of {timings[0].dtype} matmuls is not measurable: {AGAIN}")
    return 1 / per_flop, per_inverse_dim / per_flop


def without_iteration(timings: Sequence[Timing]) -> tuple[list[Timing], float]:
    """Timings without an iteration of their loops, and the seconds of one of the kernels that are launched.

    Two bodies, with few and with many kernels, show both. With one body, as on CPUs, an iteration takes nothing.
    """
    launches = [timing for timing in timings if timing.kind == "launch"]
    if len(launches) == 1:
        return [*timings], launches[0].seconds / launches[0].work
    kernel, iteration = _shares(launches, [(timing.work, 1.0) for timing in launches])
    alone = [timing._replace(seconds=timing.seconds - iteration * (timing.kind != "dispatch")) for timing in timings]
    for before, after in zip(timings, alone, strict=True):
        if before.kind != "launch" and after.seconds < before.seconds / 10:
            took = f"an iteration of its loop takes {1e6 * iteration:.0f} of its {1e6 * before.seconds:.0f} us"
            raise NotMeasurableError(f"the time of a {before.kind} is not measurable: {took}: {AGAIN}")
    return alone, kernel


def link_rate(timings: Sequence[Timing]) -> tuple[float, float]:
    """Bytes per second that a device sends in collectives, and the latency of a step of a ring."""
    steps = [timing.calls * (1 if timing.kind == "permute" else timing.devices - 1) for timing in timings]
    latency, per_byte = _shares(timings, [(count, timing.work) for count, timing in zip(steps, timings, strict=True)])
    if not per_byte:
        raise NotMeasurableError(f"the bandwidth of links is not measurable: more bytes took no longer; {AGAIN}")
    return 1 / per_byte, latency


def _shares(timings: Sequence[Timing], parts: Sequence[tuple[float, ...]]) -> Sequence[float]:
    """Seconds for each unit of the parts of probes, not below zero."""
    seconds = np.array([[timing.seconds] for timing in timings])
    return [float(share) for share in nnls(np.array(parts) / seconds, np.ones(len(timings)))[0]]


def calibrated(
    name: str, timings: Sequence[Timing], platform: str, memory_bytes: int, source: str, cores: int = 0
) -> tuple[Machine, list[str]]:
    """The machine that timings of probes show, and what they do not show. A GPU's `cores` are those of `filled`."""
    timings, kernel_seconds = without_iteration(timings)
    of = {kind: [timing for timing in timings if timing.kind == kind] for kind in {timing.kind for timing in timings}}
    (flops, matmul_dim), (float32_flops, _) = (
        matmul_rate([timing for timing in of["matmul"] if timing.dtype == dtype]) for dtype in ("bfloat16", "float32")
    )
    (memory,), (dispatch,) = of["stream"], of["dispatch"]
    streaming, links = memory.work / memory.seconds, [timing for timing in timings if timing.calls]
    missing = [
        f"attention: it is taken to reach {START.attention_efficiency:.0%} of the rate of matmuls",
        "the network between hosts; pass --set inter_host_bandwidth=10Gbit/s to `meshmark search`",
    ]
    stack = machine("meshmark_gpus" if platform in ("cuda", "gpu") else "meshmark_tpus").stack
    if stack.kernels_have_latency and kernel_seconds < (traced := machine("meshmark_gpus").constants.kernel_seconds):
        small = f"small ones take {1e6 * kernel_seconds:.1f}"
        missing.append(f"the latency of kernels: it is taken to be {1e6 * traced:g} us, as traced on an H100; {small}")
        kernel_seconds = traced
    if not links:
        missing.append("links: there is one device; they are taken to be as fast as its memory")
    bandwidth, latency = link_rate(links) if links else (streaming, 0.0)
    chip = Chip(
        platform=platform,  # pyright: ignore[reportArgumentType]: one that JAX has
        flops_per_second=flops,
        memory_bytes=memory_bytes,
        memory_bytes_per_second=streaming,
        link_bytes_per_second=bandwidth,
        torus_dims=0,
        ring_multiple=0,
        slice_chips=0,
        network_bytes_per_second=0.0,
        source="meshmark calibrate",
        float32_share=float32_flops / flops,
        cores=cores,
    )
    whole = dict.fromkeys(("matmul_efficiency", "memory_efficiency", "link_efficiency", "network_efficiency"), 1.0)
    constants = replace(START, **whole, matmul_dim=matmul_dim, kernel_seconds=kernel_seconds)
    constants = replace(constants, link_seconds=latency, network_seconds=0.0, step_seconds=dispatch.seconds)
    source = f"{NOT_FITTED} to steps: rates are measured, the error is assumed; {source}"
    return Machine(name, chip, stack, constants, CARRIED_ERROR, source), missing
