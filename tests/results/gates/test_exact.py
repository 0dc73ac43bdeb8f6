"""What the exact gate says of counters that change: what it catches, and what it lets pass."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cases.columns import column_of, gated
from results.gates.counters import read_snapshot
from results.gates.exact import Allowance, compare
from results.gates.exact import judge as judge_change
from tests.benchmarks.run.records import MEASURED
from tests.results.gates.changed_rows import BEFORE, CASE, REGRESSIONS, TEMP, TOTAL, Rows, planted, remarkable
from tests.results.synthetic import MACHINE, edited, failed, row, sweep, write_run

MIRROR = {"better": "worse", "worse": "better", "vanished": "new", "new": "vanished", "same": "same"}


@pytest.mark.parametrize("changes", REGRESSIONS.values(), ids=REGRESSIONS)
def test_a_planted_regression_is_caught(judge, changes: dict[str, Any]) -> None:
    """A counter that rises is worse, one that falls is better, in the planted case and in no other."""
    report = judge(sweep(), planted(**changes))
    assert report.verdict == "red"
    assert {finding.case for finding in remarkable(report)} == {CASE}
    judged = {name: changes[name] for name in gated(changes, "exact")}
    assert {finding.metric: finding.word for finding in remarkable(report)} == {
        name: "worse" if value > BEFORE[name] else "better" for name, value in judged.items()
    }
    for finding in remarkable(report):
        assert (finding.base, finding.head) == (BEFORE[finding.metric], changes[finding.metric])


@pytest.mark.parametrize("changes", REGRESSIONS.values(), ids=REGRESSIONS)
def test_swapping_base_and_head_mirrors_the_verdict(judge, changes: dict[str, Any]) -> None:
    """With BASE and HEAD swapped, worse becomes better, and a pure regression a green improvement."""
    there, back = judge(sweep(), planted(**changes)), judge(planted(**changes), sweep())
    words = {finding.metric: finding.word for finding in remarkable(there)}
    assert {finding.metric: MIRROR[finding.word] for finding in remarkable(back)} == words
    assert back.verdict == ("red" if "better" in words.values() else "green")


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (planted(status="oom", reason="16 GiB of 12"), "oom: 16 GiB of 12"),
        (planted(**failed("error", "fsdp", "fsdp=8")["extra_info"]), "error: made up"),
        (planted(**{"memory.temp_bytes": None}), "not known in HEAD"),
    ],
    ids=["failed", "failed without numbers", "null"],
)
def test_a_lost_number_is_worse(judge, head: Rows, reason: str) -> None:
    """A case that now fails, or a counter that is now unknown, is worse, with the reason."""
    report = judge(sweep(), head)
    assert report.verdict == "red"
    assert [(finding.case, finding.word, finding.note) for finding in remarkable(report)] == [(CASE, "worse", reason)]
    assert judge(head, sweep()).verdict == "green"


def with_new_keys() -> Rows:
    """The sweep of a newer meshmark that records one more key."""
    rows = sweep()
    for benchmark in rows:
        benchmark["extra_info"]["compiled.kernels"] = 7
    return rows


def with_other_times() -> Rows:
    """The sweep with slower step times."""
    rows = sweep()
    for benchmark in rows:
        benchmark["extra_info"] |= {
            "step_seconds_median": 9.0,
            "step_seconds_high": 9.5,
            "tokens_per_second": 1.0,
            "reason": "not checked",
        }
        benchmark["stats"] = {"data": [9.0, 9.0]}
    return rows


OTHER_BRAND = {"cpu": {"arch": "X86_64", "brand_raw": "another"}, "fingerprint": "machine-b"}
UNCHANGED: dict[str, tuple[Rows, dict[str, Any]]] = {
    "the same": (sweep(), {}),
    "another order": (sweep()[::-1], {}),
    "another hash alone": (planted(**{"compiled.hash": "reordered"}), {}),
    "other times": (with_other_times(), {}),
    "another brand of machine": (sweep(), OTHER_BRAND),
    "another python": (sweep(), {"versions": MACHINE["versions"] | {"python": "3.13.1"}}),
    "new keys": (with_new_keys(), {}),
}


@pytest.mark.parametrize(("head", "machine"), UNCHANGED.values(), ids=UNCHANGED)
def test_changes_outside_the_counters_are_green(judge, head: Rows, machine: dict[str, Any]) -> None:
    """Changes that leave all counters alone are green: order, hash, times, machine brand, Python, new keys."""
    report = judge(sweep(), head, **machine)
    assert report.verdict == "green"
    assert not remarkable(report)
    assert len(report.findings) == len(sweep())


def test_another_program_is_remarked_on(judge) -> None:
    """Another hash with equal counters is a remark and no finding."""
    report = judge(sweep(), planted(**{"compiled.hash": "reordered"}))
    assert report.remarks == ("among the same: 1 another program",)
    assert judge(sweep(), planted(**{"compiled.hash": None})).remarks == ()


def test_an_allowance_is_a_bound(judge) -> None:
    """A counter within its allowance is the same, with a note; beyond it by one it is worse; others stay exact."""
    more = {"memory.temp_bytes": TEMP + 1000, "memory.total_bytes": TOTAL + 1000}
    report = judge(sweep(), planted(**more), "memory.t*_bytes=1000")
    assert report.verdict == "green"
    assert {finding.note for finding in report.findings if finding.case == CASE} == {"allowed: 1000"}
    assert all(finding.changed for finding in report.findings if finding.case == CASE)
    assert judge(sweep(), planted(**more), "memory.t*_bytes=999").verdict == "red"
    assert judge(sweep(), planted(**more), "memory.temp_bytes=1000").verdict == "red"
    assert judge(sweep(), planted(**more), "memory.t*_bytes=0", "memory.t*_bytes=1%").verdict == "green"


def test_a_metric_knows_which_way_is_better() -> None:
    """Whether a change is better or worse, and what an allowance permits, depends on the metric's direction."""
    tenth = Allowance.parse("10%")
    for better, heads in {"lower": (99, 100, 110, 111), "higher": (101, 100, 90, 89)}.items():
        words = [judge_change(better, 100, head, tenth) for head in heads]
        assert words == ["better", "same", "same", "worse"]


def test_every_counter_of_a_row_is_held() -> None:
    """The gate compares every number of a row's compiled program."""
    keys = [key for key in MEASURED.as_extra_info() if key.startswith("compiled.")]
    assert {key for key in keys if (column := column_of(key)) and column.is_number} == gated(keys, "exact").keys()


def test_judging_leaves_its_input_alone(tmp_path: Path) -> None:
    """A comparison does not change its input."""
    snapshot = read_snapshot(write_run(tmp_path / "run.json", sweep()))
    before = deepcopy(snapshot)
    compare(snapshot, snapshot, {})
    assert snapshot == before


def test_another_dtype_is_named(judge: Any) -> None:
    """A finding notes the dtypes of both programs if both rows record them and they differ."""
    before, after = edited(row(), {"compiled.dtypes": "f32"}), {"compiled.dtypes": "bf16,f32", "compiled.flops": 1}
    (finding,) = judge([before], [edited(before, after)]).findings
    assert finding.note == "its arrays are bf16,f32, were f32"
    (finding,) = judge([row()], [edited(row(), after)]).findings
    assert finding.note == ""
