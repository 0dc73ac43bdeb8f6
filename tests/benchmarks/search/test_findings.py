"""What a search reports: the order of compiled candidates, and the reasons for which candidates are infeasible."""

import dataclasses

import pytest

from benchmarks.cases.case import Case
from benchmarks.commandline import tables
from benchmarks.devices.chips import CHIPS
from benchmarks.devices.topology import Topology
from benchmarks.search.findings import Finding, compiled_table, reason_template
from benchmarks.search.ranking import evaluated
from strategies import GPTConfig, MeshSpec


def test_reasons_of_one_kind_differ_in_numbers_only() -> None:
    """Two reasons are of one kind if they differ in numbers and in the suggested way out only."""
    one, other = ("tensor=3 does not divide heads=8; tensor can be 1", "tensor=16 does not divide heads=8; or 2")
    assert reason_template(one) == reason_template(other) != reason_template("context=16 does not divide heads=8; or 2")


def compiled(case: Case, exposed_seconds: float | None) -> Finding:
    """A candidate whose compiled step computes for a second and waits for so long, or is not replayed."""
    roofline = {"roofline.compute_seconds": 1.0, "roofline.memory_seconds": 0.5, "roofline.network_seconds": 0.5}
    parts = {"compute": 1.0, "memory": 0.0, "exposed": exposed_seconds, "idle": 0.0}
    replayed = {f"replay.{part}_seconds": seconds for part, seconds in parts.items()}
    columns = {"memory.total_bytes": 1, "compiled.sent_bytes": 1, "compile_seconds": 1.0, "status": "ok"}
    return Finding(1, evaluated(case, CHIPS["v5e"]), CHIPS["v5e"], {**columns, **roofline, **replayed})


def test_compiled_candidates_are_ranked_by_replayed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of steps with the same bound, the one that waits least comes first; a step that is not replayed has its bound."""
    config = GPTConfig(layers=2, embed=16, heads=2, vocab=256, sequence=8)
    case = Case("fsdp", MeshSpec.parse("fsdp=4"), "tiny", config, 4, 1, "float32", "dots")
    case = dataclasses.replace(case, topology=Topology.parse("v5e:2x2"))
    waits, hides, unknown = (compiled(case, seconds) for seconds in (1.0, 0.25, None))
    rows = [each.as_row() for each in (waits, hides, unknown)]
    assert rows[0].keys() == rows[1].keys() == rows[2].keys()
    assert [row["compiled.step_seconds"] for row in rows] == [2, 1.25, 1]
    assert [row["compiled.exposed_seconds"] for row in rows] == [1, 0.25, None]
    speeds = [row["compiled.tokens_per_second_per_device"] for row in rows]
    assert speeds == [8 / 2, 8 / 1.25, 8]
    monkeypatch.setattr(tables, "PLAIN_WIDTH", 400)
    tokens = [line.split()[-6] for line in compiled_table([waits, hides])[1:]]
    assert tokens == ["6", "4"]
