"""Intervals cover 80% of the errors of a source that had no part in them, and are wider where nobody measured."""

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.cli.accuracy import quantile
from benchmarks.simulate.intervals import COVERAGE, LONG, WORK, interval, kind_of, widths, widths_of
from benchmarks.simulate.machines import machine
from strategies import PRESETS

ALIKE = dict.fromkeys(WORK, "1") | {"kind": "dense", "measured_seconds": "1"}


def test_a_quantile_covers_new_sources():
    """Of 40 sources with runs of their own, each other's quantile covers 80% on average, also if most runs are of one.

    Errors of a source have a size of their own, as those of published sources do.
    """
    random = np.random.default_rng(0)
    sizes = {
        str(source): abs(random.normal(0, random.exponential(), 300 if source == 0 else 10)).tolist()
        for source in range(40)
    }
    shares = []
    for source, own in sizes.items():
        most = quantile({name: found for name, found in sizes.items() if name != source}, COVERAGE)
        shares.append(np.mean(np.array(own) <= most))
    assert np.mean(shares) == pytest.approx(COVERAGE, abs=0.05)


def test_widths_are_of_the_errors_without_the_source():
    """Two sources are 10% and 30% off; pairs of a step differ by what the errors of a source differ."""
    seconds = {"a": (1.1, 1.1), "b": (1.3, 1.3 * 1.2)}
    rows = [{**ALIKE, "source": name, "left_out_seconds": str(own)} for name, both in seconds.items() for own in both]
    found = widths_of(rows)
    assert found.known == {"dense": pytest.approx(math.log(1.3 * 1.2), abs=1e-3)}
    assert found.pair == pytest.approx(math.log(1.2), abs=1e-3)
    assert widths_of([{**row, "measured_seconds": ""} for row in rows[:2]] + rows[2:]).known["dense"] > 0.4


def test_what_nobody_measured_has_a_wider_interval():
    """Of each kind of step; the packaged file has all kinds."""
    known = replace(machine("h100_fsdp"), source="fitted")
    assumed = replace(known, source="Not fitted")
    llama = PRESETS["llama3-8b"]
    models = llama, replace(llama, sequence=2 * LONG), PRESETS["mixtral-8x7b"]
    assert {kind_of(model) for model in models} == {*widths().known} == {*widths().assumed}
    for model in models:
        (low, high), (lowest, highest) = interval(known, model), interval(assumed, model)
        assert lowest <= low < 1 < high <= highest
        assert low * high == pytest.approx(1)
    assert widths().pair > 0
