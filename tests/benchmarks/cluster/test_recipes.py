"""The cluster recipes are valid shell and YAML, use options that exist, and bring back their report."""

import argparse
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.cli.options import add_options, several_processes_requested
from tests.processes import ROOT

RECIPES = ROOT / "benchmarks" / "cluster" / "recipes"
FILES = sorted(RECIPES.iterdir())


class Options:
    """A pytest parser that accepts the benchmarks' options and --benchmark-json only."""

    def __init__(self) -> None:
        self.parser = argparse.ArgumentParser(exit_on_error=False)
        self.addoption: Callable[..., Any] = self.parser.add_argument
        self.addoption("--benchmark-json", type=Path)

    def getgroup(self, *names: str) -> "Options":
        """The only group."""
        return self


def script(path: Path) -> str:
    """The shell script of a recipe."""
    if path.suffix != ".yaml":
        return path.read_text()
    (job,) = yaml.safe_load(path.read_text())["spec"]["replicatedJobs"]
    (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["bash", "-c"]
    return container["args"][0]


def measures(path: Path) -> list[str]:
    """The options of the recipe's `pytest benchmarks` command, which must end with --benchmark-json."""
    (found,) = re.findall(
        r"-m pytest benchmarks (.*?--benchmark-json \S+)", script(path).replace("\\\n", ""), re.DOTALL
    )
    return shlex.split(found.rstrip("'"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_bash_parses_the_recipe(path: Path) -> None:
    """bash parses the recipe's script."""
    done = subprocess.run(["bash", "-n"], input=script(path), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_options_of_the_recipe_exist(path: Path) -> None:
    """Every option of a recipe parses, and together they start several processes that span 16 devices."""
    options = Options()
    add_options(options)  # pyright: ignore[reportArgumentType]
    words = [re.sub(r"\$\w+", "1", word) for word in measures(path)]
    option = options.parser.parse_args(words)
    assert several_processes_requested(option)
    assert option.devices == [16]
    assert option.preset == "gpt2-xl"


def test_jobset_starts_the_processes_that_are_waited_for() -> None:
    """The JobSet starts --processes pods, passes each its index, and names the first as coordinator."""
    manifest = yaml.safe_load((RECIPES / "jobset.yaml").read_text())
    (job,) = manifest["spec"]["replicatedJobs"]
    pods, words = job["template"]["spec"], measures(RECIPES / "jobset.yaml")
    assert (manifest["apiVersion"], manifest["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert pods["completionMode"] == "Indexed"  # which sets JOB_COMPLETION_INDEX
    assert [str(pods[each]) for each in ("completions", "parallelism")] == [words[words.index("--processes") + 1]] * 2
    name = manifest["metadata"]["name"]
    (container,) = pods["template"]["spec"]["containers"]
    port = container["ports"][0]["containerPort"]
    assert words[words.index("--coordinator") + 1] == f"{name}-{job['name']}-0-0.{name}:{port}"
    assert words[words.index("--process-id") + 1] == "$JOB_COMPLETION_INDEX"


def test_slurm_starts_as_many_processes_as_there_are_gpus() -> None:
    """SLURM starts one task for each GPU, 16 in all."""
    text = (RECIPES / "slurm.sh").read_text()
    said = {name: int(count) for name, count in re.findall(r"^#SBATCH --([a-z-]+)=(\d+)$", text, re.MULTILINE)}
    assert said["ntasks-per-node"] == said["gpus-per-node"] == 16 // said["nodes"]


def executable(path: Path, text: str) -> None:
    """Write an executable shell script."""
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize("status", [0, 1, 69])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_report_and_exit_status_come_back(tmp_path: Path, path: Path, status: int) -> None:
    """The report is brought back and the exit status kept, also when the benchmarks fail."""
    report = 'while [ "$1" != --benchmark-json ]; do shift; done; mkdir -p "$(dirname "$2")"; echo "{}" > "$2"'
    programs, host, here = (tmp_path / name for name in ("programs", "meshmark", "here"))
    for folder in (programs, host, here):
        folder.mkdir(parents=True)
    for name in ("python", "python3"):
        executable(programs / name, f"{report}; exit {status}")
    executable(programs / "srun", 'shift; exec "$@"')
    # A fake gcloud: `ssh` runs its last argument, `scp` copies from a host whose home is this folder.
    copies = 'from=${5#*:}; cp "${from/#\\~/$HOME}" "$6"'
    executable(programs / "gcloud", f'case "$4" in ssh) bash -c "${{@: -1}}" ;; *) {copies} ;; esac')
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(tmp_path), "TPU": "slice", "ZONE": "zone"}
    env |= {"JOB_COMPLETION_INDEX": "0", "SLURM_JOB_ID": "7"}
    command = ["bash", "-c", script(path)]
    done = subprocess.run(command, cwd=here, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, done.stderr
    brought = here / measures(path)[-1].replace("$SLURM_JOB_ID", "7")
    assert (done.stdout if path.suffix == ".yaml" else brought.read_text()) == "{}\n"
