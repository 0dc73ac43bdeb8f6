"""The laws of the exact gate: what it catches, what it lets pass, and that it never calls nothing green."""

import json
import re
from copy import deepcopy
from math import nan
from pathlib import Path
from typing import Any

import pytest

from benchmarks.record import COMPILED_KEYS
from results.gates.counters import COUNTERS, read_snapshot
from results.gates.exact import compare, rule
from results.gates.metrics import METRICS, Allowance
from results.gates.verdict import Finding, Report
from results.records.reading import RecordError
from tests.results.synthetic import MACHINE, edited, failed, row, sweep, write_run

Rows = list[dict[str, Any]]

NAME = "test_step[fsdp-fsdp=8-b16]"
CASE = f"{NAME} synthetic float32 remat=none microbatches=1 sequence=128 params=10000000"
BEFORE = row("fsdp", "fsdp=8")["extra_info"]
SENT, TEMP, TOTAL, ALIAS = (
    BEFORE[name] for name in ("compiled.sent_bytes", "memory.temp_bytes", "memory.total_bytes", "memory.alias_bytes")
)
REGRESSIONS: dict[str, dict[str, Any]] = {
    "an all-reduce too many": {
        "compiled.collectives.all_reduce.outside_loops": 1,
        "compiled.sent_bytes.all_reduce.fsdp": 4096,
        "compiled.sent_bytes": SENT + 4096,
        "compiled.hash": "with an all-reduce",
    },
    "a gather hoisted out of the loop": {
        "compiled.collectives.all_gather.in_loops": 1,
        "compiled.collectives.all_gather.outside_loops": 1,
        "compiled.sent_bytes.all_gather.fsdp": SENT + 4096,
        "compiled.sent_bytes": SENT + 4096,
    },
    "temporaries doubled": {"memory.temp_bytes": 2 * TEMP, "memory.total_bytes": TOTAL + TEMP},
    "a donation lost": {"memory.alias_bytes": 0, "memory.total_bytes": TOTAL + ALIAS},
    "compiled twice": {"compiled.compilations": 2},
    "one FLOP more": {"compiled.flops": BEFORE["compiled.flops"] + 1},
}
MIRROR = {"better": "worse", "worse": "better", "vanished": "new", "new": "vanished", "same": "same"}


@pytest.fixture
def judge(tmp_path: Path):
    """Compare rows as if from files; the machine is HEAD's."""

    def judge(base: Rows, head: Rows, *allow: str, **machine: Any) -> Report:
        allowed = {name: allowance for text in allow for name, allowance in rule(text).items()}
        return compare(
            read_snapshot(write_run(tmp_path / "base.json", base)),
            read_snapshot(write_run(tmp_path / "head.json", head, **machine)),
            allowed,
        )

    return judge


def planted(**changes: Any) -> Rows:
    """The sweep, with other facts of one case."""
    rows = sweep()
    facts = next(row["extra_info"] for row in rows if row["name"] == NAME)
    facts |= changes
    return rows


def without(name: str) -> Rows:
    """The sweep less one case."""
    return [row for row in sweep() if row["name"] != name]


def remarkable(report: Report) -> list[Finding]:
    """What is not the same."""
    return [finding for finding in report.findings if finding.word != "same"]


@pytest.mark.parametrize("changes", REGRESSIONS.values(), ids=REGRESSIONS)
def test_a_planted_regression_is_caught(judge, changes: dict[str, Any]) -> None:
    """What a counter gains is worse, what it loses better, in the case where it was planted and nowhere else."""
    report = judge(sweep(), planted(**changes))
    assert report.verdict == "red"
    assert {finding.case for finding in remarkable(report)} == {CASE}
    judged = {name: value for name, value in changes.items() if name in COUNTERS}
    assert {finding.metric: finding.word for finding in remarkable(report)} == {
        name: "worse" if value > BEFORE[name] else "better" for name, value in judged.items()
    }
    for finding in remarkable(report):
        assert (finding.base, finding.head) == (BEFORE[finding.metric], changes[finding.metric])


@pytest.mark.parametrize("changes", REGRESSIONS.values(), ids=REGRESSIONS)
def test_the_way_back_is_the_mirror_image(judge, changes: dict[str, Any]) -> None:
    """With BASE and HEAD swapped worse is better, and a pure regression is a green improvement."""
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
        (planted(**{"compiled.flops": nan}), "not known in HEAD"),
    ],
    ids=["failed", "failed without numbers", "null", "NaN"],
)
def test_what_gave_a_number_must_give_one(judge, head: Rows, reason: str) -> None:
    """A case that passed and fails, or a counter that is lost, is worse, and the reason is said."""
    report = judge(sweep(), head)
    assert report.verdict == "red"
    assert [(finding.case, finding.word, finding.note) for finding in remarkable(report)] == [(CASE, "worse", reason)]
    assert judge(head, sweep()).verdict == "green"


