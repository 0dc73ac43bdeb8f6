"""The replayed step of `benchmarks.search.compile`: `--trace` writes it."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.devices.chips import GIB
from benchmarks.devices.topology import Topology
from tests.benchmarks.search.searching import TINY
from tests.commands import command

main = command("compile")


def test_the_replayed_step_is_written_as_a_trace(
    pretended: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`--trace` writes each lane of the replayed step: what the device does, its waits, and what each link sends."""
    pretended(80 * GIB)
    monkeypatch.setattr(Topology, "prepare", lambda self: None)  # JAX has started
    monkeypatch.setattr(Topology, "require_compiler", lambda self: None)
    path = tmp_path / "new" / "trace.json"
    assert main(["--topology=h100:1x4", "--strategy=fsdp", *TINY, f"--trace={path}"]) == 0
    assert f"meshmark plot {path}" in capsys.readouterr().out
    events = json.loads(path.read_text())["traceEvents"]
    lanes = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert [*lanes.values()] == ["compute", "memory", "exposed", "idle", "inside a host"]
    spent = dict.fromkeys(lanes.values(), 0.0)
    for event in events:
        spent[lanes[event["tid"]]] += event.get("dur", 0)
    assert spent["inside a host"] == pytest.approx(spent["exposed"])  # XLA's CPU backend waits for each collective
    assert max(event.get("ts", 0) + event.get("dur", 0) for event in events) == pytest.approx(
        spent["compute"] + spent["memory"] + spent["exposed"]
    )


def test_a_trace_is_of_one_step_on_a_known_chip(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Several cases, or devices without published figures, are refused before anything is compiled."""
    monkeypatch.setattr(Topology, "prepare", lambda self: None)
    traced = f"--trace={tmp_path / 'trace.json'}"
    for strategies, problem in (("fsdp,data", "2 are selected"), ("fsdp", "cpu:4 has no published figures")):
        with pytest.raises(SystemExit, match="2"):
            main(["--topology=cpu:4", f"--strategy={strategies}", *TINY[:-1], traced])
        assert problem in capsys.readouterr().err
