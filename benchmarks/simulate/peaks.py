"""The best rates of matmuls that were measured on kinds of devices, by the dtype of their operands."""

from collections.abc import Mapping

from benchmarks.devices.chips import CHIPS, GPUS, Chip

ACHIEVED: Mapping[str, float] = {
    # stas00/ml-engineering, compute/accelerator, "Maximum Achievable Matmul FLOPS comparison table": the best of many
    # shapes in bfloat16, SXM versions.
    "a100_40gb": 267.9e12,
    "a100_80gb": 267.9e12,
    "h100": 792.1e12,
    "h100_96gb": 792.1e12 * 500 / 700,  # the same in proportion to its limit of power
    "h200": 794.5e12,
    "b200": 1745e12,
    "gb200": 1822e12,
    "b300": 1769e12,
    "mi300x": 668.4e12,
    "mi355x": 1565e12,
}
"""Kind of device -> the best rate that was measured for any matmul. Of others it is the peak, or that of `LIKE`."""
LIKE = {"gb300": "b300"}
"""Kinds of devices of which no rate is known -> a kind that reaches the same share of its peak."""
NARROW: Mapping[str, Mapping[str, float]] = {
    "h100": {"fp8": 1402.6 / 794.5},
    "h100_96gb": {"fp8": 1402.6 / 794.5},
    "h200": {"fp8": 1453.4 / 794.5},
    "b200": {"fp8": 3432.5 / 1745, "fp4": 4},
    "gb200": {"fp8": 3615.6 / 1822, "fp4": 4},
    "b300": {"fp8": 3353.3 / 1769, "fp4": 6},
    "gb300": {"fp8": 2, "fp4": 6},
    "mi300x": {"fp8": 2},
    "mi355x": {"fp8": 2, "fp4": 4},
    "tpu7x": {"fp8": 2},
}
"""Kind of device -> rates of dense matmuls of narrow elements, in multiples of that of bfloat16: the best that were
measured, by the same table as `ACHIEVED`, or peaks of data sheets."""


def achieved_rate(kind: str, chip: Chip) -> float:
    """The best matmul rate of a kind of device in bfloat16.

    >>> achieved_rate("gb300", CHIPS["gb300"]) / CHIPS["gb300"].flops_per_second == 1769 / 2250
    True
    """
    like = LIKE.get(kind, kind)
    return (
        chip.flops_per_second * ACHIEVED[like] / CHIPS[like].flops_per_second
        if like in ACHIEVED
        else chip.flops_per_second
    )


def float32_share(kind: str, chip: Chip) -> float:
    """Rate of float32 matmuls at full precision, as a fraction of that of bfloat16.

    GPUs do not use their matrix units. TPUs multiply six pairs of bfloat16 parts (jax.lax.Precision.HIGHEST).

    >>> round(float32_share("h100", CHIPS["h100"]) * CHIPS["h100"].flops_per_second / 1e12)
    67
    """
    if kind in GPUS:
        gpu = GPUS[kind]
        return 2 * gpu["fpus_per_core"] * gpu["core_count"] * gpu["clock_rate_ghz"] * 1e9 / chip.flops_per_second
    return 1 / 6 if chip.platform == "tpu" else 1.0
