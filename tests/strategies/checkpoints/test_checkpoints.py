"""What one strategy saves, any other restores: training goes on as if nothing had happened."""

import dataclasses
import itertools
import json
import math
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest

from strategies import STRATEGIES, CheckpointError
from strategies.checkpoints import canonical, restore, save, zarr_arrays
from strategies.checkpoints.info import positions
from strategies.checkpoints.info import read as read_info
from tests.processes import ROOT, run_together
from tests.strategies.checkpoints.variants import VARIANTS, first_half, joined, resumed, step_at, step_of
from tests.strategies.equality import CONFIG, ROUNDING, assert_equal, build, initial, single, trained
from tests.strategies.sampling import nightly

HALF = 3
"""Steps before a save, and after it."""
NAMES = tuple(VARIANTS)
PAIRS = ("empty slots", "zero1"), ("zero1", "interleaved"), ("interleaved", "fsdp")
"""Saved under the first, restored under the second. That every other pair goes on like these follows from two laws of
each variant: it writes the arrays of the model, and it gets back what it has written.
"""
MOVED = "fsdp", "tensor", "expert", "interleaved", "empty slots"
"""Variants that store arrays in ways of their own: sharded, padded, by expert, and with layers in other slots."""
OTHER_PAIRS = [pair for pair in itertools.product(NAMES, NAMES) if pair not in PAIRS]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """variant -> the folder with a checkpoint of its state after some steps."""
    folders = {}

    def folder(variant):
        if variant not in folders:
            folders[variant] = tmp_path_factory.mktemp("saved")
            _, state = first_half(variant, HALF)
            save(step_of(variant), state, folders[variant]).wait()
        return folders[variant]

    return folder


def test_the_variants_have_every_strategy():
    """Each strategy saves and restores; at night each variant restores what each has saved."""
    assert {name for name, _, _ in VARIANTS.values()} == {*STRATEGIES}
    assert {*PAIRS, *OTHER_PAIRS} == {*itertools.product(NAMES, NAMES)}


@pytest.mark.parametrize(("before", "after"), [*PAIRS, *nightly(*OTHER_PAIRS)])
def test_training_goes_on_under_another_strategy(before, after, saved):
    """Three steps, save, restore elsewhere, and three steps compute what six steps on one device compute."""
    first, _ = first_half(before, HALF)
    step = step_of(after)
    second, _ = trained(step, restore(step, saved(before)), range(HALF, 2 * HALF))
    whole, _ = first_half("single", 2 * HALF)
    assert_equal(joined(first, second), whole, ROUNDING["float32"])


@pytest.mark.parametrize(
    ("name", "mesh", "options"),
    [("zero1", "data=4", {}), ("three_d", "fsdp=2,pipeline=2,tensor=2", {"microbatches": 4, "matrices": "gather"})],
)
def test_muon_goes_on_under_another_placement(name, mesh, options, tmp_path):
    """Its momentum is restored where matrices are split along other dims, and no second moments are missed."""
    muon: dict[str, Any] = {"optimizer": "muon"}
    before, after = build("fsdp", "fsdp=8", **muon), build(name, mesh, **muon, **options)
    mine, _ = resumed(before, after, tmp_path, HALF, HALF)
    assert_equal(mine, single(CONFIG, 2 * HALF, **muon), ROUNDING["float32"], before.train)
    with pytest.raises(CheckpointError, match="of optimizer=muon, and the step has optimizer=adamw; build the step"):
        restore(step_of("zero1"), tmp_path)


@pytest.mark.parametrize("variant", [*MOVED, *nightly(*(name for name in NAMES if name not in MOVED))])
def test_the_form_on_disk_is_that_of_the_model(variant, tmp_path):
    """Whatever the strategy, there is one array for each weight and moment: unpadded, layers in order."""
    step, whole = step_of(variant), step_of("single")
    save(step, initial(step), tmp_path).wait()
    assert read_info(tmp_path).config == CONFIG
    expected = dict(zip([leaf.name for leaf in canonical.leaves(whole)], jax.tree.leaves(initial(whole)), strict=True))
    assert {*read_info(tmp_path).arrays, *read_info(tmp_path).scalars} == {*expected}
    for name in read_info(tmp_path).arrays:
        written = zarr_arrays.open_array(tmp_path / "0", name, {}).read().result()
        sizes = tuple(n for n, _ in zip(expected[name].shape, written.shape, strict=True))
        assert written.shape == (CONFIG.vocab, *sizes[1:]) if name.endswith("token_VD") else sizes
        np.testing.assert_array_equal(written, np.asarray(expected[name])[: len(written)])


