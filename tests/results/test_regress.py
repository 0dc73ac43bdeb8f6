"""`results.regress exact`: its exit codes, its report files, and that it starts fast."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.cases.selection import selected
from benchmarks.program.compiled import ROW_KEYS, read_program
from benchmarks.run.record import Record
from tests.benchmarks.program.programs import MESH, entry
from tests.commands import command, parsed
from tests.processes import ROOT
from tests.results.synthetic import edited, row, sweep, write_run

# Run the command where JAX, and everything else that is slow to import, cannot be imported.
WITHOUT = """
import sys
for absent in ("jax", "flax", "optax", "numpy", "scipy", "pandas", "matplotlib", "seaborn"):
    sys.modules[absent] = None
from benchmarks.cli.main import main
main(["regress", *sys.argv[1:]])
"""
main = command("regress exact")
FORMS = ("markdown", "junit", "action-json", "bencher-json")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A complete run."""
    return write_run(tmp_path / "base.json", sweep())


@pytest.fixture
def head(tmp_path: Path) -> Path:
    """The same run, with one case whose instructions rise by 10 and temporaries by 1%."""
    rows = sweep()
    facts = rows[5]["extra_info"]
    facts |= {
        "compiled.instructions": facts["compiled.instructions"] + 10,
        "memory.temp_bytes": int(1.01 * facts["memory.temp_bytes"]),
    }
    return write_run(tmp_path / "head.json", rows)


def run(*arguments: str | Path) -> int:
    """Run the command, and return its exit code."""
    return main([*map(str, arguments)])


