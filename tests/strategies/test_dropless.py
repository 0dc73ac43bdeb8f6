"""Experts over devices without a capacity factor: equal to one device, and known to the byte."""

import dataclasses

import pytest

from tests.strategies.sampling import nightly
from tests.strategies.test_expert import ALL_KEPT, assert_as_one_device

ONE = dataclasses.replace(ALL_KEPT, routing="one")
SHALLOW = dataclasses.replace(ONE, layers=2)
SPLIT = {"sequence_parallel": False}
STAGES = {"microbatches": 4}


@pytest.mark.parametrize(
    ("name", "mesh", "config", "options"),
    [
        ("expert", "data=2,expert=2", SHALLOW, {"dispatch": "all_to_all"}),
        ("expert", "expert=4", SHALLOW, {"dispatch": "all_gather", "remat": "full"}),
        *nightly(
            ("expert", "expert=2", ALL_KEPT, {"dispatch": "all_to_all", "remat": "full"}),
            ("expert", "expert=8", ALL_KEPT, {"dispatch": "all_to_all", "remat": "none"}),
            ("expert", "expert=8", ALL_KEPT, {}),
            ("expert", "data=2,expert=4", ONE, {"dispatch": "all_to_all", "microbatches": 2}),
            ("expert", "data=2,expert=4", ONE, {"dispatch": "all_gather", "remat": "none"}),
            ("zero1", "data=2,expert=4", ALL_KEPT, {"dispatch": "all_to_all"}),
            ("three_d", "expert=2,tensor=2", ALL_KEPT, SPLIT),
            ("three_d", "expert=2,tensor=2", ALL_KEPT, {**SPLIT, "remat": "full"}),
            ("three_d", "fsdp=2,expert=2,tensor=2", ALL_KEPT, {"dispatch": "all_to_all", "prefetch": "on"}),
            ("three_d", "fsdp=2,expert=4", ALL_KEPT, {"dispatch": "all_gather", "remat": "full"}),
            ("three_d", "context=2,expert=2", ALL_KEPT, {"dispatch": "all_to_all", "remat": "full"}),
            ("three_d", "context=2,expert=4", ONE, {"dispatch": "all_gather"}),
            ("three_d", "pipeline=2,expert=2", ALL_KEPT, {**STAGES, "dispatch": "all_to_all"}),
            ("three_d", "pipeline=3,expert=2", ALL_KEPT, {**STAGES, "dispatch": "all_to_all", "schedule": "zb-h1"}),
            ("three_d", "pipeline=3,expert=2", ALL_KEPT, {**STAGES, "schedule": "zb-h1"}),
        ),
    ],
    ids=lambda value: "" if dataclasses.is_dataclass(value) else str(value),
)
def test_devices_that_split_experts_drop_nothing(name, mesh, config, options):
    """As on one device, with learned routing, and where all tokens go to the same experts and fill all rows."""
    assert_as_one_device(name, mesh, config, options)