def test_a_case_may_not_vanish(judge) -> None:
    """A case of BASE that is not in HEAD is red; one that is only in HEAD is new, and green."""
    report = judge(sweep(), without(NAME))
    assert report.verdict == "red"
    assert remarkable(report) == [Finding(CASE, "vanished")]
    report = judge(without(NAME), sweep())
    assert report.verdict == "green"
    assert remarkable(report) == [Finding(CASE, "new", note="ok")]


def test_a_renamed_case_is_recognised(judge) -> None:
    """If what vanished compiles to the program of a new case, the report asks whether it was renamed."""
    renamed = sweep()
    next(row for row in renamed if row["name"] == NAME)["name"] = "test_step[zero-fsdp=8-b16]"
    report = judge(sweep(), renamed)
    assert report.verdict == "red"
    assert {finding.word: finding.note for finding in remarkable(report)} == {
        "vanished": "renamed? test_step[zero-fsdp=8-b16] is the same program",
        "new": "ok",
    }


def test_a_case_run_otherwise_is_another_case(judge) -> None:
    """A case of other work is not compared with its namesake, and the report says what differs."""
    report = judge(sweep(), planted(dtype="bfloat16", **{"compiled.hash": "in halves"}))
    assert report.verdict == "red"
    assert remarkable(report)[0].note == "dtype is float32 in BASE and bfloat16 in HEAD"


def with_new_keys() -> Rows:
    """Rows of a meshmark that records more."""
    rows = sweep()
    for benchmark in rows:
        benchmark["extra_info"]["compiled.kernels"] = 7
    return rows


def with_other_times() -> Rows:
    """Rows of a slower moment."""
    rows = sweep()
    for benchmark in rows:
        benchmark["extra_info"] |= {"step_seconds_median": 9.0, "tokens_per_second": 1.0, "reason": "not checked"}
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
def test_what_is_no_change_is_green(judge, head: Rows, machine: dict[str, Any]) -> None:
    """Nothing that leaves the counters alone is red, whichever way it is compared."""
    report = judge(sweep(), head, **machine)
    assert report.verdict == "green"
    assert not remarkable(report)
    assert len(report.findings) == len(sweep())


def test_another_program_is_remarked_on(judge) -> None:
    """A hash says that a program changed, and judges nothing."""
    report = judge(sweep(), planted(**{"compiled.hash": "reordered"}))
    assert report.remarks == ("among the same: 1 another program",)
    assert judge(sweep(), planted(**{"compiled.hash": None})).remarks == ()


def test_what_failed_in_both_is_the_same(judge) -> None:
    """A case that BASE could not run either is no regression, however it ends."""
    base, head = failed("infeasible", "fsdp", "fsdp=16"), failed("oom", "fsdp", "fsdp=16")
    report = judge([*sweep(), base], [*sweep(), head])
    assert report.verdict == "green"
    assert report.findings[-1].note == "failed in both: oom: made up"
    assert report.remarks == ("among the same: 1 failed in both",)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"versions": MACHINE["versions"] | {"jax": "0.11.0"}}, "jax is 0.10.2 in BASE and 0.11.0 in HEAD: counters"),
        ({"xla_flags": "--xla_x=1"}, "xla_flags is  in BASE and --xla_x=1 in HEAD"),
        ({"device_kind": "H100", "device_count": 4}, "device_kind is cpu in BASE and H100 in HEAD; device_count is 8"),
        ({"cpu": {"arch": "ARM_8"}}, "arch is X86_64 in BASE and ARM_8 in HEAD"),
        ({}, "counters_fingerprint is compiler-a in BASE and compiler-b in HEAD"),
    ],
    ids=["version", "flags", "devices", "architecture", "unsaid"],
)
def test_other_compilers_do_not_compare(judge, changes: dict[str, Any], named: str) -> None:
    """Where equal programs may have other counters there is no verdict, and what differs is named."""
    report = judge(sweep(), planted(**REGRESSIONS["temporaries doubled"]), counters_fingerprint="compiler-b", **changes)
    assert report.verdict == "not comparable"
    assert report.reason.startswith(named)


@pytest.mark.parametrize(
    ("base", "head", "reason"),
    [
        ([row()], [row(dtype="bfloat16")], r"no case of BASE is in HEAD \(dtype is float32 in BASE and bfloat16 in"),
        (
            [row()],
            [row("fsdp", "fsdp=8")],
            r"no case of BASE is in HEAD \(BASE begins with test_step\[single-.*, HEAD with test_step\[fsdp-fsdp=8",
        ),
        ([failed("oom", "data", "data=2")], [row("data", "data=2")], "none of the 1 cases in both has a counter in"),
        (
            [edited(row(), dict.fromkeys(COUNTERS))],
            [row()],
            "none of the 1 cases in both has a counter in BASE: .* is ok",
        ),
    ],
    ids=["other work", "other cases", "BASE failed", "nothing counted"],
)
def test_nothing_compared_is_not_green(judge, base: Rows, head: Rows, reason: str) -> None:
    """Where BASE has no number that HEAD could be held to there is no verdict."""
    report = judge(base, head)
    assert report.verdict == "not comparable"
    assert re.search(reason, report.reason)


