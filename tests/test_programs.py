"""What `python -m` does with the modules of the three rooms."""

import subprocess
import sys
from contextlib import nullcontext

import pytest

from benchmarks.cli import commands_of
from strategies.programs import require_program
from tests.processes import ROOT, environment

ROOMS = "strategies", "benchmarks", "results"
PROGRAMS = {
    "benchmarks.__main__",
    "benchmarks.run.__main__",
    "benchmarks.run.gpu_run",
    "benchmarks.run.pool",
    "benchmarks.run.server",
    "benchmarks.simulate.intervals",
}
"""The modules that are programs, each described where it begins. Their own tests run them."""


def modules() -> list[str]:
    """Names of all modules of the three rooms; a package without `__main__.py` is refused by Python."""
    files = (path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files if path.name != "__init__.py"]


def test_every_module_that_is_not_a_program_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `python -m MODULE FILE` begins, it ends with 2 and one line that names `meshmark`, unless it is a program."""
    for module in modules():
        monkeypatch.setattr(sys, "argv", ["-m", "FILE"])
        monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-m", module, "FILE"])
        with pytest.raises(SystemExit, match="2") if module not in PROGRAMS else nullcontext():
            require_program(*ROOMS, commands=commands_of)
        said = capsys.readouterr().err
        assert said.startswith(f"python -m {module} is not a command; ") == (module not in PROGRAMS)
        assert said.count("`meshmark ") == said.count(" or ") + (module not in PROGRAMS)


@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        (["-m", "results.regress", "exact", "nofile", "nofile"], "use `meshmark regress exact` or `meshmark regress p"),
        (["-m", "results.plot"], "use `meshmark plot`"),
        (["-Pmbenchmarks.search.compile"], "use `meshmark compile`"),
        (["-m", "strategies.core.plan"], "`meshmark --help` lists the commands"),
    ],
    ids=str,
)
def test_python_refuses_to_run_it(words: list[str], way_out: str) -> None:
    """Each of the three packages looks at what `python -m` is about to run."""
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"is not a command; {way_out}" in done.stderr
    assert done.stderr.count("\n") == 1
