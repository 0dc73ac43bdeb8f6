"""How many bytes a device and the host have room for."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.devices.attached import (
    free_cgroup_bytes,
    planned_memory,
    processes_that_fit,
    shard_bytes,
    states_budget_bytes,
)
from strategies import State


def test_shard_bytes_are_those_of_one_device() -> None:
    """A sharded array counts with one shard, a replicated one in full."""
    mesh = jax.make_mesh((8,), ("fsdp",), devices=jax.devices()[:8])
    tree = {
        "split": jax.ShapeDtypeStruct((16, 3), jnp.float32, sharding=NamedSharding(mesh, P("fsdp"))),
        "whole": jax.ShapeDtypeStruct((5,), jnp.bfloat16, sharding=NamedSharding(mesh, P())),
    }
    assert shard_bytes(tree) == 2 * 3 * 4 + 5 * 2


def test_states_may_take_a_part_of_what_is_free() -> None:
    """The budget for states is positive, or None where the free memory is unknown."""
    budget = states_budget_bytes()
    assert budget is None or budget > 0


def test_memory_counts_an_alias_once() -> None:
    """An output aliased to an argument is counted once in the total, which is unknown without a memory plan."""
    sizes = {"argument": 100, "temp": 50, "output": 90, "alias": 80}
    plan = SimpleNamespace(**{f"{name}_size_in_bytes": count for name, count in sizes.items()})
    step: Any = SimpleNamespace(state=State({}, {}))
    known = planned_memory(step, cast(Any, SimpleNamespace(memory_analysis=lambda: plan)))
    assert known["memory.total_bytes"] == 100 + 50 + 90 - 80
    unknown = planned_memory(step, cast(Any, SimpleNamespace(memory_analysis=lambda: None)))
    assert unknown == {"memory.parameter_bytes": 0, "memory.optimizer_bytes": 0}


def test_container_may_have_less_than_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget is half of the least free memory of the machine and the control groups around the process."""
    monkeypatch.setattr("benchmarks.devices.attached.free_host_bytes", lambda: [1000])
    monkeypatch.setattr("benchmarks.devices.attached.free_cgroup_bytes", lambda: [10**18, 600])
    assert states_budget_bytes() == 300


@pytest.mark.parametrize(("free", "most"), [(0, 1), (250, 2), (1000, 4)])
def test_memory_and_cores_say_how_many_processes(monkeypatch: pytest.MonkeyPatch, free: int, most: int) -> None:
    """As many processes run as free memory holds: at least one, and at most one for each core."""
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr("benchmarks.devices.attached.free_host_bytes", lambda: [free])
    monkeypatch.setattr("benchmarks.devices.attached.free_cgroup_bytes", lambda: [])
    assert processes_that_fit(100) == most


@pytest.mark.parametrize(
    ("groups", "files", "free"),
    [
        # Version 2: a job without a limit in a slice with one.
        (
            "0::/slice/job",
            {
                "slice/job": {"memory.max": "max"},
                "slice": {"memory.max": 900, "memory.current": 500, "memory.stat": "anon 300\ninactive_file 100"},
            },
            [500],
        ),
        # Version 1, in a container whose group is mounted at the top, whatever its path in /proc.
        (
            "5:devices:/docker/1f\n4:cpu,memory:/docker/1f\n0::/",
            {
                "memory": {
                    "memory.limit_in_bytes": 900,
                    "memory.usage_in_bytes": 500,
                    "memory.stat": "inactive_file 1\ntotal_inactive_file 50",
                }
            },
            [450],
        ),
        ("0::/", {}, []),
        (None, {}, []),
    ],
)
def test_control_groups_limit_memory(
    tmp_path: Path, groups: str | None, files: dict[str, dict[str, object]], free: list[int]
) -> None:
    """The limit of any enclosing control group counts, version 1 or 2; inactive file cache counts as free."""
    if groups is not None:
        (tmp_path / "proc" / "self").mkdir(parents=True)
        (tmp_path / "proc" / "self" / "cgroup").write_text(f"{groups}\n")
    for folder, contents in files.items():
        (tmp_path / "sys" / "fs" / "cgroup" / folder).mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (tmp_path / "sys" / "fs" / "cgroup" / folder / name).write_text(f"{content}\n")
    assert list(free_cgroup_bytes(tmp_path)) == free
