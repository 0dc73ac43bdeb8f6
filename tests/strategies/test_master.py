"""Master weights: parameters in the compute dtype, and float32 weights in shards beside AdamW's moments."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from strategies import STRATEGIES, GPTConfig, TrainConfig
from strategies.checkpoints import canonical, restore, save, zarr_arrays
from strategies.core.sizes import BYTES
from strategies.costs.arrays import held_arrays
from strategies.costs.predict import predict
from strategies.model.gpt import map_weights, param_count
from tests.strategies.checkpoints.variants import resumed
from tests.strategies.communication import CONFIG, communication
from tests.strategies.equality import ROUNDING, TRAIN, assert_equal, build, initial, single, trained
from tests.strategies.jaxprs import inner
from tests.strategies.sampling import nightly

WEIGHTS = param_count(CONFIG)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("zero2", {"dtype": "float16", "microbatches": 2}),
        *nightly(
            ("zero1", {"dtype": "bfloat16", "reduce": "layer"}),
            ("zero1", {"dtype": "bfloat16", "reduce_dtype": "bfloat16"}),
            ("zero1", {"dtype": "float16"}),
            ("zero2", {"dtype": "bfloat16"}),
            ("zero2", {"dtype": "bfloat16", "reduce": "layer", "microbatches": 2}),
        ),
    ],
    ids=str,
)
def test_a_step_with_master_weights_equals_one_device(name, options):
    """Losses, gradients and master weights are those of one device in the same dtype; parameters are them, cast."""
    step = build(name, "data=4", master="float32", **options)
    mine, state = trained(step, initial(step), range(3))
    assert_equal(mine, single(dtype=options["dtype"]), ROUNDING[options["dtype"]])

    def check(param, spec, master):
        dtype = spec.used_dtype(step.train.dtype)
        assert (param.dtype, master.dtype) == (dtype, "float32")
        assert param.sharding.is_fully_replicated
        assert master.sharding.shard_shape(master.shape) != master.shape
        np.testing.assert_array_equal(param, np.asarray(master).astype(param.dtype))

    map_weights(check, step.config, state.params, state.master)


@pytest.mark.parametrize("reduce_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "scatters"), [("zero1", 1), ("zero2", 2)])
def test_weights_are_gathered_in_the_compute_dtype(name, scatters, reduce_dtype):
    """Matrices in bfloat16, vectors in float32. Gradients are scattered in `reduce_dtype`. So is the formula."""
    train = {"dtype": "bfloat16", "microbatches": 2, "reduce_dtype": reduce_dtype, "master": "float32"}
    counted = communication(name, "data=8", part="update", unit="bytes", **train)
    cost = predict(name, CONFIG, "data=8", dataclasses.replace(TRAIN, **train))
    vectors = sum(weight.elements for weight in cost.plan.weights.values() if cost.plan.dtype(weight) == "float32")
    assert counted == {
        ("reduce_scatter", ("data",)): BYTES[reduce_dtype] * scatters * WEIGHTS,
        ("all_gather", ("data",)): (2 * WEIGHTS + 2 * vectors) / 8,
        ("psum", ("data",)): 4 * 2,
    }
    for kind in ("reduce_scatter", "all_gather"):
        assert sum(each.operand_bytes for each in cost.traffic if each.kind == kind) == counted[kind, ("data",)]


def computed(program):
    """Shape and dtype of everything that a program and the programs inside it compute."""
    for equation in program.eqns:
        yield from ((x.aval.shape, x.aval.dtype.name) for x in equation.outvars)
        for part, _ in inner(equation):
            yield from computed(part)


def test_gradients_are_not_whole_in_float32():
    """With reduce_dtype=bfloat16 no gradient of a stacked matrix is ever whole in float32. Without masters it is."""
    for master in ("none", "float32"):
        step = build("zero2", "data=4", master=master, dtype="bfloat16", reduce_dtype="bfloat16")
        (on_a_device,) = jax.make_jaxpr(step.gradients)(step.state, step.batch).jaxpr.eqns[0].params["jaxpr"].eqns
        found = {*computed(on_a_device.params["jaxpr"])}
        up_LDF = step.state.params["blocks"]["mlp"]["up_DF"].shape
        assert (up_LDF, "bfloat16") in found or master == "none"
        assert ((up_LDF, "float32") in found) == (master == "none")


SIZE = GPTConfig(layers=36, embed=4096, heads=32, sequence=1024)
"""Some 7.5 billion parameters."""


def gigabytes(name, mesh, **options):
    """GB of weights, gradients and optimizer state on a device, for 7.5 billion parameters."""
    train = TrainConfig(64, dtype="bfloat16", **options)
    held = held_arrays(predict(name, SIZE, mesh, train).plan)
    per_device = sum(each.held_bytes for each in held if each.what not in ("batch", "step count"))
    return 7.5 * per_device / predict("single", SIZE, "data=1", TrainConfig(64)).plan.elements


def test_sizes_are_those_of_the_paper():
    """Figure 1 of Rajbhandari et al. 2020: 7.5 billion parameters on 64 devices, 16 bytes each without ZeRO.

    ZeRO-2 differs by 2 bytes / 64: the sums of gradients over devices, of which a device has a shard, are float32 here,
    and float16 there. Both leave out whole gradients of the layer that runs, which `reduce="layer"` scatters. Vectors,
    which are float32 here, are less than a thousandth of the parameters.
    """
    ours = {
        "data": gigabytes("data", "data=64"),
        "zero1": gigabytes("zero1", "data=64", master="float32"),
        "zero2": gigabytes("zero2", "data=64", master="float32", reduce="layer") - 7.5 * 2 / 64,
        "fsdp": gigabytes("fsdp", "fsdp=64"),
        "zero1 with float32 weights": gigabytes("zero1", "data=64"),
    }
    bytes_each = [16, 2 + 2 + 12 / 64, 2 + (2 + 12) / 64, 16 / 64, 4 + 4 + 8 / 64]
    assert [*ours.values()] == pytest.approx([7.5 * each for each in bytes_each], rel=1e-3)
    assert [*ours.values()][:4] == pytest.approx([120, 31.4, 16.6, 1.9], abs=0.05)


CASES = {"master": ("zero2", {"master": "float32"}), "zero1": ("zero1", {}), "fsdp": ("fsdp", {})}


@functools.cache
def step_of(case):
    """A step in bfloat16."""
    name, options = CASES[case]
    return build(name, f"{STRATEGIES[name].axis_names[0]}=4", dtype="bfloat16", **options)


@pytest.mark.parametrize("other", ["zero1", "fsdp"])
def test_a_checkpoint_has_master_weights_and_no_others(other, tmp_path):
    """It has the arrays of any checkpoint, in float32. Others restore the masters, and their checkpoints give both."""
    step, another = step_of("master"), step_of(other)
    _, state = trained(step, initial(step), range(1))
    save(step, state, tmp_path / "here").wait()
    names = [leaf.name for leaf in canonical.leaves(another) if leaf.dims]
    assert sorted(path.name for path in (tmp_path / "here" / "1" / "params").iterdir()) == sorted(
        name.removeprefix("params/") for name in names if name.startswith("params/")
    )
    for name in names:
        assert zarr_arrays.open_array(tmp_path / "here" / "1", name, {}).dtype.name == "float32"
    theirs = restore(another, tmp_path / "here")
    jax.tree.map(np.testing.assert_array_equal, theirs.params, state.master)
    save(another, theirs, tmp_path / "there").wait()
    again = restore(step, tmp_path / "there")
    jax.tree.map(np.testing.assert_array_equal, again, state)
    for mine, expected in zip(jax.tree.leaves(again), jax.tree.leaves(state), strict=True):
        assert mine.dtype == expected.dtype
        assert mine.sharding.is_equivalent_to(expected.sharding, mine.ndim)


@pytest.mark.factorisations
@pytest.mark.parametrize(("before", "after"), [("zero1", "master"), ("master", "fsdp")])
def test_training_goes_on_with_and_without_master_weights(before, after, tmp_path):
    """One step, save, restore under another strategy, and two steps compute what three on one device compute."""
    mine, _ = resumed(step_of(before), step_of(after), tmp_path, 1, 2)
    assert_equal(mine, single(dtype="bfloat16"), ROUNDING["bfloat16"])
