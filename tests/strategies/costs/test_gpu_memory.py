"""Memory of steps that are compiled for GPUs, which are absent, is what formulas say."""

import dataclasses
from typing import Any

import pytest

from benchmarks.devices.topology import Topology
from strategies import PRESETS, STRATEGIES, MeshSpec, TrainConfig
from strategies.costs.predict import predict
from tests.strategies.sampling import nightly

GPT2 = dataclasses.replace(PRESETS["gpt2"], layers=4)
LLAMA = dataclasses.replace(PRESETS["llama3-8b"], layers=4)
DEEP_LLAMA = dataclasses.replace(LLAMA, layers=8)
OLMOE = dataclasses.replace(PRESETS["olmoe-1b-7b"], layers=4)
LATENTS = dataclasses.replace(PRESETS["deepseek-v2-lite"], layers=4)  # heads of 192 and values of 128
LATENT_WIDTHS = ("latent_rank", "query_rank", "head_size", "rotary_size", "value_size")
DENSE_LATENTS = dataclasses.replace(
    LLAMA, key_heads=None, embed=2048, heads=16, **{name: getattr(LATENTS, name) for name in LATENT_WIDTHS}
)
CASES = [
    ("single", "data=1", LLAMA, {"batch_size": 1, "remat": "full"}),  # the most is held in the backward pass of layers
    ("fsdp", "fsdp=8", GPT2, {"batch_size": 64, "microbatches": 2}),  # the most is held in that of the head
    *nightly(
        ("single", "data=1", OLMOE, {"batch_size": 4}),
        ("single", "data=1", GPT2, {"batch_size": 16, "remat": "none"}),
        ("single", "data=1", GPT2, {"batch_size": 16, "logits_bytes": 2**26}),
        ("single", "data=1", GPT2, {"batch_size": 16, "unroll": 4}),
        ("data", "data=8", LLAMA, {"batch_size": 16}),
        ("fsdp", "fsdp=8", OLMOE, {"batch_size": 16}),
        ("tensor", "tensor=8", LLAMA, {"batch_size": 4}),
        ("three_d", "fsdp=2,pipeline=2,tensor=2", LLAMA, {"batch_size": 16, "microbatches": 8}),
        *(
            ("three_d", "fsdp=2,pipeline=2,tensor=2", DEEP_LLAMA, {"batch_size": 16, "microbatches": 8, **schedule})
            for schedule in ({"schedule": "eager-1f1b"}, {"schedule": "dualpipe-v"})
        ),
        ("fsdp", "fsdp=8", LATENTS, {"batch_size": 16}),
        ("single", "data=1", DENSE_LATENTS, {"batch_size": 4}),
        ("context", "context=8", DENSE_LATENTS, {"batch_size": 4}),
        ("single", "data=1", dataclasses.replace(GPT2, mtp_loss=0.3), {"batch_size": 16}),
        ("fsdp", "fsdp=8", dataclasses.replace(LLAMA, mtp_loss=0.3), {"batch_size": 8}),
    ),
]


@pytest.mark.cuda
@pytest.mark.parametrize(("name", "mesh", "config", "train"), CASES, ids=str)
def test_temporaries_of_gpus_are_within_15_percent(name, mesh, config, train):
    """In bfloat16, with attention by cuDNN, for layers of published widths. Arguments are exact."""
    spec, train = MeshSpec.parse(mesh), TrainConfig(dtype="bfloat16", **train)
    step = STRATEGIES[name].build(config, spec, train, Topology.parse(f"h100:1x{spec.size}").devices())
    memory: Any = step.lower().compile(step.xla_options_with({})).memory_analysis()
    predicted = predict(name, config, spec, train, "cuda")
    assert memory.argument_size_in_bytes == sum(predicted.arguments.values())
    assert memory.temp_size_in_bytes == pytest.approx(sum(predicted.temporaries.values()), rel=0.15)
