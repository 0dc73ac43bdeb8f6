"""What an overview says of a strategy is what its step does."""

import math
from dataclasses import replace

import jax
import pytest

from strategies import PRESETS, STRATEGIES, MeshSpec, TrainConfig
from strategies.costs.defaults import example_mesh
from strategies.costs.exchanges import WHEN, exchanges
from strategies.costs.overview import overview
from strategies.costs.predict import predict
from strategies.model.gpt import param_count
from tests.strategies.cases import DAILY, SLOW
from tests.strategies.equality import TRAIN
from tests.strategies.nightly_formulas import FORMULAS


def axes_of(tree):
    """All mesh axes that split any of these arrays."""
    return {axis for each in jax.tree.leaves(tree) for axis in jax.tree.leaves(tuple(each.sharding.spec)) if axis}


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_is_held_is_split_as_the_step_splits_it(name):
    """Over the same mesh axes, batch, weights and optimizer state; so each array has its bytes on each device."""
    shown = overview(name, "nano")
    mesh, held = MeshSpec(shown.mesh), {each.what: each for each in shown.held}
    step = STRATEGIES[name].build(PRESETS["nano"], mesh, TrainConfig(16, 4))
    weights, moments, batch = held["weights"], held["optimizer state"], held["batch"]
    sizes = mesh.sizes

    def split(tree):
        return {axis for axis in axes_of(tree) if sizes[axis] > 1}

    assert {*weights.rows, *weights.columns, *weights.table} == split(step.state.params)
    assert {*moments.rows, *moments.columns, *moments.table} == split(step.state.optimizer)
    assert {*batch.rows} == split(step.batch)
    table = step.state.params["embedding"]["token_VD"].sharding.spec
    assert {*weights.table} == {axis for axis in jax.tree.leaves(tuple(table)) if axis and sizes[axis] > 1}
    if weights.rows:
        assert step.state.params["blocks"]["attention"]["qkv_DCA"].sharding.spec[0] in (weights.rows, *weights.rows)
    if weights.held_bytes is not None:
        shapes = [weight.sharding.shard_shape(weight.shape) for weight in jax.tree.leaves(step.state.params)]
        assert weights.held_bytes == 4 * sum(map(math.prod, shapes))


@pytest.mark.parametrize("name", STRATEGIES)
def test_activations_are_split_as_batch_and_layers_are(name):
    """Over the axes of the batch, and those of layers and features; their bytes are those that memory is planned by."""
    shown = overview(name, "nano")
    held = {each.what: each for each in shown.held}
    batch, weights, kept = held["batch"], held["weights"], held["activations"]
    assert {*kept.rows} == {*batch.rows, *weights.rows}
    assert {*batch.columns} <= {*kept.columns} <= {*batch.columns, *weights.columns}
    if not STRATEGIES[name].has_formulas:
        assert kept.held_bytes is None
    else:
        spec = MeshSpec(shown.mesh)
        train = TrainConfig(16, STRATEGIES[name].default_microbatches(spec, 16))
        assert kept.held_bytes == predict(name, PRESETS["nano"], spec, train).temporaries["activations"] > 0


def test_what_is_sent_is_what_formulas_say():
    """No term is left out, each has its place in the step, and they are in its order."""
    for case in (*DAILY, *SLOW, *FORMULAS):
        cost = predict(case.name, case.config, case.mesh, replace(TRAIN, **case.train))
        sent = [*exchanges(cost)]
        assert sum(each.sent_bytes for each in sent) == cost.sent_bytes, case
        places = [WHEN.index(each.when) for each in sent]
        assert places == sorted(places), case


@pytest.mark.parametrize(
    ("name", "options", "when"),
    [
        ("zero1", {}, {"gradients": "after backward", "weights": "update"}),
        ("zero2", {}, {"gradients": "after each microbatch", "weights": "update"}),
        ("fsdp", {}, {"weights": "forward", "weights again": "backward", "gradients": "backward"}),
        ("fsdp", {"gather": "step"}, {"weights": "before forward", "gradients": "after backward"}),
    ],
)
def test_weights_and_gradients_move_when_the_strategy_moves_them(name, options, when):
    """As the docstrings of zero.py and fsdp.py say."""
    sent = overview(name, "nano", **options).sent or ()
    assert {each.what: each.when for each in sent if each.array in ("weights", "gradients")} == when


@pytest.mark.parametrize(
    ("name", "options", "links"),
    [
        ("context", {}, {(0, 1), (1, 2), (2, 3), (3, 0)}),
        ("pipeline", {}, {(0, 1), (1, 2), (2, 3), (3, 2), (2, 1), (1, 0)}),
        ("pipeline", {"schedule": "interleaved"}, {(i, (i + d) % 4) for i in range(4) for d in (1, -1)}),
    ],
)
def test_permutations_go_where_the_strategy_sends(name, options, links):
    """Around the ring; or between neighbouring stages, and with chunks from the last stage to the first as well."""
    assert {link for each in overview(name, "nano", **options).sent or () for link in each.links} == links


def test_gradients_that_are_added_up_are_as_large_as_the_step_holds_them():
    """Whole while weights are gathered for a whole step, a part where each microbatch's sum is scattered."""
    whole = 4 * param_count(PRESETS["nano"])
    cases = ("zero1", "layer"), ("zero2", "layer"), ("fsdp", "layer"), ("fsdp", "step")
    shown = [overview(name, "nano", gather=gather) for name, gather in cases]
    held = [each.held_bytes for one in shown for each in one.held if each.what == "gradients"]
    assert held == [whole, whole // 4, whole // 4, whole]


def test_a_strategy_that_the_compiler_partitions_names_its_twin():
    """What it sends is not said."""
    shown = overview("auto")
    assert (shown.sent, shown.twin) == (None, "three_d")
    assert str(shown).endswith("the compiler decides what is sent; the same by hand is three_d")


def test_the_mesh_of_an_example_has_each_axis():
    """Two devices along each."""
    assert str(example_mesh(STRATEGIES["hsdp"])) == "data=2,fsdp=2"


def test_stages_say_what_they_lose_hold_and_repeat():
    """In lockstep GPipe loses (S - 1) / (M + S - 1) and holds all microbatches. Without stages nothing is said."""
    sizes = {"dense_layers": 1, "mtp_loss": 0.3, "block": "llama"}
    shown = overview("pipeline", "nano-moe", "pipeline=2", sizes=sizes, microbatches=4, schedule="gpipe")
    lost, holds, repeated = str(shown).splitlines()[-3:]
    assert lost == f"gpipe: a stage is idle for {1 / 5:.1%} of a step in lockstep"
    assert holds == "a stage holds at most 4 of 4 microbatches"
    assert repeated == "all stages run the layers of dense_layers=1, mtp_loss=0.3"
    assert (shown.idle_share, shown.run_by_all_stages) == (pytest.approx(1 / 5), ("dense_layers=1", "mtp_loss=0.3"))
    assert "stage" not in str(overview("fsdp", "nano-moe", "fsdp=2", sizes=sizes))
