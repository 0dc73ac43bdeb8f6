"""What a run says."""

from dataclasses import replace

import pytest

from benchmarks.run.measure import Interval
from benchmarks.run.progress import outcome, progress
from benchmarks.run.summary import MIB, noise, reasons, resolution, table, unpredicted, where_time_goes
from tests.benchmarks.run.records import CASE, MEASURED, NOTHING_KNOWN

INFEASIBLE = replace(
    NOTHING_KNOWN,
    case=replace(CASE, config=replace(CASE.config, embed=12, heads=4)),
    status="infeasible",
    reason="fsdp=8 does not divide embed=12",
)


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of tables do not fold."""
    monkeypatch.setattr("benchmarks.cli.tables.PLAIN_WIDTH", 400)


def test_progress_has_place_outcome_and_time_left() -> None:
    """A line says which case ended, how, and how long the rest will take."""
    assert outcome(MEASURED.as_row()) == "fsdp-fsdp=8-b16-microbatches=2: 2,048 tokens/s"
    assert outcome(INFEASIBLE.as_row()).endswith("b16-microbatches=2: infeasible: fsdp=8 does not divide embed=12")
    assert progress(1, 12, "fsdp", 110.0) == "[ 1/12] fsdp, about 1:50 left"
    assert progress(12, 12, "fsdp", None) == "[12/12] fsdp"


def test_table_has_a_line_for_each_case() -> None:
    """Numbers are under their heading, what formulas say after what is, and a case without any has its status."""
    row = MEASURED.adding({"memory.total_bytes": 12 * MIB, "compiled.sent_bytes": 33 * MIB}).as_row()
    formulas = {"predicted.argument_bytes": 6 * MIB, "predicted.temp_bytes": 2 * MIB}
    row = replace(row, extra_info={**row.extra_info, **formulas})
    header, measured, infeasible = table([row, INFEASIBLE.as_row()])
    assert header.split("  ")[:2] == ["strategy", "mesh"]
    assert measured.split() == [
        *("fsdp", "fsdp=8", "microbatches=2", "16", "2,048", "2.00", "1.80-2.10"),
        *("!12.0", "8.0", "!33.0", "32.3", "equal"),
    ]
    assert infeasible.split()[4:] == ["infeasible"]
    assert header.index("loss check") == measured.index("equal") == infeasible.index("infeasible")


def test_table_has_twins_where_there_are_any() -> None:
    """What the compiler partitions stands beside what is by hand, of which that column says nothing."""
    auto = replace(MEASURED, case=replace(CASE, strategy="auto"), relative_to_twin=Interval(1.3, 1.2, 1.4))
    header, by_hand, compared = table([MEASURED.as_row(), auto.as_row()])
    assert "time/twin" not in table([MEASURED.as_row()])[0]
    assert compared.split()[5:9] == ["2.00", "1.80-2.10", "1.30", "1.20-1.40"]
    assert set(by_hand[header.index("time/twin") : header.index("  MiB/device")]) == {" "}


def test_table_has_what_goes_between_processes_where_there_are_several() -> None:
    """By axes; a step in one process sends nothing to another."""
    split = MEASURED.adding({"between_processes.axes": "data", "between_processes.sent_bytes": 3 * MIB})
    header, alone, over = table([MEASURED.as_row(), split.as_row()])
    assert "between processes" not in table([MEASURED.as_row()])[0]
    assert over.split()[-3:] == ["3.0", "data", "equal"]
    end = header.index("between processes") + len("between processes")
    assert over[:end].endswith("3.0 data")
    assert set(alone[header.index("between processes") : end]) == {" "}


def test_what_was_not_checked_or_measured_is_said_with_the_reason() -> None:
    """A time without a check is not passed off as one with it; a reason is a line, also if several cases share it."""
    unchecked = replace(MEASURED, columns={}, reason="single ended in oom")
    assert table([unchecked.as_row()])[1].endswith("unchecked")
    assert reasons([MEASURED.as_row(), unchecked.as_row(), INFEASIBLE.as_row(), INFEASIBLE.as_row()]) == [
        "fsdp-fsdp=8-b16-microbatches=2: unchecked: single ended in oom",
        f"{INFEASIBLE.as_row().case} and 1 more: infeasible: fsdp=8 does not divide embed=12",
    ]


def test_noise_is_said() -> None:
    """The summary tells how much a step may have differed from itself, and says so loudly where that is too much."""
    quiet, loud = MEASURED.as_row(), replace(MEASURED, canary=Interval(0.9, 0.8, 1.0)).as_row()
    assert noise([quiet, quiet]) == ["noise: the same step timed twice differed by -2.0% to +4.0%"]
    assert noise([quiet, loud]) == [
        "noise: the same step timed twice differed by -20.0% to +0.0%, -2.0% to +4.0%; THIS RUN IS NOISY"
    ]
    assert noise([INFEASIBLE.as_row()]) == []


def test_what_a_run_can_tell_apart_is_said() -> None:
    """It is the half width of the usual interval, or what a step differed from itself by if that is more."""
    sharp = replace(MEASURED, relative_to_single=Interval(2.0, 1.8, 2.2), canary=Interval(1.0, 0.98, 1.04))
    loud = replace(sharp, case=replace(CASE, batch_size=8), canary=Interval(1.0, 0.8, 1.0))
    assert resolution([sharp.as_row(), INFEASIBLE.as_row(), loud.as_row()]) == [
        "this run cannot tell apart step times that differ by less than 10.0% with batch 16 and 20.0% with batch 8"
    ]
    assert resolution([NOTHING_KNOWN.as_row()]) == []


def test_parts_of_the_time_are_shown_in_percent() -> None:
    """What was measured of a step's time stands in columns; rows of which nothing is known are left out."""
    parts = 0.3, 0.1, 0.0, 0.02, 0.0, 0.05, 0.005
    names = [
        "compute",
        "exposed_communication",
        "schedule_bubble",
        "lockstep_bubble",
        "recomputation",
        "optimizer",
        "dispatch",
    ]
    columns = {f"attribution.{name}_seconds": part for name, part in zip(names, parts, strict=True)}
    attributed = MEASURED.adding(columns | {"attribution.total_over_step": sum(parts) / 0.5})
    header, measured = where_time_goes([INFEASIBLE.as_row(), attributed.as_row()])
    assert header.split("  ")[-1].strip() == "sum %"
    assert measured.split() == [
        "fsdp",
        "fsdp=8",
        "microbatches=2",
        "16",
        "60.0",
        "20.0",
        "0.0",
        "4.0",
        "0.0",
        "10.0",
        "1.0",
        "95.0",
    ]
    assert where_time_goes([INFEASIBLE.as_row()]) == []


def test_numbers_that_are_not_as_predicted_are_marked() -> None:
    """A mark stands before bytes sent or held that differ from the formulas; a line below says what it means."""
    row, held = MEASURED.as_row(), {"predicted.argument_bytes": 8 * MIB, "predicted.temp_bytes": 2 * MIB}

    def marks(sent_as_predicted: bool | None, total_bytes: int | None) -> tuple[list[bool], list[str]]:
        columns = {**held, "sent_as_predicted": sent_as_predicted, "memory.total_bytes": total_bytes}
        columns["compiled.sent_bytes"] = 7 * MIB
        marked = replace(row, extra_info={**row.extra_info, **columns})
        cells = table([marked])[1].split()
        return [any(cell.startswith("!") and cell.endswith(end) for cell in cells) for end in ("1.0", "2.0", "7.0")], [
            line[:6] for line in unpredicted([marked])
        ]

    assert marks(True, 11 * MIB) == ([False] * 3, [])
    assert marks(None, None) == ([False] * 3, [])
    assert marks(False, 11 * MIB) == ([False, False, True], ["! MiB "])
    assert marks(True, 12 * MIB) == ([False, True, False], ["! MiB/"])
