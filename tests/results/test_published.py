"""The tables of published runs have one form, and what a row says twice is the same."""

import csv
from collections.abc import Iterator

import pytest

from benchmarks.simulate.published import config_of
from benchmarks.simulate.published_row import Published
from strategies.costs.layer import flops_per_token
from strategies.infeasible import Infeasible
from tests.processes import ROOT

TABLES = sorted((ROOT / "results" / "published").glob("*.csv"))
CAUSAL, FULL, ALL = "causal", "full", "all parameters and full"
COUNTS = {
    "Megatron-Bridge": (CAUSAL, 0.02),  # tokens/s of large models are rounded to multiples of 32
    "MaxText H100": (FULL, 0.01),
    "MaxText TPU v6e": (FULL, 0.01),
    "MaxText TPU7x core": (CAUSAL, 0.01),
    "NeMo 24.07": (FULL, 0.01),
    "NeMo 24.09": (FULL, 0.01),
    "nanotron": (FULL, 0.01),
    "torchtitan A100-80GB": (ALL, 0.01),
    "torchtitan H100": (CAUSAL, 0.02),  # heads of 80 features are counted, and the model has 128
    "2026-04-05.md KempnerForge": (ALL, 0.01),
    "KempnerForge": (FULL, 0.01),
}
"""A part of source, stack and device, the first that fits -> what is counted as FLOPs, and how far rows may be off."""
PEAK = {"A100-80GB": 312e12, "H100": 989e12, "H200": 989e12}
"""Device -> the peak that MFU is a part of; twice that for fp8."""


def rows() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield all rows, each with its place."""
    for path in TABLES:
        with path.open(newline="") as file:
            yield from ((f"{path.name}:{line}", row) for line, row in enumerate(csv.DictReader(file), 2))


def test_all_tables_have_the_same_columns() -> None:
    """In the same order, and each row has a source."""
    assert len({tuple(row) for _, row in rows()}) == 1
    assert all(row["source"] and row["stack"] for _, row in rows())


def counted(row: Published, attention: str) -> float:
    """FLOPs of a token by the convention of a source."""
    config = config_of(row)
    full = flops_per_token(config)
    half = 6 * config.layers * config.head_features * config.sequence
    tables = 6 * config.vocab * config.embed if attention == ALL else 0
    return full + tables - half * (attention == CAUSAL)


def ratio(cells: dict[str, str]) -> tuple[float, float] | None:
    """Published FLOP/s of a device over tokens/s and FLOPs of a token, and how far it may be off; None of no rate."""
    row = Published.of({**cells, "contradicts": ""})
    peak = PEAK.get(row.device, 0.0) * (2 if row.dtype == "fp8" else 1)
    flops = float(cells["tflops_per_device"] or 0) * 1e12 or float(cells["mfu"] or 0) / 100 * peak
    if not (flops and row.measured_seconds) or row.experts:
        return None
    named = f"{cells['source']} {row.stack} {row.device}"
    attention, tolerance = next(count for part, count in COUNTS.items() if part in named)
    try:
        rate = row.batch_size * row.sequence / row.measured_seconds / row.devices
        return flops / rate / counted(row, attention), tolerance
    except Infeasible:
        return None  # blocks without formulas


def test_flops_are_those_of_the_tokens() -> None:
    """Published TFLOP/s or MFU over tokens/s are our FLOPs of a token, counted as the source does.

    Rows that are named in `contradicts` are off, or say that another figure is.
    """
    ratios = {place: (row, found) for place, row in rows() if (found := ratio(row))}
    assert len(ratios) > 150
    for place, (row, (found, tolerance)) in ratios.items():
        off = abs(found - 1) > tolerance
        assert off == bool(row["contradicts"]), f"{place}: {found:.4f}"


def test_step_and_rate_agree() -> None:
    """Where a row has seconds and tokens/s, both are of the same step, but for rounding."""
    both = [(place, row) for place, row in rows() if row["step_seconds"] and row["tokens_per_second_per_device"]]
    assert both
    for place, row in both:
        tokens = int(row["batch_size"]) * int(row["sequence"]) / int(row["devices"])
        rate = float(row["tokens_per_second_per_device"])
        assert float(row["step_seconds"]) == pytest.approx(tokens / rate, rel=0.03), place
