"""FLOPs are those of the matmuls of a step: the published formulas, and what is computed again."""

import dataclasses

import pytest

from strategies import PRESETS, MeshSpec, TrainConfig
from strategies.costs.layer import flops_per_token, matmul_flops
from strategies.costs.predict import predict
from tests.strategies.cases import DAILY, SLOW
from tests.strategies.equality import BATCH
from tests.strategies.formulas import compiled, cost
from tests.strategies.models import FIXED, LONG, SMALL, STRIDED, TURNS
from tests.strategies.nightly_formulas import FORMULAS
from tests.strategies.sampling import nightly

L, D, F, TOKENS = SMALL.layers, SMALL.embed, SMALL.mlp_dim, BATCH * SMALL.sequence
SCORES = 3 / 4 * 2 * L * SMALL.sequence * D


@pytest.mark.parametrize(
    ("remat", "recomputed"),
    [
        # The backward pass of attention computes the scores again.
        ("dots", SCORES),
        # And here that of a block all but its last matmul, and attention, whose scores it then has. The logits are
        # outside the loop over layers: the compiler finds them computed.
        ("full", SCORES + 2 * L * (4 * D**2 + D * F) + SCORES),
    ],
)
def test_flops_of_a_step_are_those_of_its_matmuls(remat, recomputed):
    """On one device a step does the model's FLOPs for each token, and those that it does again, to the last one.

    But for a quarter of attention, of whose scores these are six times as many.
    """
    flops = sum(cost("single", "data=1", remat=remat).flops.values())
    assert flops == TOKENS * (flops_per_token(SMALL) - 6 * SCORES / 3 + recomputed)


@pytest.mark.parametrize(("name", "mesh"), [("data", "data=8"), ("fsdp", "fsdp=8"), ("tensor", "tensor=4")])
def test_devices_share_the_flops(name, mesh):
    """Devices that share a step's sequences, or the dims of its layers, do equal parts of it, and nothing twice."""
    assert sum(cost(name, mesh).flops.values()) == sum(cost("single", "data=1").flops.values())


@pytest.mark.parametrize("preset", ["gpt2-xl", "gpt3-175b"])
def test_model_flops_are_the_published_formula(preset):
    """Narayanan et al. 2021, equation 3, without its recomputation: 72 B T L D^2 (1 + T / 6D + V / 12LD)."""
    config = PRESETS[preset]
    layers, embed, tokens = config.layers, config.embed, BATCH * config.sequence
    terms = 1 + config.sequence / (6 * embed) + config.vocab / (12 * layers * embed)
    predicted = predict("single", config, MeshSpec.parse("data=1"), TrainConfig(BATCH))
    assert predicted.model_flops() == pytest.approx(72 * tokens * layers * embed**2 * terms, rel=1e-12)
    halved = predicted.model_flops() - predicted.model_flops(causal=True)
    assert halved == 6 * tokens * layers * embed * config.sequence


@pytest.mark.parametrize(
    ("config", "keys", "pairs"),
    [
        (LONG, 8, 64 * 8 - 28),
        (STRIDED, 8 + 7, 64 * 8 - 28 + 8 * 28),
        (FIXED, 8 + 2 * 7, 8 * 36 + 28 * 8 * 2),
        (dataclasses.replace(TURNS, layers=2), (8 + 64) / 2, (64 * 8 - 28 + 64**2 / 2) / 2),
    ],
)
def test_model_flops_of_sparse_attention_are_those_of_the_keys_it_reaches(config, keys, pairs):
    """Each token counts as many keys as the last has; with `causal=True` as many as it has itself."""
    per_pair = 12 * config.layers * config.embed
    assert flops_per_token(dataclasses.replace(LONG, attention_window=None)) - flops_per_token(config) == per_pair * (
        64 - keys
    )
    predicted = cost("single", "data=1", config)
    assert predicted.model_flops() - predicted.model_flops(causal=True) == BATCH * per_pair * (64 * keys - pairs)


def test_passes_and_the_head_are_all_flops():
    """FLOPs of passes are those held against the compiled program, but for the head and the optimizer."""
    for case in (*DAILY, *SLOW, *FORMULAS):
        if case.config.dense_layers or (case.config.mtp and "pipeline" in case.mesh):  # run on all stages
            continue
        config, predicted = case.config, cost(case.name, case.mesh, case.config, **case.train)
        plan, tokens = predicted.plan, predicted.plan.train.batch_size * config.sequence
        head = plan.head_uses * (8 if plan.logits_again else 6) * config.embed * plan.padded_vocab
        others = predicted.flops["optimizer"]
        assert tokens * (sum(predicted.passes) + head) + others == predicted.hardware_flops, case


SHORT = dataclasses.replace(SMALL, layers=1, heads=2, sequence=8)


@pytest.mark.parametrize(
    ("options", "matmuls"),
    [
        ({"attention_window": 1, "key_heads": 1}, 5),  # one key: of values, and of gradients of queries, is none left
        ({"attention_window": 2}, 5),  # one query: of gradients of keys, and of values
        *nightly(({"attention_window": 1}, 0), ({"attention_window": 2, "key_heads": 1}, 7)),
    ],
    ids=str,
)
def test_one_key_or_one_query_is_not_contracted(options, matmuls):
    """Of the seven matmuls of scores the compiler multiplies elements where a block would contract one key or query.

    Queries of heads that share a head of keys are in one block.
    """
    config = dataclasses.replace(SHORT, **options)
    program, _ = compiled("single", "data=1", config)
    with_weights = 3 * (config.layers * matmul_flops(config) + 2 * config.embed * config.vocab)
    scores = matmuls * config.layers * 2 * config.head_features * config.attention_window
    assert program.flops == BATCH * config.sequence * (with_weights + scores)
    assert program.flops == sum(cost("single", "data=1", config).flops.values())
