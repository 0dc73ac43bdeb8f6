"""Strategies on a mesh whose devices belong to several processes, which may be on several machines."""

from types import SimpleNamespace

import pytest

from strategies.backends.device_mesh import first_devices
from tests.processes import run_together
from tests.strategies.equality import TRAIN
from tests.strategies.meshes import WIDEST

TWO = ("pipeline:pipeline=2",)
"""Permutes and all-reduces between processes; `benchmarks/cluster/test_process_runs.py` has three_d on four devices."""
EIGHT = ("data:data=8", "fsdp:fsdp=8", "tensor:tensor=8", "pipeline:pipeline=8", "three_d:data=2,pipeline=2,tensor=2")
EVERY = tuple(f"{name}:{mesh}" for name, mesh in WIDEST.items() if name != "single")


@pytest.mark.parametrize(
    ("processes", "devices_each", "cases"),
    [
        (2, 1, TWO),
        pytest.param(2, 2, ("three_d:pipeline=2,tensor=2",), marks=pytest.mark.processes),
        pytest.param(4, 2, EIGHT, marks=pytest.mark.processes),
        pytest.param(2, 4, EVERY, marks=pytest.mark.processes),
    ],
    ids=["2 x 1", "2 x 2", "4 x 2", "2 x 4"],
)
def test_several_processes_compute_what_one_device_computes(processes, devices_each, cases):
    """Several processes compute what one device does, to float32 rounding, and each reads its own sequences only."""
    each = TRAIN.batch_size // processes
    for index, output in enumerate(run_together(processes, devices_each, "tests.strategies.train_in_process", cases)):
        assert output.splitlines()[-len(cases) - 1 :] == [
            *cases,
            f"sequences {each * index} to {each * (index + 1) - 1}",
        ]


@pytest.mark.processes
@pytest.mark.parametrize("name", ["fsdp", "tensor"])
def test_processes_find_the_same_gradients_in_each_run(name):
    """Runs of one program are equal to the bit. With gloo's reduce-scatter 40 runs had 11 results."""
    for output in run_together(2, 1, "tests.strategies.repeat_gradients_in_process", [name, "40"]):
        assert output.splitlines()[-1] == "1 in 40"


def devices(*processes):
    """Fake devices of these processes, in JAX's order."""
    return [SimpleNamespace(id=place, process_index=process) for place, process in enumerate(processes)]


@pytest.mark.parametrize(
    ("processes", "count", "taken"),
    [
        ((0, 0, 0, 0), 3, [0, 1, 2]),
        ((0, 0, 1, 1, 2, 2), 3, [0, 2, 4]),
        ((1, 1, 0, 0), 2, [2, 0]),
        ((1, 1, 0, 0), 4, [2, 3, 0, 1]),
        ((1, 1, 0, 0), 1, [2]),  # this process is number 0
        ((0, 0, 1, 1), 8, [0, 1, 2, 3]),  # there are too few, which the mesh reports
    ],
)
def test_each_process_has_an_equal_part_of_a_mesh(processes, count, taken):
    """A mesh takes equally many devices of each process, in the order of processes; a mesh of one device is local."""
    assert [device.id for device in first_devices(count, devices(*processes))] == taken
