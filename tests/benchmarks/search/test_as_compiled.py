"""What is compiled waits for what its schedule leaves exposed, and computes for as long as predicted."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from benchmarks import feasibility
from benchmarks.advise import main
from benchmarks.cases.case import Case
from benchmarks.compile import compile_entry
from benchmarks.devices.topology import Topology
from benchmarks.run.pool import Outcome
from benchmarks.search.as_compiled import EXPOSED_COLUMN, SENDING, exposed_seconds, found, to_compile
from benchmarks.seconds.machine import Machine
from benchmarks.seconds.machines import machine
from strategies import GPTConfig, MeshSpec
from tests.benchmarks.search.test_advised import choices
from tests.benchmarks.seconds.host import FILE

H100S = machine("meshmark_gpus", "h100")
CONFIG = GPTConfig(layers=2, embed=16, heads=2, vocab=256, sequence=8)
FOUR = Topology.parse("h100:1x4")
TINY = ("--layers=2", "--embed=16", "--heads=2", "--vocab=256", "--sequence=8", "--batch-size=8", "--dtype=float32")


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """H100 GPUs, simulated by virtual devices, with a compiler that works in this process."""
    monkeypatch.setattr(Topology, "devices", lambda self: jax.devices()[:4])
    monkeypatch.setattr(Topology, "prepare", lambda self: None)
    monkeypatch.setattr(Topology, "compiler_version", "pretended 1")
    monkeypatch.setattr(
        feasibility, "run_in_processes", lambda cases, work, *_: [Outcome(each, work(each), "", 1.0) for each in cases]
    )


def published() -> Machine:
    """The machine whose steps reach all that is published."""
    reached = replace(
        H100S.constants, matmul_efficiency=1.0, memory_efficiency=1.0, link_efficiency=1.0, network_efficiency=1.0
    )
    return replace(H100S, matmul_flops_per_second=H100S.chip.flops_per_second, float32_share=1.0, constants=reached)


@pytest.mark.usefixtures("pretended")
def test_exposed_communication_is_that_of_the_replay_at_the_rates_of_the_machine() -> None:
    """With all published rates it is the row's replay; half of the bandwidth takes twice as long where all is waited
    for, as the CPU's compiler does.
    """
    case = Case("fsdp", MeshSpec.parse("fsdp=4"), "tiny", CONFIG, 4, 1, "float32", "dots", topology=FOUR)
    entry = compile_entry(case)
    assert entry.record.estimate
    assert entry.record.estimate.replay
    exposed = exposed_seconds(entry, published())
    assert exposed == pytest.approx(entry.record.estimate.replay.parts["exposed"])
    half = exposed_seconds(entry, published().with_changes({"link_bandwidth": "0.5x"}))
    assert half is not None
    assert exposed is not None
    assert half > 1.2 * exposed > 0


@pytest.mark.usefixtures("pretended")
def test_the_command_replaces_the_declared_overlap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A compiled step is the predicted one with the exposed communication of its schedule; money is of the fastest."""
    path = tmp_path / "advice.json"
    asked = [*TINY, "--topology=h100:1x4", "--strategy=fsdp,data", "--microbatches=1", "--remat=dots"]
    asked += ["--compile=2", f"--cache={tmp_path / 'cache'}", f"--json={path}", "--tokens=1e9"]
    assert main(asked) == 0
    said, told = capsys.readouterr().out, json.loads(path.read_text())
    assert len(told["compiled"]) == 2
    for each in told["compiled"]:
        row = told["choices"][each["rank"] - 1]
        sending = sum(row["parts"].get(name, 0.0) for name in SENDING)
        assert each["predicted_exposed_seconds"] == pytest.approx(sending)
        declared = row["predicted_seconds"] - sending
        assert each["compiled_seconds"] == pytest.approx(declared + each["exposed_seconds"])
        assert each["exposed_seconds"] > 0
        assert each["needed_bytes"] > 0
    fastest = told["compiled"][0]["compiled_seconds"]
    assert fastest == min(each["compiled_seconds"] for each in told["compiled"])
    assert "as compiled: the compiler's schedule" in said
    assert f"as predicted: {1e9 / (8 * 8) * fastest / 86400:,.1f} days" in " ".join(said.split())
    assert main(asked) == 0
    assert "2 of 2 were compiled before" in capsys.readouterr().err


def test_each_layout_is_compiled_before_its_variations() -> None:
    """The best of each strategy and set of axes, then the best of the others, each once."""
    ranked = choices(strategies=("fsdp", "data"), microbatches=(1,))
    chosen = to_compile(ranked, 5)
    assert chosen[:2] == ranked.of_each_layout()
    assert len({id(each) for each in chosen}) == 5
    assert chosen[2:] == [each for each in ranked.best if each not in chosen[:2]][:3]


@pytest.mark.parametrize(
    ("result", "ended", "reason"),
    [
        ({"status": "oom", "reason": "needs 90 GiB", EXPOSED_COLUMN: 1.0}, "", "needs 90 GiB"),
        ({"status": "ok", "reason": "", EXPOSED_COLUMN: None}, "", "its schedule cannot be read"),
        (None, "not compiled within 1 s", "not compiled within 1 s"),
    ],
)
def test_what_has_no_compiled_step_says_why(result: dict[str, Any] | None, ended: str, reason: str) -> None:
    """It comes last, without seconds."""
    ranked = choices(strategies=("data",), microbatches=(1,), remats=("dots", "full"))
    fast = {"status": "ok", "reason": "", EXPOSED_COLUMN: 0.1, "chip.needed_bytes": 1}
    cases = [each.case for each in ranked.best[:2]]
    outcomes = [Outcome(cases[0], result, ended, 1.0), Outcome(cases[1], fast, "", 1.0)]
    compiled = found(ranked, outcomes)
    assert [each.rank for each in compiled] == [2, 1]
    assert (compiled[1].step_seconds, compiled[1].reason) == (None, reason)


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
        main([*TINY, f"--topology={topology}", *host, "--compile=1", f"--cache={tmp_path}"])
    assert problem in capsys.readouterr().err
