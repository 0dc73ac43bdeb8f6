"""What holds the memory of devices is counted to the byte, and profiled."""

import gc
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import numpy as np
import pytest

from benchmarks.run.compilation import Clock
from benchmarks.run.corpus import EMPTY_CORPUS, read_corpus
from benchmarks.run.live import live_bytes, profile_memory
from benchmarks.run.prepare import Preparation
from benchmarks.run.record import Record
from benchmarks.run.references import References, begin_training
from benchmarks.run.states import RunSettings
from strategies import STRATEGIES, MeshSpec, Step, TrainConfig
from strategies.costs.predict import predict
from tests.benchmarks.run.engines import SINGLE
from tests.benchmarks.running import rows, run
from tests.strategies import quick
from tests.strategies.meshes import WIDEST
from tests.strategies.models import HALF_NANO as CONFIG
from tests.strategies.sampling import nightly

HELD = {"parameters": "parameter", "optimizer": "optimizer", "batch": "batch"}
MESHES = WIDEST | {"auto": MeshSpec.parse("fsdp=8")}
"""Along one axis `auto` holds what its twin holds. Of two its twin shards a bias along both, and `auto` along one."""
DAILY = "fsdp", "pipeline", "auto"
"""Weights that are gathered, stages, and what the compiler splits."""


def built(name: str, **train: Any) -> Step:
    """The step of a strategy on its mesh."""
    mesh = MESHES[name]
    return STRATEGIES[name].build(CONFIG, mesh, TrainConfig(16, **train), jax.devices()[: mesh.size])


def formula(name: str, **train: Any) -> dict[str, int]:
    """What the formulas say that a device holds between steps; of `auto`, which has none, those of its twin."""
    strategy, mesh = STRATEGIES[name], MESHES[name]
    by_hand = name if strategy.has_formulas else strategy.twins[tuple(mesh.sizes)]
    held = dict(predict(by_hand, CONFIG, mesh, TrainConfig(16, **train)).arguments)
    return held | {"optimizer": held["optimizer"] + held["errors"]}


@pytest.mark.parametrize(
    ("name", "train"),
    [
        *((name, {}) for name in DAILY),
        *nightly(*((name, {}) for name in STRATEGIES if name not in DAILY)),
        *nightly(("data", {"compression": "int8"}), ("three_d", {"microbatches": 4})),
    ],
    ids=str,
)
def test_live_bytes_are_those_of_the_formulas(name: str, train: dict) -> None:
    """Of parameters, optimizer state and batch, to the byte, on eight devices; and an array that is planted is rest."""
    step = built(name, **train)
    state = quick.compiled(step.init.lower(jax.random.key(0)))(jax.random.key(0))
    batch = step.place(np.zeros(step.batch.shape, np.int32))
    gc.collect()  # what other tests have left would be freed at any time
    before = live_bytes(parameter=state.params, optimizer=state.optimizer, batch=batch)
    expected = formula(name, **train)
    assert {kind: before[f"memory.live_{holder}_bytes"] for kind, holder in HELD.items()} == {
        k: expected[k] for k in HELD
    }
    everywhere = jax.NamedSharding(jax.make_mesh((8,), ("data",), devices=jax.devices()[:8]), jax.P())
    planted = jax.device_put(np.ones(1000, np.float32), everywhere)
    after = live_bytes(parameter=state.params, optimizer=state.optimizer, batch=batch)
    assert after == before | {"memory.live_rest_bytes": before["memory.live_rest_bytes"] + planted.nbytes}


def test_a_replica_counts_once_on_each_device() -> None:
    """However many arrays share its buffer, and only while it lives; what is donated is no longer held."""
    mesh = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])
    replicated = jax.device_put(np.ones(100, np.float32), jax.NamedSharding(mesh, jax.P()))
    split = jax.device_put(np.ones(100, np.float32), jax.NamedSharding(mesh, jax.P("data")))
    views = [shard.data for shard in split.addressable_shards]
    assert live_bytes(x=[replicated, split, views])["memory.live_x_bytes"] == 400 + 100
    replicated.delete()
    assert live_bytes(x=[replicated, split])["memory.live_x_bytes"] == 100


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The integer that begins at a position, seven bits in a byte, and the position after it."""
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def messages(data: bytes, wanted: int) -> Iterator[bytes]:
    """The fields with a number, of a protocol buffer whose fields are integers or have a length."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        length, at = varint(data, at)
        assert key % 8 in (0, 2)
        if key % 8 == 2:
            if key // 8 == wanted:
                yield data[at : at + length]
            at += length