@pytest.mark.parametrize("variant", NAMES)
def test_the_same_step_gets_back_its_state_to_the_bit(variant, saved, tmp_path):
    """Save and restore under the same strategy are inverse, padding included, and change no sharding."""
    step = step_of(variant)
    state = restore(step, saved("single"))  # trained, without a program of its own
    assert all(np.any(np.asarray(moment)) for moment in jax.tree.leaves(state.optimizer[0].mu))
    save(step, state, tmp_path).wait()
    restored = restore(step, tmp_path)
    for mine, expected in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(mine, expected)
        assert mine.sharding.is_equivalent_to(expected.sharding, mine.ndim)
    assert jax.tree.structure(restored) == jax.tree.structure(state)


@pytest.mark.parametrize("variant", ["fsdp", "tensor", "three_d", "empty slots"])
def test_no_process_holds_an_array_that_its_strategy_shards(variant, monkeypatch, tmp_path):
    """Neither writing nor reading has a larger array on the host than a shard and a chunk on disk."""
    step, largest = step_of(variant), {}
    state = initial(step)
    stored = [leaf.stored for leaf in canonical.leaves(step)]

    def record(name, function):
        def recorded(*arguments, **named):
            array = function(*arguments, **named)
            largest[name] = max(largest.get(name, 0), array.nbytes)
            return array

        return recorded

    monkeypatch.setattr(canonical.np, "array", record("written", np.array))
    monkeypatch.setattr(zarr_arrays.np, "zeros", record("read", np.zeros))
    save(step, state, tmp_path).wait()
    restore(step, tmp_path)
    shard = max(4 * math.prod(array.sharding.shard_shape(array.shape)) for array in stored)
    assert largest == {"written": shard, "read": shard}
    assert shard < max(4 * math.prod(array.shape) for array in stored)


def test_chunks_on_disk_are_small_and_divide_shards(monkeypatch):
    """A chunk has one layer and at most that many bytes, and no two shards share one."""
    monkeypatch.setattr(canonical, "MOST_CHUNK_BYTES", 1000)
    for variant in NAMES:
        for leaf in canonical.leaves(step_of(variant)):
            if not leaf.is_scalar:
                shard = leaf.stored.sharding.shard_shape(leaf.stored.shape)
                assert 4 * math.prod(leaf.chunks) <= 1000
                assert all(size % part == 0 for size, part in zip(shard, leaf.chunks, strict=True))
                assert leaf.dims[0] != "layers" or leaf.chunks[0] == 1


def test_a_state_may_be_donated_while_it_is_written(tmp_path):
    """A save has the state of the moment of its call, whatever the step does with the arrays afterwards."""
    step = step_of("fsdp")
    state = initial(step)
    before = jax.tree.map(np.array, state)
    saving = save(step, state, tmp_path)
    trained(step, state, range(2))
    saving.wait()
    assert all(array.is_deleted() for array in jax.tree.leaves(state.params))
    jax.tree.map(np.testing.assert_array_equal, restore(step, tmp_path), before)


def test_what_stands_beside_the_arrays(saved, tmp_path):
    """The model, the optimizer's count, the position in the data and the caller's facts are JSON."""
    step = step_of("tensor")
    save(step, restore(step, saved("single")), tmp_path, position=17, metadata={"corpus": "abc"}).wait()
    facts = json.loads((tmp_path / "17" / "checkpoint.json").read_text())
    assert facts["config"] == dataclasses.asdict(CONFIG)
    assert (facts["format"], facts["step"], facts["position"], facts["metadata"]) == (3, HALF, 17, {"corpus": "abc"})


