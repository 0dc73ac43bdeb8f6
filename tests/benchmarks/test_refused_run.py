"""Command lines that cannot work are refused before the first case, in one line."""

import argparse
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.cli.options import JOIN_TIMEOUT, LOST_AFTER
from benchmarks.conftest import pytest_cmdline_main
from tests.benchmarks.running import bare, finish, start
from tests.processes import ROOT
from tests.strategies.sampling import nightly


def test_what_cannot_work_is_refused_at_once(tmp_path: Path) -> None:
    """A bad option or environment ends the run before its first case, with one line that says what is wrong."""
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "folder"
    refused = {
        "--strategy=fsdp,data --mesh=tensor=2": "fsdp has no axis tensor; mesh tensor=2 takes a strategy with all of",
        "--trace-dir=/dev/null": "/dev/null cannot be written to: /dev/null is not a folder; name another folder",
        "--trace-dir=x --compile-only": "--trace-dir needs steps that run, and --compile-only and --topology only",
        f"--benchmark-json={tmp_path}/file/run.json": "cannot be written: ",
        f"--benchmark-storage={folder} --benchmark-autosave": f"--benchmark-storage: {folder} cannot be written to",
        "tests/test_readme.py": "the benchmarks run alone: pytest benchmarks, without tests/test_readme.py",
    }
    several = [(start(*option.split()), message) for option, message in refused.items()]
    environments: dict[str, tuple[Any, str]] = {
        "JAX_PLATFORMS": ("tpu", "JAX finds no devices where JAX_PLATFORMS is tpu: RuntimeError: Unable to initialize"),
        "JAX_ENABLE_X64": ("maybe", "JAX cannot be loaded: invalid truth value 'maybe'"),
    }
    several += [(bare(**{name: value}), message) for name, (value, message) in environments.items()]
    for process, message in several:
        ended = finish(process)
        assert ended.returncode == pytest.ExitCode.USAGE_ERROR
        assert message in ended.stderr
        assert "Traceback" not in ended.stderr + ended.stdout
        assert "collected" not in ended.stdout


@pytest.mark.parametrize(
    ("folder", "option", "message"),
    [
        (ROOT, "--resume", "--resume continues a run that was stopped; pass the --benchmark-json of that run"),
        (None, "--strategy=ddp", "--strategy 'ddp' is not a strategy; use one of single, data, "),
    ],
    ids=["checkout", "elsewhere"],
)
def test_the_package_is_found_by_its_name(tmp_path: Path, folder: Path | None, option: str, message: str) -> None:
    """`--pyargs benchmarks` knows the options, in a checkout and elsewhere, and reports a wrong one in one line.

    The supervisor refuses the first, and the process that measures the second, which needs the registry.
    """
    plugin = "-p", "no:meshmark", "-p", "benchmarks.plugin"  # as its entry point has it, installed or not
    ended = finish(bare(*plugin, "--pyargs", "benchmarks", option, folder=folder or tmp_path))
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert ended.stderr.startswith(f"ERROR: {message}")


def test_a_misspelt_folder_is_a_line(tmp_path: Path) -> None:
    """A misspelt folder gives pytest's own one-line error, even with our options and a report."""
    ended = finish(bare("benchmark", "--strategy=data", f"--benchmark-json={tmp_path}/run.json"))
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert ended.stderr.strip() == "ERROR: file or directory not found: benchmark"


@pytest.mark.parametrize("folder", [".", *nightly(str(ROOT))], ids=["relative", "absolute"])
def test_benchmarks_among_other_tests_are_refused(folder: str) -> None:
    """`pytest .` in a checkout ends in one line, before any test: the benchmarks run alone."""
    ended = finish(bare(folder))
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert ended.stderr.startswith("ERROR: the benchmarks run alone: pytest benchmarks; exclude them with --ign")
    assert "Traceback" not in ended.stdout


def test_xdist_workers_refuse_benchmarks_among_other_tests() -> None:
    """`pytest . -n 1` reports a collection error that says the benchmarks run alone."""
    ended = finish(bare(".", "-n1", "--ignore=tests"))
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED
    assert ended.stdout.count("\nthe benchmarks run alone: pytest benchmarks; exclude them with --ignore=") == 1
    assert "Traceback" not in ended.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"numprocesses": 2}, "cases are timed one at a time, because they would slow each other down; remove -n"),
        ({"benchmark_json": BytesIO()}, "meshmark needs pytest-benchmark 5.3 or later: pip install --upgrade"),
        (
            {"benchmark_json": Path("x"), "trace_dir": Path("x")},
            "--trace-dir x would overwrite the output of --benchmark-json; name another file",
        ),
        ({"resume": True}, "--resume continues a run that was stopped; pass the --benchmark-json of that run"),
        ({"resume": True, "benchmark_json": Path("/never/run.json")}, "--resume continues a run that was stopped"),
    ],
)
def test_bad_options_are_refused_before_a_process_starts(options: dict[str, Any], message: str) -> None:
    """Options that are wrong by themselves are refused before any process starts a backend."""
    offered = {"help": False, "version": False, "collectonly": False, "resume": False, "benchmark_json": None}
    offered |= {"benchmark_storage": "file://./.benchmarks", "benchmark_save": None, "benchmark_autosave": False}
    offered |= dict.fromkeys(("benchmark_histogram", "benchmark_compare", "benchmark_compare_fail", "benchmark_netrc"))
    offered |= dict.fromkeys(("trace_dir", "memory_profile"))
    offered |= {"distributed": False, "coordinator": None, "processes": None, "process_id": None}
    offered |= {"join_timeout": JOIN_TIMEOUT, "lost_after": LOST_AFTER}
    invocation = SimpleNamespace(dir=ROOT, args=())
    config: Any = SimpleNamespace(
        option=argparse.Namespace(**offered | options), stash={}, args=["benchmarks"], invocation_params=invocation
    )
    with pytest.raises(pytest.UsageError, match=message):
        pytest_cmdline_main(config)