def test_an_allowance_is_a_bound(judge) -> None:
    """Worse by no more than is allowed is the same, with a note; by one more it is worse; others are still exact."""
    more = {"memory.temp_bytes": TEMP + 1000, "memory.total_bytes": TOTAL + 1000}
    report = judge(sweep(), planted(**more), "memory.t*_bytes=1000")
    assert report.verdict == "green"
    assert {finding.note for finding in report.findings if finding.case == CASE} == {"allowed: 1000"}
    assert all(finding.changed for finding in report.findings if finding.case == CASE)
    assert judge(sweep(), planted(**more), "memory.t*_bytes=999").verdict == "red"
    assert judge(sweep(), planted(**more), "memory.temp_bytes=1000").verdict == "red"
    assert judge(sweep(), planted(**more), "memory.t*_bytes=0", "memory.t*_bytes=1%").verdict == "green"


def test_a_metric_knows_which_way_is_better() -> None:
    """The same change of value is better or worse by the metric's direction, in which an allowance is counted."""
    lower, higher = METRICS["memory.temp_bytes"], METRICS["tokens_per_second"]
    tenth = Allowance.parse("10%")
    assert [lower.judge(100, head, tenth) for head in (99, 100, 110, 111)] == ["better", "same", "same", "worse"]
    assert [higher.judge(100, head, tenth) for head in (101, 100, 90, 89)] == ["better", "same", "same", "worse"]


def test_every_counter_of_a_row_is_held() -> None:
    """What the benchmarks count, the gate holds: all but the hash, which says only that something changed."""
    counted = {key for key in COMPILED_KEYS if key not in ("compiled.hash", "compiled.dtypes")}
    assert counted == {name for name in COUNTERS if name.startswith("compiled.")}


def test_judging_leaves_its_input_alone(tmp_path: Path) -> None:
    """A comparison is a function: what was read is the same afterwards."""
    snapshot = read_snapshot(write_run(tmp_path / "run.json", sweep()))
    before = deepcopy(snapshot)
    compare(snapshot, snapshot, {})
    assert snapshot == before


def test_fewer_cases_are_judged_alone_if_that_is_said(tmp_path: Path) -> None:
    """Cases that HEAD leaves out are vanished, and the report names the way to have them counted instead."""
    base = read_snapshot(write_run(tmp_path / "base.json", sweep()))
    fewer = read_snapshot(write_run(tmp_path / "fewer.json", sweep()[:3]))
    missing = len(sweep()) - 3
    report = compare(base, fewer, {})
    assert report.verdict == "red"
    assert f"{missing} vanished: if HEAD was run with fewer cases on purpose, judge those with --only-head-cases" in (
        report.remarks
    )
    report = compare(base, fewer, {}, only_head_cases=True)
    assert report.verdict == "green"
    assert f"{missing} of the cases in BASE are not in HEAD, and not judged" in report.remarks
    worse = [*sweep()[:2], edited(sweep()[2], {"compiled.flops": 10**12})]
    head = read_snapshot(write_run(tmp_path / "worse.json", worse))
    assert compare(base, head, {}, only_head_cases=True).verdict == "red"


def test_another_dtype_is_named(judge: Any) -> None:
    """More bytes in a program that computes in another dtype: the report says in which, where both rows do."""
    before, after = edited(row(), {"compiled.dtypes": "f32"}), {"compiled.dtypes": "bf16,f32", "compiled.flops": 1}
    (finding,) = judge([before], [edited(before, after)]).findings
    assert finding.note == "its arrays are bf16,f32, were f32"
    (finding,) = judge([row()], [edited(row(), after)]).findings
    assert finding.note == ""


def test_what_was_not_run_is_said(judge: Any) -> None:
    """Rows that were compiled alone cannot show what happens while steps run: the report names it."""
    (remark,) = judge([row()], [row(kind="compiled")]).remarks
    assert remark.startswith("not seen, for no step was run: a retrace in every step, a loss that is NaN; ")
    assert judge([row()], [row()]).remarks == ()


def test_rows_without_samples_are_read(tmp_path: Path) -> None:
    """Wherever a run has them."""
    path = write_run(tmp_path / "run.json", [row()])
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"untimed": [failed("oom", "data", "data=2")]}))
    assert [row["status"] for row in read_snapshot(path).rows.values()] == ["ok", "oom"]
    path.write_text(json.dumps(content | {"untimed": 7}))
    with pytest.raises(RecordError, match="has 7 as `untimed`, not a list"):
        read_snapshot(path)
