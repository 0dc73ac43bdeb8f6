"""The row of a case: the same keys in every row, plain values, and what is derived from the samples."""

import dataclasses
import json
import math

import pytest

from benchmarks.run.measure import Interval
from benchmarks.simulate.program import ChipEstimate, Roofline
from tests.benchmarks.run.records import MEASURED, NOTHING_KNOWN


def test_every_row_has_the_same_keys() -> None:
    """Whatever is known, a row has the same keys in the same order."""
    assert list(NOTHING_KNOWN.as_extra_info()) == list(MEASURED.as_extra_info())


def test_the_roofline_of_a_chip_is_in_the_row() -> None:
    """The roofline's slowest part bounds the step time, and rates derive from it; without a roofline they are null."""
    estimate = ChipEstimate(60, 50, Roofline(0.1, 0.4, 0.2), flops_per_second=1000.0)
    row = dataclasses.replace(NOTHING_KNOWN, model_flops_per_step=1600, estimate=estimate).as_extra_info()
    assert (row["chip.needed_bytes"], row["chip.capacity_bytes"], row["chip.fits"]) == (60, 50, False)
    assert (row["roofline.step_seconds"], row["roofline.bound"]) == (0.4, "memory")
    assert row["roofline.tokens_per_second_per_device"] == 16 * 64 / 8 / 0.4
    assert row["roofline.model_flops_utilization"] == 1600 / 8 / 0.4 / 1000
    refused = dataclasses.replace(
        NOTHING_KNOWN, model_flops_per_step=1600, estimate=ChipEstimate(60, 50)
    ).as_extra_info()
    assert refused["chip.fits"] is False
    assert refused["roofline.step_seconds"] is refused["roofline.bound"] is None


def test_derived_numbers_follow_from_the_samples() -> None:
    """Rates are computed from the median step, for the whole mesh unless the name says per device."""
    row = MEASURED.as_extra_info()
    assert row["step_seconds_median"] == 0.5
    assert row["tokens_per_second"] == 16 * 64 / 0.5
    assert row["tokens_per_second_per_device"] == 16 * 64 / 0.5 / 8
    assert row["dispatch_seconds_median"] == 0.02
    assert row["steps_timed"] == 9


@pytest.mark.parametrize(("virtual", "utilization"), [(True, 1000 / 0.5 / 4000), (False, 1000 / 0.5 / 4000 / 8)])
def test_utilization_counts_real_devices(virtual: bool, utilization: float) -> None:
    """Model FLOPs utilization divides by the number of devices, but virtual devices count as one machine."""
    assert dataclasses.replace(MEASURED, virtual_devices=virtual).model_flops_utilization == utilization


def test_a_prediction_is_compared_with_the_measured_time() -> None:
    """The ratio is the predicted over the measured time; both are null without a machine."""
    row = dataclasses.replace(MEASURED, predicted_seconds=0.6).as_extra_info()
    assert (row["predicted.step_seconds"], row["predicted.ratio"]) == (0.6, 0.6 / 0.5)
    assert MEASURED.as_extra_info()["predicted.ratio"] is None
    assert dataclasses.replace(NOTHING_KNOWN, predicted_seconds=0.6).as_extra_info()["predicted.ratio"] is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_is_null(bad: float) -> None:
    """A NaN or infinite value is null in the row, which is strict JSON."""
    row = dataclasses.replace(MEASURED, status="nan_loss").adding({"loss_last": bad}).as_extra_info()
    assert row["loss_last"] is None
    assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_further_columns_are_part_of_the_row() -> None:
    """The row has further columns, as those of the compiled program, under their own names; null if not known."""
    assert MEASURED.as_extra_info()["compiled.flops"] == 12
    assert MEASURED.adding({"compiled.flops": 13}).as_extra_info()["compiled.flops"] == 13
    assert MEASURED.as_extra_info()["experts.balance_loss"] == 1.5
    assert MEASURED.as_extra_info()["compiled.instructions"] is None


@pytest.mark.parametrize("name", ["memory.totl_bytes", "noisy"])
def test_no_column_is_lost(name: str) -> None:
    """A column that the table lacks, or that the record computes itself, is refused by name."""
    with pytest.raises(ValueError, match=f"{name} is not a column"):
        MEASURED.adding({name: 1})


@pytest.mark.parametrize(
    ("low", "high", "noisy"), [(0.96, 1.04, False), (0.95, 1.05, False), (0.94, 1.0, True), (1.0, 1.06, True)]
)
def test_canary_tells_a_noisy_run(low: float, high: float, noisy: bool) -> None:
    """A row is noisy if the interval of the step's ratio to itself exceeds 5% either way."""
    assert dataclasses.replace(MEASURED, canary=Interval(1.0, low, high)).as_extra_info()["noisy"] is noisy
    assert NOTHING_KNOWN.as_extra_info()["noisy"] is None


def test_row_is_what_the_report_shows() -> None:
    """A row has its samples apart from its facts; a case that was not timed has none."""
    row = MEASURED.as_row()
    assert (row.case, row.samples, row.steps_per_block) == ("fsdp-fsdp=8-b16-microbatches=2", (0.5, 0.4, 9.0), 3)
    assert (NOTHING_KNOWN.as_row().samples, NOTHING_KNOWN.as_row().steps_per_block) == ((), None)


def test_record_is_frozen() -> None:
    """A record cannot be changed."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        MEASURED.status = "mismatch"  # pyright: ignore[reportAttributeAccessIssue]
