"""`meshmark`, the one entrance to all commands."""

import importlib.util
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import benchmarks
from benchmarks.cli import parsers
from benchmarks.cli.arguments import add_options
from benchmarks.commandline.main import ALIASES, COMMANDS, WRONG_USAGE, contents, main
from strategies import STRATEGIES
from tests.processes import ROOT, environment


def meshmark(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run it as the installed script does, which has the current folder not on its path."""
    command = [sys.executable, "-P", "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True)


def test_every_command_is_there() -> None:
    """Each runs a module that can be found, and its line is in the contents."""
    for name, command in COMMANDS.items():
        assert importlib.util.find_spec(command.module), name
        assert f"  {name} " in contents()
        assert command.summary in contents()


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_needs_no_library(name: str) -> None:
    """So it is printed at once: of what takes long to import, nothing is imported."""
    code = "import atexit, sys; from benchmarks.commandline.main import main; "
    code += "atexit.register(lambda: print('modules', *sys.modules)); main()"
    command = [sys.executable, "-c", code, *filter(None, [name]), "--help"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True)
    said, _, modules = done.stdout.rpartition("modules ")
    assert said.startswith("usage: ")
    heavy = {"jax", "numpy", "pandas", "matplotlib", "seaborn", "scipy", "pytest", "rich"}
    assert not heavy & {*modules.split()}


def test_gates_show_their_help_without_scipy() -> None:
    """Help of the paired gate, whose bounds are Student's."""
    code = "import sys; from results.regress import main\ntry: main(['paired', '--help'])\n"
    code += "except SystemExit: print('scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert "--minimum-effect" in done.stdout
    assert done.stdout.endswith("False\n")


def test_help_of_measure_has_the_options_that_pytest_reads() -> None:
    """One table declares them to both."""
    known = pytest.Parser(_ispytest=True)
    add_options(known)
    declared = {name for group in known._groups for option in group.options for name in option.names()}
    assert {name for name in parsers.measure()._option_string_actions if name not in ("-h", "--help")} == declared


def test_version() -> None:
    """That of the installed package: the command and the attribute say the same."""
    assert meshmark("--version").stdout == f"meshmark {benchmarks.__version__}\n"
    assert benchmarks.__version__ == version("meshmark")
    with pytest.raises(AttributeError, match="module 'benchmarks' has no attribute 'versions'"):
        benchmarks.versions  # noqa: B018


def test_measure_works_beside_other_benchmarks(tmp_path: Path) -> None:
    """In a project that has a folder `benchmarks` of its own, the steps of meshmark are collected."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").touch()
    done = meshmark("measure", "--strategy=single", "--collect-only", "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_step[single-data=1-b16]" in done.stdout


def test_strategies_are_listed() -> None:
    """A line each, with mesh axes and options."""
    lines = {line.split()[0]: line for line in meshmark("strategies").stdout.splitlines()}
    assert [*lines] == [*STRATEGIES]
    for name, strategy in STRATEGIES.items():
        assert all(word in lines[name] for word in (*strategy.axis_names, *strategy.options))


@pytest.mark.factorisations
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="takes the tpu extra: pip install -e '.[tpu]'")
@pytest.mark.usefixtures("_interruptible")
def test_a_command_may_start_processes(tmp_path: Path) -> None:
    """A command that meshmark runs can send its functions to processes that it spawns, as search does to compile."""
    sizes = ("--layers=2", "--embed=16", "--heads=2", "--vocab=256", "--sequence=16", "--batch-size=8")
    space = ("--topology=v5e:2x2", "--strategy=data", "--remat=dots", "--dtype=float32")
    found = meshmark("search", *space, *sizes, "--compile=1", f"--cache={tmp_path}")
    assert found.returncode == 0, found.stderr
    assert "[1/1] " in found.stderr


@pytest.mark.usefixtures("_interruptible")
def test_ctrl_c_while_a_command_is_imported_is_quiet() -> None:
    """The installed `meshmark` ends by the signal, and prints nothing."""
    code = "import sys; sys.argv = ['/usr/bin/meshmark', 'plot', 'none.json']; "
    code += "from benchmarks.commandline.main import main; main()"
    command = [sys.executable, "-X", "importtime", "-c", code]
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=-1, stderr=-1, text=True) as process:
        assert process.stderr
        while "pandas" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert "Traceback" not in process.stderr.read()
        assert process.wait() == -signal.SIGINT


@pytest.mark.parametrize(("name", "meant"), [("plott", " Did you mean plot?"), ("x", "")])
def test_what_is_not_there_is_refused(name: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In a line, with what may be meant."""
    with pytest.raises(SystemExit, match=str(WRONG_USAGE)):
        main([name])
    said = capsys.readouterr().err
    assert said == f"meshmark: unknown command {name!r}.{meant} `meshmark --help` lists all commands.\n"


def test_other_names_of_commands_work() -> None:
    """A command has the same parser under each of its names, and none of them is listed."""
    for name, other in ALIASES.items():
        assert meshmark(name, "--help").stdout == meshmark(other, "--help").stdout != ""
        assert name not in COMMANDS


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
