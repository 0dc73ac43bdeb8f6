"""Long loops of steps on a busy machine neither hang nor abort (`tox -e stress`)."""

import math
import subprocess
import sys
from itertools import product

import pytest

from strategies import STRATEGIES
from strategies.mesh import all_axes, factorisations
from tests.processes import ROOT, environment

BUSY = 4
STEPS = 500
SECONDS = 600
"""The timeout of one loop: a deadlock ends its process after 40 seconds."""

MESHES = {
    "data": ["data=8"],
    "zero1": ["data=8"],
    "zero2": ["data=8"],
    "fsdp": ["fsdp=8"],
    "hsdp": ["data=2,fsdp=4"],
    "tensor": ["tensor=8"],
    "context": ["context=8"],
    "pipeline": ["pipeline=8"],
    "expert": ["data=2,expert=4"],
    "auto": ["data=8", "fsdp=8", "tensor=8", "fsdp=4,tensor=2"],
    "explicit": ["data=8", "fsdp=8", "tensor=8", "fsdp=4,tensor=2"],
    "three_d": [
        *("data=2,pipeline=2,tensor=2", "data=2,tensor=4", "fsdp=2,tensor=4", "fsdp=2,pipeline=2,context=2"),
        *("data=2,context=2,tensor=2", "pipeline=4,tensor=2", "data=2,fsdp=2,tensor=2"),
    ],
}
OPTIONS = {
    "data": [(), ("bucket_bytes=20000",), ("compression='int8'",), ("compression='onebit'",)],
    "fsdp": [(), ("gather='step'", "microbatches=2"), ("regather=False",)],
    "tensor": [(), ("sequence_parallel=False",)],
    "context": [(), ("context_attention='ulysses'",)],
    "zero2": [("microbatches=2",)],
    "pipeline": [
        ("microbatches=8", "schedule='gpipe'"),
        ("microbatches=8", "schedule='1f1b'"),
        ("microbatches=8", "schedule='zb-h1'"),
        ("microbatches=8", "schedule='interleaved'"),
    ],
}


def loops():
    """Strategy, mesh and options of each loop."""
    for name, meshes in MESHES.items():
        for mesh, options in product(meshes, OPTIONS.get(name, [()])):
            stages = name == "three_d" and "pipeline" in mesh
            yield name, mesh, (*options, *(["microbatches=4"] if stages else []))


@pytest.fixture(scope="module")
def busy():
    """Processes that keep the cores busy while the loops run."""
    command = [sys.executable, "-c", "while True: sum(range(10**6))"]
    processes = [subprocess.Popen(command) for _ in range(BUSY)]
    yield
    assert [process.poll() for process in processes] == [None] * BUSY, "the load had ended before the loops"
    for process in processes:
        process.kill()
        process.wait()


def test_every_strategy_is_stressed():
    """Every strategy in the registry has a loop, except `single`, which communicates nothing."""
    assert set(MESHES) == set(STRATEGIES) - {"single"}
    assert set(MESHES["three_d"]) <= set(map(str, factorisations(all_axes(), 8)))


@pytest.mark.stress
@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(("name", "mesh", "options"), [*loops()], ids=str)
def test_a_plain_loop_ends(name, mesh, options):
    """Five hundred steps without a wait in between end with a finite loss."""
    command = [sys.executable, "-m", "tests.strategies.plain_loop", name, mesh, str(STEPS), *options]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, check=False, cwd=ROOT, env=environment(XLA_FLAGS="")
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert math.isfinite(float(ended.stdout))