def test_the_oldest_are_removed(tmp_path):
    """`keep` is how many checkpoints are left, and without a position the latest is restored."""
    step, (_, state) = step_of("single"), first_half("single", HALF)
    for position in (1, 2, 10):
        save(step, state, tmp_path, position=position, keep=2)
    restore(step, tmp_path)  # waits for the last save
    assert sorted(path.name for path in tmp_path.iterdir()) == ["10", "2"]
    assert read_info(tmp_path).position == 10
    assert read_info(tmp_path, at=2).position == 2


FSDP, THREE_D = "fsdp:fsdp=4", "three_d:pipeline=2,tensor=2"


@pytest.mark.processes
@pytest.mark.parametrize(("here", "there"), [(THREE_D, FSDP), (FSDP, THREE_D)])
def test_the_number_of_processes_may_change(here, there, tmp_path):
    """Two processes restore what one has saved, and it what they save, and training goes on as on one device.

    The first step is made here, the second one there under another strategy, and the third one here again.
    """
    step = step_at(here)
    first, state = trained(step, initial(step), range(1))
    save(step, state, tmp_path).wait()
    said = run_together(2, 2, "tests.strategies.checkpoints.resume_in_process", [str(tmp_path), there])
    assert positions(tmp_path) == [1, 2]
    last, _ = trained(step, restore(step, tmp_path), range(2, 3))
    for output in said:
        second = map(float, output.splitlines()[-1].split())
        losses, norms = (
            np.array([*mine, its, *after]) for mine, its, after in zip(first[:2], second, last[:2], strict=True)
        )
        assert_equal((losses, norms, first[2] + last[2]), single(), ROUNDING["float32"])


COMPRESSED: dict[str, Any] = {"compression": "int8"}


def test_error_feedback_is_given_back(tmp_path):
    """With as many devices as before, each gets its quantisation errors back."""
    step = build("data", "data=4", **COMPRESSED)
    (_, state) = trained(step, initial(step), range(1))
    save(step, state, tmp_path).wait()
    jax.tree.map(np.testing.assert_array_equal, restore(step, tmp_path), state)
    assert np.abs(np.asarray(state.optimizer.errors.shares)).max() > 0


@pytest.mark.parametrize("devices", [2, 8])
def test_error_feedback_keeps_its_sum_on_other_devices(devices, tmp_path):
    """With another number of devices the sum of all errors is the same, number by number."""
    step = build("data", "data=4", **COMPRESSED)
    (_, state) = trained(step, initial(step), range(1))
    save(step, state, tmp_path).wait()
    other = restore(build("data", f"data={devices}", **COMPRESSED), tmp_path).optimizer.errors
    mine = np.asarray(other.shares).reshape(devices, -1)
    expected = np.asarray(state.optimizer.errors.shares).reshape(4, -1)
    size = min(mine.shape[1], expected.shape[1])
    np.testing.assert_allclose(mine.sum(0)[:size], expected.sum(0)[:size], atol=1e-7)
    np.testing.assert_array_equal(np.ptp(mine, axis=0), 0)
    np.testing.assert_array_equal(other.sums[:size], state.optimizer.errors.sums[:size])
    assert not np.any(mine[:, size:])
    assert not np.any(expected[:, size:])


def test_error_feedback_is_dropped_with_a_warning(tmp_path):
    """A step that keeps no quantisation errors says that it drops them; one that begins to compress has none."""
    step = build("data", "data=4", **COMPRESSED)
    (_, state) = trained(step, initial(step), range(1))
    save(step, state, tmp_path / "int8").wait()
    plain = step_of("data")
    with pytest.warns(RuntimeWarning, match="errors of compression=int8 are dropped: this step has compression=none"):
        restored = restore(plain, tmp_path / "int8")
    jax.tree.map(np.testing.assert_array_equal, restored.params, state.params)
    save(plain, restored, tmp_path / "none").wait()
    again = restore(step, tmp_path / "none")
    assert not any(np.any(errors) for errors in again.optimizer.errors)
    jax.tree.map(np.testing.assert_array_equal, again.optimizer.optimizer, state.optimizer.optimizer)


def test_only_a_save_loads_orbax():
    """Loading Orbax takes up to a second: neither a training run before its first save nor a restore needs it."""
    code = "import sys, benchmarks.training.train; sys.exit('orbax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
