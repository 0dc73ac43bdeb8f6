"""`meshmark launch` gives each process its GPUs, and ends all of them when one fails."""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.cluster.launch import environment, launch, visible_gpus, wait
from tests.commands import command
from tests.processes import ROOT

main = command("launch")


def sleeper(seconds: float, status: int = 0) -> subprocess.Popen[str]:
    """Start a process that exits with a status after some seconds."""
    command = [sys.executable, "-c", f"import time; time.sleep({seconds}); exit({status})"]
    return subprocess.Popen(command, text=True, process_group=0)


def test_launcher_ends_the_others_when_one_ends_badly() -> None:
    """A process that fails ends the others, and gives its status; exit status 1, failed tests, is waited for."""
    start = time.monotonic()
    assert wait([sleeper(60), sleeper(0, 77)]) == 77
    assert time.monotonic() - start < 20
    assert wait([sleeper(0.5, 1), sleeper(0, 1)]) == 1
    killed = sleeper(60)
    killed.kill()
    assert wait([sleeper(60), killed]) == 137


def test_each_launched_process_has_its_own_gpus(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each process gets the next GPUs; too few GPUs are an error that names both numbers."""
    assert [environment(place, 1, ["4", "6"])["CUDA_VISIBLE_DEVICES"] for place in (0, 1)] == ["4", "6"]
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(SystemExit):
        main(["--processes=2"])
    assert "2 processes of 1 GPUs need 2, and there are 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("platforms", "plugins", "gpus"),
    [
        *(
            (None, ["xla_cuda13"], ["0", "1"]),
            (None, ["tpu"], []),
            ("cuda", [], ["0", "1"]),
            ("cpu", ["xla_cuda13"], []),
        ),
        *(("cuda,cpu", [], ["0", "1"]), ("cpu,cuda", ["xla_cuda13"], []), ("", ["xla_cuda13"], ["0", "1"])),
    ],
    ids=str,
)
def test_gpus_are_taken_where_jax_takes_them(
    monkeypatch: pytest.MonkeyPatch, platforms: str | None, plugins: list[str], gpus: list[str]
) -> None:
    """Processes get GPUs if JAX_PLATFORMS names them, or if it is unset and JAX's CUDA plugin is installed."""
    if platforms is None:
        monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    else:
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    named = [argparse.Namespace(name=name) for name in plugins]
    monkeypatch.setattr("benchmarks.cluster.launch.entry_points", lambda group: named if group == "jax_plugins" else [])
    assert visible_gpus() == gpus


def test_each_process_runs_the_benchmarks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What each process runs is `pytest benchmarks`."""
    code = "import pathlib, sys\nsaid = pathlib.Path(__file__).parent / sys.argv[-1]\n"
    (tmp_path / "say.py").write_text(code + "said.write_text(sys.argv[3])")
    monkeypatch.setattr("benchmarks.cluster.launch.sys.executable", str(script(tmp_path / "say", tmp_path / "say.py")))
    assert launch(argparse.Namespace(processes=2, devices_per_process=1, pytest=[]), []) == 0
    found = [path.read_text() for path in sorted(tmp_path.glob("[0-9]*"))]
    assert found == [str(ROOT / "benchmarks")] * 2


def script(path: Path, program: Path) -> Path:
    """Write an executable that runs a Python program whatever it is asked for."""
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("platforms", "problem"),
    [
        ("cuda,cpu", "JAX_PLATFORMS=cuda,cpu, but no GPU is visible; set it to cpu for virtual CPU devices"),
        ("tpu", "JAX_PLATFORMS=tpu, but launch uses GPUs or virtual CPU devices only; set it to cpu"),
    ],
)
def test_other_devices_than_those_asked_for_are_refused(
    platforms: str, problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """CPUs never stand in for a platform that JAX_PLATFORMS names first."""
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SystemExit, match="2"):
        main(["--processes=2"])
    assert problem in capsys.readouterr().err