def test_equal_runs_are_green(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run compared with itself exits with 0 and counts every case as the same."""
    assert run(base, base) == 0
    assert capsys.readouterr().out.endswith(f"green: {len(sweep())} same\n")


def test_a_regression_is_red(base: Path, head: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A worse counter exits with 1 and shows both values."""
    assert run(base, head) == 1
    shown = capsys.readouterr().out
    assert "compiled.instructions  900 -> 910 instructions         1.011x" in shown
    assert shown.endswith(f"red: 1 worse, {len(sweep()) - 1} same\n")


@pytest.mark.parametrize("also_in_base", [False, True])
def test_a_program_that_was_not_read_is_red(
    tmp_path: Path, also_in_base: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program of HEAD with an unknown custom call exits with 1 and names it, also if BASE has the same program."""
    rows = sweep()
    unread = read_program(entry('%c = f32[8,16] custom-call(%p), custom_call_target="foo"'), MESH).as_row()
    head = write_run(tmp_path / "head.json", [edited(rows[0], unread), *rows[1:]])
    base = head if also_in_base else write_run(tmp_path / "base.json", rows)
    assert run(base, head, "--allow", "*=50%") == 1
    shown = capsys.readouterr().out
    assert "not read: custom call foo" in shown
    assert shown.endswith(f"red: 1 worse, {len(rows) - 1} same\n")


COUNTED = *ROW_KEYS, "compiled.bytes_accessed", "compiled.compilations"
HERE, RENAMED = "test_step[data-data=2-b8]", "test_step[ddp-data=2-b8]"


@pytest.fixture
def recorded() -> list[dict[str, Any]]:
    """Rows of four compiled cases, made with the benchmarks' own record, each with a program of its own."""
    cases = selected(parsed("measure", ["--strategy=data,fsdp", "--devices=2"])).cases()
    records = [Record(case, "cpu", "cpu", virtual_devices=True, status="ok", compile_only=True) for case in cases]
    records = [
        replace(
            record,
            columns=dict.fromkeys(COUNTED, 1)
            | {"compiled.hash": str(record.case), "compiled.dtypes": "f32", "compiled.unread": None},
        )
        for record in records
    ]
    return [
        {"name": f"test_step[{row.case}]", "stats": None, "extra_info": row.extra_info}
        for row in (record.as_row() for record in records)
    ]


@pytest.mark.parametrize(
    ("name", "exit_code", "shown"),
    [
        (lambda name: name, 0, "green: 4 same"),
        (lambda name: name.replace(HERE, ""), 1, "red: 1 vanished, 3 same"),
        (lambda name: name.replace(HERE, RENAMED), 1, "red: 1 vanished, 1 new, 3 same"),
        (lambda name: f"{name}!", 4, "not comparable: no case of BASE is in HEAD"),
    ],
    ids=["none", "one gone", "one renamed", "all renamed"],
)
def test_a_recorded_case_may_not_go(
    tmp_path: Path,
    recorded: list[dict[str, Any]],
    name: Callable[[str], str],
    exit_code: int,
    shown: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A case that vanished exits with 1, even if another appeared; with no case in common there is no verdict."""
    kept = [row | {"name": name(row["name"])} for row in recorded if name(row["name"])]
    assert run(write_run(tmp_path / "base.json", recorded), write_run(tmp_path / "head.json", kept)) == exit_code
    said = capsys.readouterr().out
    assert shown in said
    assert (f"vanished  renamed? {RENAMED} is the same program" in said) == ("1 new" in shown)


def test_every_form_is_written(base: Path, head: Path, tmp_path: Path) -> None:
    """One comparison writes all report formats, each valid in its own grammar."""
    paths = {form: tmp_path / form for form in FORMS}
    assert run(base, head, *(f"--{form}={path}" for form, path in paths.items())) == 1
    assert paths["markdown"].read_text().startswith("### exact counters")
    assert len(ElementTree.parse(paths["junit"]).findall("testcase")) == len(sweep())
    assert len(json.loads(paths["bencher-json"].read_text())) == len(sweep())
    assert len(json.loads(paths["action-json"].read_text())) > len(sweep())


def test_a_refusal_is_written_over_an_old_report(base: Path, tmp_path: Path) -> None:
    """A refused comparison overwrites the green reports of an earlier one."""
    paths = {form: tmp_path / form for form in FORMS}
    options = [f"--{form}={path}" for form, path in paths.items()]
    assert run(base, base, *options) == 0
    assert run(base, tmp_path / "missing.json", *options) == 5
    assert "broken input" in paths["markdown"].read_text()
    assert ElementTree.parse(paths["junit"]).getroot().get("errors") == "1"
    assert json.loads(paths["bencher-json"].read_text()) == {}
    assert json.loads(paths["action-json"].read_text()) == []


def test_help_tells_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """--help of the command and of the gate lists the exit codes."""
    for name in ("regress exact", "regress paired"):
        with pytest.raises(SystemExit, match="0"):
            command(name)(["--help"])
        shown = capsys.readouterr().out
        assert all(f"\n  {code}  " in shown for code in range(6))


def seconds_of_comparison(rows: int, folder: Path) -> float:
    """Process time of comparing this many rows with all reports, which imports nothing slow."""
    found = [row("fsdp", "fsdp=8", batch) for batch in range(1, rows + 1)]
    for each in found:
        each["stats"] = {"data": [0.1 + 0.001 * i for i in range(30)]}
    base = write_run(folder / f"base{rows}.json", found)
    for each in found:
        each["extra_info"]["compiled.flops"] += 1
    head = write_run(folder / f"head{rows}.json", found)
    command = [sys.executable, "-c", WITHOUT, "exact", str(base), str(head)]
    command += [f"--{form}={folder / form}" for form in FORMS]
    before = os.times()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    after = os.times()
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.endswith(f"red: {rows} worse\n")
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_the_time_of_a_comparison_does_not_grow_faster_than_its_rows(tmp_path: Path) -> None:
    """Four times as many rows take less than five times as long; the fastest of two, for the machine may be busy."""
    few, many = (min(seconds_of_comparison(rows, tmp_path) for _ in range(2)) for rows in (500, 2000))
    assert many < 5 * few
