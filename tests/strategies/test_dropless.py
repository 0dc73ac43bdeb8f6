"""Experts over devices without a capacity factor: equal to one device, and known to the byte."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

from strategies import STRATEGIES, MeshSpec, strategy
from strategies.backends.backend import CPU
from strategies.core.plan import Plan
from strategies.costs.layer import kept_bytes
from strategies.costs.predict import Cost
from strategies.model.order import after
from strategies.model.router import forced
from strategies.pipelining.jaxpr import Loop
from tests.strategies.costs.test_kept import loops
from tests.strategies.equality import ROUNDING, assert_equal, initial, trained
from tests.strategies.sampling import nightly
from tests.strategies.test_expert import ALL_KEPT, assert_as_one_device, build, single

ONE = dataclasses.replace(ALL_KEPT, experts=14, routing="one")
"""All tokens choose experts 3 and 2, and so the first of two devices: rows that it has for them are full."""
SHALLOW = dataclasses.replace(ONE, layers=2)
SPLIT = {"sequence_parallel": False}
STAGES = {"microbatches": 4}


def assert_chosen_by_all(config, mesh):
    """All choices of all tokens are of experts of one device, so that its rows for them are full."""
    held = config.experts // mesh.sizes["expert"]
    assert config.experts_per_token <= held
    assert len({*(forced(config, jnp.arange(config.sequence)) // held).reshape(-1).tolist()}) == 1


@pytest.mark.parametrize(
    ("name", "mesh", "config", "options"),
    [
        ("expert", "data=2,expert=2", SHALLOW, {"dispatch": "all_to_all", "halves": "on"}),
        ("expert", "expert=2", SHALLOW, {"dispatch": "all_gather", "remat": "full"}),
        *nightly(
            ("expert", "data=2,expert=2", SHALLOW, {"dispatch": "all_to_all"}),
            ("expert", "expert=4", ALL_KEPT, {"dispatch": "all_gather", "remat": "full", "halves": "on"}),
            ("three_d", "expert=2,tensor=2", ALL_KEPT, {"remat": "full", "halves": "on"}),
            ("expert", "expert=2", ALL_KEPT, {"dispatch": "all_to_all", "remat": "full"}),
            ("expert", "expert=8", ALL_KEPT, {"dispatch": "all_to_all", "remat": "none"}),
            ("expert", "expert=8", ALL_KEPT, {}),
            ("expert", "data=4,expert=2", ONE, {"dispatch": "all_to_all", "microbatches": 2}),
            ("expert", "data=4,expert=2", ONE, {"dispatch": "all_gather", "remat": "none"}),
            ("zero1", "data=2,expert=4", ALL_KEPT, {"dispatch": "all_to_all"}),
            ("three_d", "expert=2,tensor=2", ALL_KEPT, SPLIT),
            ("three_d", "expert=2,tensor=2", ALL_KEPT, {**SPLIT, "remat": "full"}),
            ("three_d", "fsdp=2,expert=2,tensor=2", ALL_KEPT, {"dispatch": "all_to_all", "prefetch": "on"}),
            ("three_d", "fsdp=2,expert=4", ALL_KEPT, {"dispatch": "all_gather", "remat": "full"}),
            ("three_d", "context=2,expert=2", ALL_KEPT, {"dispatch": "all_to_all", "remat": "full"}),
            ("three_d", "context=2,expert=2", ONE, {"dispatch": "all_gather"}),
            ("three_d", "pipeline=2,expert=2", ALL_KEPT, {**STAGES, "dispatch": "all_to_all"}),
            ("three_d", "pipeline=3,expert=2", ALL_KEPT, {**STAGES, "dispatch": "all_to_all", "schedule": "zb-h1"}),
            ("three_d", "pipeline=3,expert=2", ALL_KEPT, {**STAGES, "schedule": "zb-h1"}),
        ),
    ],
    ids=lambda value: "" if dataclasses.is_dataclass(value) else str(value),
)
def test_devices_that_split_experts_drop_nothing(name, mesh, config, options):
    """As on one device, with learned routing, and where all tokens choose experts of one device."""
    if config.routing == "one":
        assert_chosen_by_all(config, MeshSpec.parse(mesh))
    assert_as_one_device(name, mesh, config, options)


def ragged_by_gathers(rows, received, starts, sizes, offsets, arriving, *, axis_name):
    """What `jax.lax.ragged_all_to_all` computes: all devices get all rows, and take those that are for them.

    A part is no larger than its sender and its receiver say.
    """
    told = jax.lax.all_gather(jnp.stack([starts, sizes, offsets]), axis_name)
    rows = jax.lax.all_gather(after(told, rows), axis_name)  # two at the same time could deadlock
    for source in range(len(rows)):
        start, size, offset = told[source, :, jax.lax.axis_index(axis_name)]
        size = jnp.minimum(size, arriving[source])
        index = jnp.arange(len(received)) - offset
        taken = jnp.take(rows[source], start + index, axis=0, mode="clip")
        received = jnp.where(((index >= 0) & (index < size))[:, None], taken, received)
    return received


@pytest.mark.parametrize(
    ("name", "mesh", "config", "options"),
    [
        ("expert", "data=2,expert=2", SHALLOW, {}),
        *nightly(
            ("expert", "expert=4", ALL_KEPT, {"remat": "full"}),
            ("expert", "expert=4", ALL_KEPT, {"halves": "on"}),
            ("expert", "expert=8", ALL_KEPT, {"remat": "none", "microbatches": 2}),
            ("three_d", "fsdp=2,expert=2,tensor=2", ALL_KEPT, SPLIT),
            ("three_d", "pipeline=2,expert=2", ALL_KEPT, STAGES),
        ),
    ],
    ids=lambda value: "" if dataclasses.is_dataclass(value) else str(value),
)
def test_ragged_exchanges_send_rows_as_one_device_has_them(name, mesh, config, options, monkeypatch):
    """Results are those of one device, and layers keep what formulas say, with the primitive replaced by gathers.

    Rows that are sent are k for each token, whatever the routing.
    """
    if config.routing == "one":
        assert_chosen_by_all(config, MeshSpec.parse(mesh))
    monkeypatch.setattr(jax.lax, "ragged_all_to_all", ragged_by_gathers)
    backend = dataclasses.replace(CPU, sends_ragged=True)
    monkeypatch.setattr(strategy, "backend_of", lambda device: backend)
    options = {**options, "dispatch": "all_to_all"}
    step = build(name, MeshSpec.parse(mesh), config, **options)
    microbatches = options.get("microbatches", 1)
    assert_equal(trained(step, initial(step), range(3))[0], single(config, microbatches), ROUNDING["float32"])
    plan = Plan.of(STRATEGIES[name].axes, config, MeshSpec.parse(mesh), step.train, backend)
    sent = {each.what: each.operand_bytes for each in Cost(plan).traffic}
    combined = 2 * plan.layers * plan.tokens * config.experts_per_token * config.embed
    assert sent["combine"] == 4 * combined
    jaxpr = jax.make_jaxpr(step.gradients)(step.state, step.batch).jaxpr
    layers = 1 if plan.staged else plan.layers
    forward, *_ = [loop for loop in loops(jaxpr) if Loop.of(loop).carry == 1 and loop.params["length"] == layers]
    kept = forward.outvars[1 + len(plan.block.extras()) :]
    held = sum(each.aval.dtype.itemsize * math.prod(each.aval.shape) for each in kept)
    assert held == layers * kept_bytes(plan.share)
