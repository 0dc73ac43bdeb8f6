"""`results.baseline` writes the exact gate's baseline, complete and readable, and refuses what could mislead."""

import json
from pathlib import Path
from typing import Any

import pytest

from results.gates.counters import COUNTERS, read_snapshot
from results.records.reading import RecordError
from tests.commands import command
from tests.results.synthetic import edited, failed, row, sweep, write_run

main, regress = command("regress baseline"), command("regress exact")

# A sweep, a case with an unknown counter, and an infeasible one.
ROWS = [
    *sweep([16]),
    edited(row("data", "data=2", 32), {"compiled.flops": None}),
    failed("infeasible", "fsdp", "fsdp=16"),
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A complete run."""
    return write_run(tmp_path / "run.json", ROWS)


@pytest.fixture
def baseline(run: Path, tmp_path: Path) -> Path:
    """The baseline of that run."""
    main([str(run), "--out", str(tmp_path / "baselines")])
    return tmp_path / "baselines" / "jax-0.10.2.json"


def test_it_is_written_below_the_current_folder(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never into the installed package, which is not the user's."""
    monkeypatch.chdir(tmp_path)
    main([str(run)])
    assert [*tmp_path.glob("baselines/*")] == [tmp_path / "baselines" / "jax-0.10.2.json"]


def rewritten(path: Path, **changes: Any) -> Path:
    """The baseline with some of its top-level facts replaced."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


def test_a_baseline_says_what_its_run_said(run: Path, baseline: Path) -> None:
    """A baseline that is read again has its run's cases, counters and machine, zeros and unknowns included."""
    there, back = read_snapshot(run), read_snapshot(baseline)
    assert (there.fingerprint, there.facts) == (back.fingerprint, back.facts)
    assert there.counters() == back.counters()
    kept = "status", "reason", "compiled.hash", *there.counters()
    assert {case: {key: row[key] for key in kept} for case, row in there.rows.items()} == {
        case: {key: row[key] for key in kept} for case, row in back.rows.items()
    }
    assert regress([str(baseline), str(run)]) == 0
    assert regress([str(run), str(baseline)]) == 0


def test_a_baseline_holds_a_later_run(baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A counter that rises above the baseline is red, also from a zero that the file leaves out."""
    worse = [edited(row(), {"compiled.collectives.permute.in_loops": 1}), *ROWS[1:]]
    assert regress([str(baseline), str(write_run(tmp_path / "head.json", worse))]) == 1
    assert "compiled.collectives.permute.in_loops  0 -> 1 collectives" in capsys.readouterr().out


def test_a_refresh_is_readable(run: Path, baseline: Path, tmp_path: Path) -> None:
    """The order of rows does not change the file, and another counter changes one line."""
    before = baseline.read_text().splitlines()
    changed = [edited(row(), {"compiled.instructions": 901}), *ROWS[1:]]
    main([str(write_run(run, changed[::-1])), "--out", str(baseline.parent)])
    after = baseline.read_text().splitlines()
    assert [(old, new) for old, new in zip(before, after, strict=True) if old != new] == [
        ('   "compiled.instructions": 900,', '   "compiled.instructions": 901,')
    ]
    assert max(map(len, after)) < 120


def test_zeros_are_left_out_and_unknowns_named(baseline: Path) -> None:
    """A case has a line for each nonzero counter, and a list of unknown ones, so they are not read as zero."""
    cases = {case["name"]: case for case in json.loads(baseline.read_text())["cases"]}
    assert set(cases["test_step[data-data=2-b32]"]) & set(COUNTERS) == {
        *("compiled.bytes_accessed", "compiled.compilations", "compiled.instructions"),
        *("memory.argument_bytes", "memory.output_bytes", "memory.temp_bytes", "memory.total_bytes"),
    }
    assert cases["test_step[data-data=2-b32]"]["unknown"] == ["compiled.flops"]
    assert not any("unknown" in case for name, case in cases.items() if name != "test_step[data-data=2-b32]")
    assert not set(cases["test_step[fsdp-fsdp=16-b16]"]) & set(COUNTERS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema_version": 2}, "has schema_version 2 and this meshmark reads 4; write it again with"),
        ({"schema_version": None}, "has schema_version None and this meshmark reads 4"),
        ({"better": None}, "does not say which way its metrics are `better`"),
        (
            {"better": {}},
            "says of memory.argument_bytes that better is 'unknown', and this meshmark that it is 'lower'",
        ),
        ({"cases": []}, r"has no case; write it again with `meshmark regress baseline RUN.json`"),
        ({"cases": {}}, "cases is {}; it must be a list"),
        ({"cases": [{"name": "test_step[x]", "status": "ok"}]}, r"test_step\[x\] lacks preset, microbatches"),
        ({"machine_info": {}}, "machine_info lacks counters_fingerprint, versions"),
    ],
)
def test_a_baseline_that_could_mislead_is_refused(baseline: Path, changes: dict[str, Any], message: str) -> None:
    """A baseline of another schema, or without cases, machine or directions, raises RecordError with the cause."""
    with pytest.raises(RecordError, match=message):
        read_snapshot(rewritten(baseline, **changes))


def test_directions_must_agree(baseline: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A baseline that disagrees on which way a metric is better exits with 5."""
    better = json.loads(baseline.read_text())["better"] | {"memory.temp_bytes": "higher"}
    assert regress([str(rewritten(baseline, better=better)), str(run)]) == 5
    assert "memory.temp_bytes that better is 'higher', and this meshmark that it is 'lower'" in capsys.readouterr().out
    better |= {"memory.temp_bytes": "lower", "compiled.kernels": "lower"}
    assert regress([str(rewritten(baseline, better=better)), str(run)]) == 5
    assert "compiled.kernels that better is 'lower', and this meshmark that it is 'unknown'" in capsys.readouterr().out
