"""What a run says."""

from dataclasses import replace

from benchmarks.terminal import progress, table, time_left
from tests.benchmarks.test_record import MEASURED, NOTHING_KNOWN

INFEASIBLE = replace(NOTHING_KNOWN, status="infeasible", reason="fsdp=8 does not divide embed=12")


def test_progress_has_place_outcome_and_time_left() -> None:
    """A line says which case ended, how, and how long the rest will take."""
    assert progress(1, 12, 10.0, MEASURED) == "[ 1/12] fsdp-fsdp=8-b16: 4,096 tokens/s, about 1:50 left"
    assert progress(12, 12, 99.0, INFEASIBLE).endswith("b16: infeasible: fsdp=8 does not divide embed=12")


def test_time_left_is_unknown_before_the_first_case() -> None:
    """No estimate is made of nothing."""
    assert time_left(0, 12, 1.0) == ""


def test_table_has_a_line_for_each_case() -> None:
    """Numbers stand under their heading, and a case without any says why."""
    header, measured, infeasible = table([MEASURED, INFEASIBLE])
    assert header.split() == ["strategy", "mesh", "batch", "tokens/s", "time/single", "MiB/device", "loss", "check"]
    assert measured.split() == ["fsdp", "fsdp=8", "16", "4,096", "2.00", "0.0", "equal"]
    assert infeasible.split(maxsplit=3)[3] == "infeasible: fsdp=8 does not divide embed=12"
    assert header.index("loss check") == measured.index("equal") == infeasible.index("infeasible")


def test_table_says_what_was_not_checked() -> None:
    """A time without a check is not passed off as one with it."""
    unchecked = replace(MEASURED, matches_single=None, reason="not checked, for single ended in oom")
    assert table([unchecked])[1].endswith("not checked, for single ended in oom")
