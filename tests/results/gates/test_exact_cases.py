"""Which cases and runs the exact gate compares; where it compares nothing, it never says green."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from results.gates.counters import COUNTERS, read_snapshot
from results.gates.exact import compare
from results.records.reading import RecordError
from tests.results.gates.changed_rows import NAME, REGRESSIONS, Rows, planted, remarkable
from tests.results.synthetic import MACHINE, edited, failed, row, sweep, write_run


def test_a_counter_may_not_vanish(judge) -> None:
    """Bytes along an axis that BASE has and HEAD lacks are not known in HEAD, and red; without any nothing is lost."""
    (head,) = [row for row in sweep() if row["name"] == NAME]
    sent, unsent = "compiled.sent_bytes.all_gather.fsdp", "compiled.sent_bytes.all_gather.tensor"
    lacking = {key: value for key, value in head["extra_info"].items() if key not in (sent, unsent)}
    report = judge([head], [head | {"extra_info": lacking}])
    assert [(finding.metric, finding.note) for finding in remarkable(report)] == [(sent, "not known in HEAD")]
    assert report.verdict == "red"


def test_another_dtype_makes_another_case(judge) -> None:
    """A case with another dtype is another case, and the report says how they differ."""
    report = judge(sweep(), planted(dtype="bfloat16", **{"compiled.hash": "in halves"}))
    assert report.verdict == "red"
    assert remarkable(report)[0].note == "dtype is float32 in BASE and bfloat16 in HEAD"


def test_what_failed_in_both_is_the_same(judge) -> None:
    """A case that failed in BASE and in HEAD is the same, whatever its statuses."""
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
    """Runs of other compiler versions, flags, devices or architectures are not comparable, and the report says why."""
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
    """Where BASE has no counter for any case of HEAD, the verdict is `not comparable`, never green."""
    report = judge(base, head)
    assert report.verdict == "not comparable"
    assert re.search(reason, report.reason)


def test_only_head_cases_leaves_missing_cases_out(tmp_path: Path) -> None:
    """Cases missing in HEAD are vanished; --only-head-cases, which a remark names, leaves them out."""
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


def test_rows_that_were_not_run_are_remarked_on(judge: Any) -> None:
    """A comparison of rows that were only compiled remarks that it cannot see retraces in steps and NaN losses."""
    (remark,) = judge([row()], [row(kind="compiled")]).remarks
    assert remark.startswith("not checked, because no step was run: a retrace in every step, a loss that is NaN; ")
    assert judge([row()], [row()]).remarks == ()


def test_rows_without_samples_are_read(tmp_path: Path) -> None:
    """Rows under `untimed` are read like the others; anything but a list there is refused."""
    path = write_run(tmp_path / "run.json", [row()])
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"untimed": [failed("oom", "data", "data=2")]}))
    assert [row["status"] for row in read_snapshot(path).rows.values()] == ["ok", "oom"]
    path.write_text(json.dumps(content | {"untimed": 7}))
    with pytest.raises(RecordError, match="untimed is 7; it must be a list"):
        read_snapshot(path)