def profiled_bytes(path: Path) -> int:
    """The bytes of all samples of a profile; Profile.sample and Sample.value are field 2 (pprof's profile.proto)."""
    samples = [*messages(gzip.decompress(path.read_bytes()), 2)]
    assert samples
    total = 0
    for sample in samples:
        (values,) = messages(sample, 2)
        _, at = varint(values, 0)  # how many objects
        size, at = varint(values, at)
        assert at == len(values)
        total += size
    return total


def test_a_profile_is_of_what_is_held(tmp_path: Path) -> None:
    """At rest and after a step: the samples of all devices add up to what they hold, and to nothing less."""
    step = built("fsdp")
    program = quick.compiled(step.lower())
    training = begin_training(step, program, step.init, read_corpus(None, CONFIG), batches=1)
    live = profile_memory(training, tmp_path / "case")
    held = sum(live[f"memory.live_{holder}_bytes"] for holder in HELD.values())
    assert held == sum(formula("fsdp")[kind] for kind in HELD)
    for moment in ("at_rest", "after_step"):
        assert profiled_bytes(tmp_path / "case" / f"{moment}.pprof") >= 8 * held
    # Where no profile can be written the step runs all the same: other processes may have written theirs.
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        profile_memory(training, tmp_path / "file")
    assert int(training.state.optimizer[0].count) == 2


def test_a_profile_that_cannot_be_written_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process that cannot write its profile warns, and goes on as those do that can."""
    settings = RunSettings(EMPTY_CORPUS, memory_profile=tmp_path)
    preparation = Preparation(SINGLE, settings, References(EMPTY_CORPUS, Clock()))
    monkeypatch.setattr(preparation.references, "start", lambda *_, **__: "a training run")
    monkeypatch.setattr("benchmarks.run.prepare.profile_memory", Mock(side_effect=OSError("the disk is full")))
    record = preparation.start_one_batch(Record.begin(SINGLE))
    with pytest.warns(UserWarning, match="no memory profile was written: OSError: the disk is full"):
        assert preparation.profile(record) == record


@pytest.mark.factorisations
def test_a_run_writes_profiles_and_says_what_was_held(tmp_path: Path) -> None:
    """For each case two profiles, and in its row the live bytes: those of the formulas, and a few of the loss."""
    report, folder = tmp_path / "run.json", tmp_path / "profiles"
    process = run(
        "--strategy=data", "--mesh=data=2", f"--memory-profile={folder}", f"--benchmark-json={report}", single=""
    )
    ((case, row),) = rows(report).items()
    info = row["extra_info"]
    assert info["status"] == "ok", process.stdout
    assert sorted(path.name for path in (folder / case).iterdir()) == ["after_step.pprof", "at_rest.pprof"]
    assert info["memory.live_parameter_bytes"] == info["memory.parameter_bytes"]
    assert info["memory.live_optimizer_bytes"] == info["memory.optimizer_bytes"]
    arguments = ("parameter", "optimizer", "batch")
    assert sum(info[f"memory.live_{holder}_bytes"] for holder in arguments) == info["memory.argument_bytes"]
    assert info["memory.argument_bytes"] == info["predicted.argument_bytes"]
    assert 8 <= info["memory.live_rest_bytes"] < 10_000


def test_what_does_not_run_has_no_profile(tmp_path: Path) -> None:
    """A memory profile of steps that are compiled only is refused."""
    refused = run("--strategy=data", "--compile-only", f"--memory-profile={tmp_path}")
    assert "--memory-profile needs steps that run, and --compile-only" in refused.stdout + refused.stderr
