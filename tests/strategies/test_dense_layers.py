"""Mixtures with leading dense layers under every strategy: equal to one device, and known to the byte."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from strategies import MeshSpec
from strategies.checkpoints import restore, save
from tests.strategies.equality import ROUNDING, initial
from tests.strategies.sampling import nightly
from tests.strategies.test_expert import ALL_KEPT, BIASED, DROPPING, assert_as_one_device, build

SHORT = dataclasses.replace(DROPPING, layers=3, dense_layers=1, mlp=64)
LEAD = dataclasses.replace(ALL_KEPT, layers=4, dense_layers=1, mlp=64)
DEEP = dataclasses.replace(LEAD, layers=5)
LEADS = dataclasses.replace(BIASED, block="qwen3", key_heads=4, tied=False, layers=5, dense_layers=2, mlp=80)
# One head of keys, which all devices of a tensor axis copy.
SHARED = dataclasses.replace(SHORT, key_heads=1)


@pytest.mark.parametrize(
    ("name", "mesh", "config", "options"),
    [
        ("three_d", "pipeline=2,expert=2,tensor=2", SHARED, {"microbatches": 2, "sequence_parallel": False}),
        ("three_d", "data=2,tensor=2", SHARED, {"reduce": "layer"}),
        *nightly(
            ("three_d", "expert=2,tensor=4", dataclasses.replace(LEADS, key_heads=2), {"reduce": "layer"}),
            ("three_d", "context=2,tensor=2", dataclasses.replace(LEADS, key_heads=1), {"reduce": "layer"}),
            ("three_d", "data=2,pipeline=2,tensor=2", dataclasses.replace(LEADS, key_heads=1), {"microbatches": 4}),
            ("three_d", "pipeline=2,expert=2,tensor=2", SHORT, {"microbatches": 2, "sequence_parallel": False}),
            ("zero1", "data=2,expert=2", SHORT, {"microbatches": 2}),
            ("zero1", "data=2,expert=4", LEADS, {"reduce": "layer"}),
            ("three_d", "expert=2,tensor=2", LEAD, {"sequence_parallel": False}),  # dispatch is "all_gather"
            ("single", "data=1", LEAD, {"remat": "none", "microbatches": 2}),
            ("data", "data=4", LEADS, {"reduce": "layer"}),
            ("data", "data=4", LEADS, {"bucket_bytes": 20_000}),
            ("zero1", "data=4", LEAD, {"reduce": "layer"}),
            ("zero2", "data=4", LEADS, {"microbatches": 2}),
            ("fsdp", "fsdp=4", LEADS, {"prefetch": "on", "microbatches": 2}),
            ("fsdp", "fsdp=4", LEAD, {"gather": "step", "microbatches": 2}),
            ("hsdp", "data=2,fsdp=4", LEAD, {"regather": False}),
            ("tensor", "tensor=4", LEADS, {"remat": "full"}),
            ("context", "context=2", LEAD, {"context_attention": "ulysses", "remat": "full"}),
            ("expert", "data=2,expert=4", LEADS, {"remat": "full"}),
            ("expert", "data=2,expert=2", LEAD, {"reduce": "layer"}),
            ("three_d", "fsdp=2,expert=2,tensor=2", LEADS, {"prefetch": "on"}),
            ("pipeline", "pipeline=2", LEADS, {"microbatches": 4, "remat": "none"}),
            ("pipeline", "pipeline=3", LEAD, {"microbatches": 4, "schedule": "gpipe", "remat": "full"}),
            ("pipeline", "pipeline=2", LEADS, {"microbatches": 4, "schedule": "zb-h1"}),
            ("three_d", "pipeline=2,tensor=2", DEEP, {"microbatches": 4, "schedule": "interleaved", "remat": "full"}),
            ("three_d", "data=2,pipeline=2,tensor=2", DEEP, {"microbatches": 4, "sequence_parallel": False}),
            ("three_d", "fsdp=2,pipeline=2,tensor=2", LEADS, {"microbatches": 4, "schedule": "zb-h1", "remat": "none"}),
            ("three_d", "fsdp=2,pipeline=2,tensor=2", LEAD, {"microbatches": 4, "gather": "step"}),
            ("three_d", "fsdp=2,pipeline=2", LEAD, {"microbatches": 4, "remat": "full"}),
            ("three_d", "pipeline=2,context=2", LEAD, {"microbatches": 4, "schedule": "gpipe", "remat": "full"}),
            ("three_d", "data=2,pipeline=2,expert=2", DEEP, {"microbatches": 4, "schedule": "interleaved"}),
            ("three_d", "pipeline=2,expert=2,tensor=2", LEADS, {"microbatches": 4, "remat": "full"}),
            ("auto", "fsdp=2,tensor=2", LEADS, {}),
            ("auto", "fsdp=2,expert=2", LEADS, {}),
        ),
    ],
    ids=lambda value: "" if dataclasses.is_dataclass(value) else str(value),
)
def test_every_strategy_trains_leading_dense_layers(name, mesh, config, options):
    """As one device does. The stages of a pipeline split the layers with experts, some of them with an empty slot."""
    assert_as_one_device(name, mesh, config, options)


@pytest.mark.factorisations
def test_leading_dense_layers_leave_a_pipeline(tmp_path):
    """A checkpoint of a pipeline is one of any step; both evaluate alike, and count what routers choose alike."""
    mesh, options = MeshSpec.parse("pipeline=2"), {"schedule": "interleaved", "microbatches": 4}
    staged: Any = build("pipeline", mesh, DEEP, **options)
    alone: Any = build("single", MeshSpec.parse("data=1"), DEEP)
    save(staged, initial(staged), tmp_path).wait()
    states = restore(staged, tmp_path), restore(alone, tmp_path)
    tokens = np.random.default_rng(0).integers(0, DEEP.vocab, staged.batch.shape)
    results: Any = [
        [jax.device_get(work(state.params, step.place(tokens))) for work in (step.evaluation, step.load)]
        for step, state in zip((staged, alone), states, strict=True)
    ]
    jax.tree.map(np.testing.assert_array_equal, states[1].params, initial(alone).params)
    assert results[0][0] == pytest.approx(results[1][0], rel=ROUNDING["float32"])
    assert (results[0][1].choices_LE == results[1][1].choices_LE).all()
