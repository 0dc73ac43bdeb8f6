"""The row: complete, plain, and in stated units."""

import dataclasses
import json
import math

import pytest

from benchmarks.cases import Case
from benchmarks.record import Memory, Record
from strategies import PRESETS, MeshSpec

CASE = Case("fsdp", MeshSpec.parse("fsdp=8"), "nano", PRESETS["nano"], 16, 2, "float32", "dots")
NOTHING_KNOWN = Record(CASE, platform="cpu", device_kind="cpu", virtual_devices=True)
MEASURED = Record(
    CASE,
    platform="cpu",
    device_kind="cpu",
    virtual_devices=True,
    status="ok",
    model_flops_per_step=1000,
    matmul_flops_per_second=4000.0,
    compile_seconds=2.0,
    memory=Memory(100, 20, 60, 50, 90, 80, None, 10**9),
    loss_first=5.5,
    loss_last=5.0,
    matches_single=True,
    steps_per_block=3,
    samples=(0.5, 0.4, 9.0),
    single_seconds_median=0.25,
)
KEYS = """
    schema_version status reason strategy mesh devices platform device_kind virtual_devices preset param_count
    global_batch_sequences sequence_tokens microbatches dtype remat step_seconds_median tokens_per_second
    tokens_per_second_per_device relative_to_single model_flops_per_step model_flops_utilization
    matmul_flops_per_second compile_seconds memory.argument_bytes memory.parameter_bytes memory.optimizer_bytes
    memory.temp_bytes memory.output_bytes memory.alias_bytes memory.total_bytes memory.device_peak_bytes
    memory.host_peak_rss_bytes loss_first loss_last matches_single
"""


@pytest.mark.parametrize("record", [NOTHING_KNOWN, MEASURED], ids=["nothing known", "measured"])
def test_every_row_has_the_keys_of_the_schema(record: Record) -> None:
    """Rows differ in values, never in keys; a change of keys is a change of schema."""
    assert set(record.as_extra_info()) == set(KEYS.split())


def test_derived_numbers_follow_from_the_samples() -> None:
    """Rates come from the median step, and are the whole mesh's unless they say per device."""
    row = MEASURED.as_extra_info()
    assert row["step_seconds_median"] == 0.5
    assert row["tokens_per_second"] == 16 * 128 / 0.5
    assert row["tokens_per_second_per_device"] == 16 * 128 / 0.5 / 8
    assert row["relative_to_single"] == 2.0


@pytest.mark.parametrize(("virtual", "utilization"), [(True, 1000 / 0.5 / 4000), (False, 1000 / 0.5 / 4000 / 8)])
def test_utilization_counts_real_devices(virtual: bool, utilization: float) -> None:
    """Eight devices do eight times the FLOPs of one, but eight virtual ones share one machine."""
    assert dataclasses.replace(MEASURED, virtual_devices=virtual).model_flops_utilization == utilization


def test_memory_counts_an_alias_once() -> None:
    """An output in the place of an argument takes no memory of its own; without a plan nothing is known."""
    assert MEASURED.memory.total_bytes == 100 + 50 + 90 - 80
    assert Memory(parameter_bytes=20).total_bytes is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_is_null(bad: float) -> None:
    """JSON has no NaN: a loss that is none is null, and the status says so."""
    row = dataclasses.replace(MEASURED, status="nan_loss", loss_last=bad).as_extra_info()
    assert row["loss_last"] is None
    assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_record_is_frozen() -> None:
    """What was measured does not change."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        MEASURED.status = "mismatch"  # pyright: ignore[reportAttributeAccessIssue]
