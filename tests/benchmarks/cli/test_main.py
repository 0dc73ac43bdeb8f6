"""`meshmark`, the one entrance to all commands."""

import argparse
import dataclasses
import importlib.util
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import benchmarks
from benchmarks.cli.commands import COMMANDS, RARE
from benchmarks.cli.main import contents, main
from benchmarks.cli.options import MODEL_KEYS, SWEPT, add_options, model_value
from benchmarks.cli.statuses import WRONG_USAGE
from strategies import PRESETS, STRATEGIES, GPTConfig
from tests.processes import ROOT, environment


def meshmark(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run it as the installed script does, which has the current folder not on its path."""
    command = [sys.executable, "-P", "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True)


def test_every_command_is_there() -> None:
    """Each runs a module that can be found, and has a line in the contents; those that few need have one together."""
    assert contents().splitlines()[-1] == f"more: {', '.join(RARE)}"
    for name, command in COMMANDS.items():
        assert importlib.util.find_spec(command.module), name
        assert (f"  {name} " in contents()) == (command.summary in contents()) == (name not in RARE)


@pytest.mark.parametrize("name", ["", "regress", *COMMANDS])
def test_help_needs_no_library(name: str) -> None:
    """So it is printed at once: of what takes long to import, nothing is imported."""
    code = "import atexit, sys; from benchmarks.cli.main import main; "
    code += "atexit.register(lambda: print('modules', *sys.modules)); main()"
    command = [sys.executable, "-c", code, *name.split(), "--help"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True)
    said, _, modules = done.stdout.rpartition("modules ")
    assert said.startswith("usage: ")
    heavy = {"jax", "numpy", "pandas", "matplotlib", "seaborn", "scipy", "pytest", "rich"}
    assert not heavy & {*modules.split()}


def test_help_of_measure_has_the_options_that_pytest_reads() -> None:
    """One table declares them to both."""
    known = pytest.Parser(_ispytest=True)
    add_options(known)
    declared = {name for group in known._groups for option in group.options for name in option.names()}
    assert {option.name for option in COMMANDS["measure"].all_options()} == declared


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
    """`show` without a strategy has each of them, with its options."""
    shown = meshmark("show").stdout
    listed = {name: shown[shown.index(f"{name} on ") :].partition("\noptions: ")[2].splitlines() for name in STRATEGIES}
    for name, strategy in STRATEGIES.items():
        if strategy.options:
            assert listed[name][0] == ", ".join(strategy.options)


@pytest.mark.factorisations
@pytest.mark.libtpu
@pytest.mark.usefixtures("_interruptible")
def test_a_command_may_start_processes() -> None:
    """A command that meshmark runs can send its functions to processes that it spawns, as search does to compile."""
    sizes = ("--model=layers=2,embed=16,heads=2,vocab=256,sequence=16", "--batch-size=8")
    space = ("--topology=v5e:2x2", "--strategy=data", "--remat=dots", "--dtype=float32")
    found = meshmark("search", *space, *sizes, "--compile=1")
    assert found.returncode == 0, found.stderr
    assert "[1/1] " in found.stderr


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("plott", "; did you mean plot?"),
        ("regress fast", "; did you mean regress exact or regress paired or regress baseline?"),
        ("x", ""),
    ],
)
def test_what_is_not_there_is_refused(name: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In a line, with what may be meant."""
    with pytest.raises(SystemExit, match=str(WRONG_USAGE)):
        main(name.split())
    said = capsys.readouterr().err
    assert said == f"meshmark: unknown command {name!r}; `meshmark --help` lists all commands{meant}\n"


def test_an_option_means_the_same_in_all_commands() -> None:
    """Wherever an option of a name occurs, it reads values of the same kind; those that were renamed say so."""
    kinds: dict[str, set[str]] = {}
    for command in COMMANDS.values():
        for option in command.all_options():
            if option.name.startswith("--") and option.many != "pass":
                kinds.setdefault(option.name, set()).add(getattr(option.read, "__name__", "switch"))
    assert {name: found for name, found in kinds.items() if len(found) > 1} == {
        "--topology": {"topology", "topology_or_here"},
        "--batch-size": {"count", "batch"},  # of rows that are there "all" can be meant
    }


def test_model_takes_each_field_of_a_model() -> None:
    """The keys of --model are the fields of `GPTConfig`, except those whose values are a case each."""
    assert {*MODEL_KEYS, *SWEPT} == {field.name for field in dataclasses.fields(GPTConfig)}
    for field in MODEL_KEYS:
        value = getattr(PRESETS["nano"], field)
        assert model_value(f"{field}={value}") == (field, value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("laers=2", "'laers' is not a key of --model; use one of layers, .*; did you mean layers?"),
        ("layers", "'layers' has no value; write layers=VALUE"),
        ("layers=0", "layers is '0'; it must be a whole number of at least 1"),
        ("experts=some", "experts is 'some'; it must be a whole number or none"),
        ("tied=maybe", "tied is 'maybe'; it must be true or false"),
        ("routing=one", "routing has an option of its own; pass --routing one"),
    ],
)
def test_a_wrong_key_of_a_model_says_what_is_right(text: str, message: str) -> None:
    """A key that does not exist names a similar one, and a value that is not allowed those that are."""
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        model_value(text)


def test_a_key_of_a_model_is_no_option(capsys: pytest.CaptureFixture[str]) -> None:
    """Keys of --model are no options."""
    with pytest.raises(SystemExit, match=str(WRONG_USAGE)):
        COMMANDS["train"].parser("train").parse_args(["--vocab-multiple=8"])
    assert "unrecognized arguments: --vocab-multiple=8" in capsys.readouterr().err


def test_an_option_says_whether_it_is_repeatable() -> None:
    """The help has the word where the option can be given several times, and nowhere else."""
    options = [option for command in COMMANDS.values() for option in command.all_options() if option.help]
    assert {option.name for option in options if option.many == "repeat"} >= {"--mesh", "--option", "--set", "--allow"}
    assert all(("repeatable" in str(option.help)) == (option.many == "repeat") for option in options)


def test_arguments_are_passed_on() -> None:
    """To the command, whose exit code is that of meshmark, and whose help names it so."""
    done = meshmark("schedule", "gpipe", "--stages", "2", "--microbatches", "1")
    assert (done.returncode, done.stdout.splitlines()[0].split()) == (0, ["F0", "..", "..", "B0"])
    refused = meshmark("regress", "exact", "none.json", "none.json")
    assert refused.returncode == 5
    assert meshmark("regress", "baseline", "--help").stdout.startswith("usage: meshmark regress baseline ")


def test_measure_is_pytest_on_the_benchmarks() -> None:
    """With all of its options."""
    done = meshmark("measure", "--collect-only", "-q", "--strategy=fsdp", "--mesh=fsdp=4", "--batch-size=8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_step[fsdp-fsdp=4-b8]" in done.stdout
