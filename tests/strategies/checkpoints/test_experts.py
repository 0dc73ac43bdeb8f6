"""Checkpoints of mixtures under strategies that split the optimizer state of experts along other axes than all else."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from strategies.checkpoints import restore, save
from tests.strategies.equality import ROUNDING, adam, assert_equal, build, initial, ordered_state, trained
from tests.strategies.models import BIASED, DEEP_LEAD
from tests.strategies.sampling import nightly

SMALL, BOTH = dataclasses.replace(BIASED, layers=2), "data=2,expert=2"


@pytest.mark.parametrize(
    ("name", "options", "trained_on"),
    [
        ("zero1", {}, ("zero1",)),
        *nightly(("zero1", {}, ("single", "expert")), ("zero2", {"microbatches": 2}, ("zero2", "single", "expert"))),
    ],
)
def test_split_optimizer_state_of_experts_is_given_back(name, options, trained_on, tmp_path):
    """What zero1 or zero2 saves on data x expert is restored to the bit: there, by `single` and by `expert`.

    Moments of experts are split along data, and those of other weights along both axes. Training goes on as without a
    checkpoint.
    """
    step = build(name, BOTH, SMALL, **options)
    _, state = trained(step, initial(step), range(2))
    moments = adam(state).mu["blocks"]["experts"]
    assert ("data", "expert") in moments["router_DE"].sharding.spec
    assert {"data", "expert"} < {*moments["gate_EDF"].sharding.spec}
    save(step, state, tmp_path).wait()
    saved = ordered_state(step, state)
    expected, _ = trained(step, state, range(2, 4))
    for other, mesh in ((name, BOTH), ("single", "data=1"), ("expert", BOTH)):
        after = build(other, mesh, SMALL, **options)
        restored = restore(after, tmp_path)
        jax.tree.map(np.testing.assert_array_equal, ordered_state(after, restored), saved)
        if other in trained_on:
            assert_equal(trained(after, restored, range(2, 4))[0], expected, ROUNDING["float32"])


@pytest.mark.factorisations
def test_leading_dense_layers_leave_a_pipeline(tmp_path):
    """A checkpoint of a pipeline is one of any step; both evaluate alike, and count what routers choose alike."""
    staged: Any = build("pipeline", "pipeline=2", DEEP_LEAD, schedule="interleaved", microbatches=4)
    alone: Any = build("single", "data=1", DEEP_LEAD)
    save(staged, initial(staged), tmp_path).wait()
    states = restore(staged, tmp_path), restore(alone, tmp_path)
    tokens = np.random.default_rng(0).integers(0, DEEP_LEAD.vocab, staged.batch.shape)
    results: Any = [
        [jax.device_get(work(state.params, step.place(tokens))) for work in (step.evaluation, step.load)]
        for step, state in zip((staged, alone), states, strict=True)
    ]
    jax.tree.map(np.testing.assert_array_equal, states[1].params, initial(alone).params)
    assert results[0][0] == pytest.approx(results[1][0], rel=ROUNDING["float32"])
    assert (results[0][1].choices_LE == results[1][1].choices_LE).all()
