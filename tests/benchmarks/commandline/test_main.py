"""`meshmark`, the one entrance to all commands."""

import importlib.util
import subprocess
import sys

import pytest

from benchmarks.commandline.main import COMMANDS, WRONG_USAGE, contents, main
from tests.processes import ROOT, environment


def meshmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it as a user does."""
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)


def test_every_command_is_there() -> None:
    """Each runs a module that can be found, and its line is in the contents."""
    for name, command in COMMANDS.items():
        assert importlib.util.find_spec(command.module), name
        assert f"  {name} " in contents()
        assert command.summary in contents()


def test_help_needs_no_library() -> None:
    """So it is printed at once: nothing that takes long to import is imported."""
    code = "import sys; from benchmarks.commandline.main import main; main([]); print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(contents())
    assert not {"jax", "numpy", "pandas", "matplotlib", "pytest"} & {*done.stdout.splitlines()}


@pytest.mark.parametrize(("name", "meant"), [("plott", " Did you mean plot?"), ("x", "")])
def test_what_is_not_there_is_refused(name: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In a line, with what may be meant."""
    with pytest.raises(SystemExit, match=str(WRONG_USAGE)):
        main([name])
    said = capsys.readouterr().err
    assert said == f"meshmark: there is no command {name!r}.{meant} `meshmark --help` lists all commands.\n"


def test_arguments_are_passed_on() -> None:
    """To the command, whose exit code is that of meshmark, and whose help names it so."""
    done = meshmark("schedule", "gpipe", "--stages", "2", "--microbatches", "1")
    assert (done.returncode, done.stdout.splitlines()[0].split()) == (0, ["F0", "..", "..", "B0"])
    refused = meshmark("regress", "exact", "none.json", "none.json")
    assert refused.returncode == 5
    assert meshmark("baseline", "--help").stdout.startswith("usage: meshmark baseline ")


def test_measure_is_pytest_on_the_benchmarks() -> None:
    """With all of its options."""
    done = meshmark("measure", "--collect-only", "-q", "--strategy=fsdp", "--mesh=fsdp=4", "--batch-size=8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_step[fsdp-fsdp=4-b8]" in done.stdout
