"""Experts over devices without a capacity factor, whose rows are exchanged as they are (cases.py has the others)."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from strategies import STRATEGIES, MeshSpec, strategy
from strategies.backends.backend import CPU
from strategies.core.plan import Plan
from strategies.costs.predict import Cost
from strategies.model.layers import after
from strategies.model.router import forced
from tests.strategies.equality import ROUNDING, assert_equal, build, initial, single, trained
from tests.strategies.jaxprs import assert_kept, gradients_of
from tests.strategies.models import ALL_KEPT, CROWDED_SHALLOW
from tests.strategies.sampling import nightly


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
        ("expert", "data=2,expert=2", CROWDED_SHALLOW, {}),
        *nightly(
            ("expert", "expert=4", ALL_KEPT, {"remat": "full"}),
            ("expert", "expert=4", ALL_KEPT, {"halves": "on"}),
            ("expert", "expert=8", ALL_KEPT, {"remat": "none", "microbatches": 2}),
            ("three_d", "fsdp=2,expert=2,tensor=2", ALL_KEPT, {"sequence_parallel": False}),
            ("three_d", "pipeline=2,expert=2", ALL_KEPT, {"microbatches": 4}),
        ),
    ],
    ids=lambda value: "" if dataclasses.is_dataclass(value) else str(value),
)
def test_ragged_exchanges_send_rows_as_one_device_has_them(name, mesh, config, options, monkeypatch):
    """Results are those of one device, and layers keep what formulas say, with the primitive replaced by gathers.

    Rows that are sent are k for each token, whatever the routing.
    """
    monkeypatch.setattr(jax.lax, "ragged_all_to_all", ragged_by_gathers)
    backend = dataclasses.replace(CPU, sends_ragged=True)
    monkeypatch.setattr(strategy, "backend_of", lambda device: backend)
    options = {**options, "dispatch": "all_to_all"}
    step = build(name, mesh, config, **options)
    assert_equal(trained(step, initial(step), range(3))[0], single(config, **options), ROUNDING["float32"])
    plan = Plan.of(STRATEGIES[name].axes, config, MeshSpec.parse(mesh), step.train, backend)
    sent = {each.what: each.operand_bytes for each in Cost(plan).traffic}
    combined = 2 * plan.layers * plan.tokens * config.experts_per_token * config.embed
    assert sent["combine"] == 4 * combined
    assert_kept(gradients_of(step), plan)


def test_all_choices_are_of_one_device():
    """The model whose rows are full: all tokens choose experts 3 and 2, and so the first of two devices."""
    assert CROWDED_SHALLOW.experts
    held = CROWDED_SHALLOW.experts // 2
    assert CROWDED_SHALLOW.experts_per_token <= held
    assert len({*(forced(CROWDED_SHALLOW, jnp.arange(CROWDED_SHALLOW.sequence)) // held).reshape(-1).tolist()}) == 1
