"""A run of a user's own strategy, whose mesh axis meshmark does not know, in every command that reads runs."""

import csv
import io
import json
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from results.gates.counters import read_snapshot
from tests.commands import command
from tests.results.documents import carried
from tests.results.synthetic import MIB, edited, row, write_run

OWN = "compiled.sent_bytes.all_reduce.toy"
"""The column of what is sent over the axis of the strategy."""
NAME = "test_step[mine-toy=2-b16]"


def run(path: Path, sent: int, seconds: float = 1.0) -> Path:
    """A run of `single` and of the strategy, which sends this many bytes over its axis."""
    facts: dict[str, Any] = {"strategy": "mine", "mesh": "toy=2", "compiled.hash": "mine", "compiled.sent_bytes": sent}
    mine = edited(row("data", "data=2"), {**facts, OWN: sent, "between_processes.sent_bytes.toy": 0})
    samples = {"stats": {"data": [seconds]}}
    return write_run(path, [edited(row(), {OWN: 0}) | samples, mine | samples | {"name": NAME}])


def test_an_own_axis_is_a_column_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its bytes are judged, shown, exported, merged, stored and drawn as those of built-in axes."""

    def shown(name: str, *arguments: object, status: int = 0) -> str:
        assert command(name)([str(argument) for argument in arguments]) == status
        return capsys.readouterr().out

    base, worse = run(tmp_path / "base.json", MIB), run(tmp_path / "worse.json", 2 * MIB)
    change, case = f"{OWN} 1,048,576 -> 2,097,152 bytes 2.000x", str([*read_snapshot(base).rows][1])
    files = {form: tmp_path / form for form in ("markdown", "junit", "action-json", "bencher-json")}
    told = shown("regress exact", base, worse, *(f"--{form}={path}" for form, path in files.items()), status=1)
    assert change in " ".join(told.split())
    assert change in unescape(files["junit"].read_text())
    assert change in files["markdown"].read_text().replace(" | ", " ")
    assert json.loads(files["bencher-json"].read_text())[case][OWN] == {"value": 2 * MIB}
    entries = {entry["name"]: entry for entry in json.loads(files["action-json"].read_text())}
    assert entries[f"{case} {OWN}"] | {"unit": "bytes", "value": 2 * MIB} == entries[f"{case} {OWN}"]
    shown("regress exact", base, worse, "--allow=compiled.sent_bytes*=100%")
    shown("regress exact", base, worse, "--allow=compiled.sent_bytes=100%", f"--allow={OWN}=100%")

    assert change in " ".join(shown("compare", base, worse).split())

    header, single, mine = csv.reader(io.StringIO(shown("export", base, "--format=csv")))
    assert (single[header.index(OWN)], mine[header.index(OWN)]) == ("0", str(MIB))

    merged = tmp_path / "merged.json"
    shown("merge", base, run(tmp_path / "again.json", MIB, seconds=1.1), "--out", merged)
    shown("regress exact", merged, worse, status=1)

    stored = shown("regress baseline", merged, "--out", tmp_path).strip()
    assert json.loads(Path(stored).read_text())["better"][OWN] == "lower"
    shown("regress exact", stored, base)
    assert change in " ".join(shown("regress exact", stored, worse, status=1).split())

    shown("plot", merged, "--out", tmp_path / "figures")
    assert (tmp_path / "figures" / "memory_per_device.png").exists()
    shown("page", merged, "--out", tmp_path / "page.html")
    assert carried(tmp_path / "page.html")["parts"][0]["columns"][OWN] == [0, MIB]
