"""What is compiled waits for what its schedule leaves exposed, and computes for as long as predicted."""

import json
from pathlib import Path
from typing import Any

import jax
import pytest

from benchmarks.cases.case import Case
from benchmarks.devices.topology import Topology
from benchmarks.run.pool import Outcome
from benchmarks.search import compiled as module
from benchmarks.search.compiled import (
    EXPOSED,
    SENDING,
    compile_best,
    compiled,
    compiled_record,
    exposed_seconds,
    lines,
)
from benchmarks.search.ranking import fastest_first
from benchmarks.simulate.machines import machine
from benchmarks.simulate.program import ideal
from strategies import GPTConfig, MeshSpec
from strategies.config import Dtype
from tests.benchmarks.search.rankings import ranking
from tests.benchmarks.simulate.host import FILE
from tests.commands import command

main = command("search")

H100S = machine("meshmark_gpus", "h100")
CONFIG = GPTConfig(layers=2, embed=16, heads=2, vocab=256, sequence=8)
FOUR = Topology.parse("h100:1x4")
TINY = ("--model=layers=2,embed=16,heads=2,vocab=256,sequence=8", "--batch-size=8", "--dtype=float32")


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """H100 GPUs, simulated by virtual devices, with a compiler that works in this process."""
    monkeypatch.setattr(Topology, "devices", lambda self: jax.devices()[:4])
    monkeypatch.setattr(Topology, "prepare", lambda self: None)
    monkeypatch.setattr(Topology, "compiler_version", "pretended 1")
    monkeypatch.setattr(
        module, "run_in_processes", lambda cases, work, *_: [Outcome(each, work(each), "", 1.0) for each in cases]
    )


@pytest.mark.usefixtures("pretended")
def test_exposed_communication_is_that_of_the_replay_at_the_rates_of_the_machine() -> None:
    """With published rates it is the row's replay; half of the bandwidth takes twice as long where all is waited for,
    as the CPU's compiler does.
    """
    case = Case("fsdp", MeshSpec.parse("fsdp=4"), "tiny", CONFIG, 4, 1, "float32", "dots", topology=FOUR)
    record = compiled_record(case)
    assert record.estimate
    assert record.estimate.replay
    exposed = exposed_seconds(record, ideal("h100"))
    assert exposed == pytest.approx(record.estimate.replay.parts["exposed"])
    half = exposed_seconds(record, ideal("h100").with_changes({"link_bandwidth": "0.5x"}))
    assert half is not None
    assert exposed is not None
    assert half > 1.2 * exposed > 0


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize(("dtype", "peak"), [("bfloat16", 989e12), ("float16", 989e12), ("float32", 67e12)])
def test_a_compiled_step_is_priced_at_the_peak_of_its_dtype(dtype: Dtype, peak: float) -> None:
    """The roofline's matmuls, and with them the replay and MFU, take the rate of an H100's datasheet for the dtype."""
    case = Case("fsdp", MeshSpec.parse("fsdp=4"), "tiny", CONFIG, 4, 1, dtype, "dots", topology=FOUR)
    row: dict[str, Any] = compiled_record(case).as_row().extra_info
    assert row["roofline.compute_seconds"] == pytest.approx(row["compiled.flops"] / peak, rel=1e-2)


@pytest.mark.usefixtures("pretended")
def test_the_command_replaces_the_declared_overlap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A compiled step is the predicted one with the exposed communication of its schedule; money is of the fastest."""
    path = tmp_path / "advice.json"
    asked = [*TINY, "--topology=h100:1x4", "--strategy=fsdp,data", "--microbatches=1", "--remat=dots"]
    asked += ["--compile=2", f"--json={path}", "--tokens=1e9"]
    assert main(asked) == 0
    said, rows = capsys.readouterr().out, json.loads(path.read_text())["candidates"]
    tried = [row for row in rows if row["compiled.seconds"]]
    assert len(tried) == 2
    for row in tried:
        sending = sum(row["parts"].get(name, 0.0) for name in SENDING)
        assert row["compiled.predicted_exposed_seconds"] == pytest.approx(sending)
        without = row["predicted_seconds"] - sending
        assert row["compiled.seconds"] == pytest.approx(without + row["compiled.exposed_seconds"])
        assert row["compiled.exposed_seconds"] > 0
        assert row["compiled.needed_bytes"] > 0
    fastest = min(row["compiled.seconds"] for row in tried)
    assert "as compiled: after each prediction" in said
    assert f"as compiled: {1e9 / (8 * 8) * fastest / 86400:,.1f} days" in " ".join(said.split())


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """The cases that are sent to the compiler, which gives the same answer for each."""
    cases: list[Case] = []

    def run_in_processes(missing: list[Case], *_: Any) -> Any:
        cases.extend(missing)
        return [Outcome(case, {"status": "ok", "reason": "", **FAST}, "", 1.0) for case in missing]

    monkeypatch.setattr(module, "run_in_processes", run_in_processes)
    return cases


FAST = {EXPOSED: 0.1, "chip.needed_bytes": 1}


def test_each_layout_is_compiled_before_its_variations(sent: list[Case]) -> None:
    """The best of each strategy and set of axes, then the best of the others."""
    found = ranking(strategies=("fsdp", "data"), microbatches=(1,))
    best = compile_best(found, 5, 1, 60.0)
    assert len({each.candidate.case for each in best}) == len(best) == 5
    others = [each for each in found.fitting if each not in found.best_per_layout]
    assert sent == [each.case for each in (*found.best_per_layout, *others[:3])]


@pytest.mark.parametrize(
    ("result", "ended", "reason"),
    [
        ({"status": "oom", "reason": "needs 90 GiB", EXPOSED: 1.0}, "", "needs 90 GiB"),
        ({"status": "ok", "reason": "", EXPOSED: None}, "", "its schedule cannot be read"),
        (None, "not compiled within 1 s", "not compiled within 1 s"),
    ],
)
def test_what_has_no_compiled_step_says_why(result: dict[str, Any] | None, ended: str, reason: str) -> None:
    """It comes last, without seconds; the report says why below its table."""
    found = ranking(strategies=("data",), microbatches=(1,), remats=("dots", "full"))
    cases = [each.case for each in found.fitting[:2]]
    fast = {"status": "ok", "reason": "", **FAST}
    outcomes = [Outcome(cases[0], result, ended, 1.0), Outcome(cases[1], fast, "", 1.0)]
    tried = fastest_first(map(compiled, found.fitting, outcomes))
    assert [found.ranks[each.candidate.case] for each in tried] == [2, 1]
    assert (tried[1].seconds, tried[1].columns["compiled.reason"]) == (None, reason)
    assert lines(tried, found)[-1] == f"rank 1: {reason}"


@pytest.mark.parametrize(
    ("topology", "problem"),
    [("cpu:8x1", "on cpu:8x1 no communication overlaps"), ("h100:1x8", "needs a compiler that is not installed")],
)
def test_without_a_compiler_that_overlaps_nothing_is_compiled(
    topology: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused with the reason, before anything is predicted."""
    monkeypatch.setattr(Topology, "compiler_version", None)
    (tmp_path / "host.json").write_text(json.dumps(FILE))
    host = [f"--machine={tmp_path / 'host.json'}"] if topology == "cpu:8x1" else []
    with pytest.raises(SystemExit, match="2"):
        main([*TINY, f"--topology={topology}", *host, "--compile=1"])
    assert problem in capsys.readouterr().err
