"""`meshmark doctor` describes the machine in a dozen lines, and fails where the devices cannot be used."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from benchmarks.run import doctor
from tests.processes import ROOT, environment


def test_it_names_what_an_issue_needs(capsys: pytest.CaptureFixture[str]) -> None:
    """Versions, compilers, devices, links, and that they work; each line has its name."""
    assert doctor.main() == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if not line.startswith(" "))
    assert f"jax {jax.__version__}" in lines["libraries"]
    assert {"meshmark", "python", "tpu", "gpu", "environment", "host", "links"} < {*lines}
    assert lines["devices"].startswith("8 x cpu (cpu, virtual")
    assert lines["check"] == "a sum over 8 devices is right"


def test_it_names_the_commit_of_a_checkout() -> None:
    """Of a checkout, and of nothing else."""
    assert doctor.commit().startswith("commit ") == (ROOT / ".git").exists()


def test_it_names_variables_that_change_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of JAX, XLA and others, with their values."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=here")
    assert "XLA_FLAGS=--xla_dump_to=here" in dict(doctor.software())["environment"]


def test_a_wrong_sum_is_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code says so, and the last line what was wrong."""
    monkeypatch.setattr(doctor.jnp, "sum", lambda x: jnp.max(x))
    assert doctor.main() == doctor.UNUSABLE
    assert capsys.readouterr().out.splitlines()[-1].split(maxsplit=1) == [
        "check",
        "failed: the sum over all devices is 7.0, not 28.0",
    ]


def test_devices_that_are_not_there_are_a_line() -> None:
    """Versions are printed all the same; they may be the reason."""
    command = [sys.executable, "-m", "benchmarks", "doctor"]
    done = subprocess.run(command, cwd=ROOT, env=environment(JAX_PLATFORMS="cuda"), capture_output=True, text=True)
    assert done.returncode == doctor.UNUSABLE
    assert "libraries" in done.stdout
    assert "JAX finds no devices where JAX_PLATFORMS is cuda" in " ".join(done.stdout.split())
    assert "Traceback" not in done.stderr
