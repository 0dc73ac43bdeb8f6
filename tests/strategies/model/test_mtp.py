"""Multi-token prediction on one device: what it predicts, and what it costs. On several, it is held in test_laws.py."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from strategies import PRESETS, STRATEGIES, GPTConfig, TrainConfig
from strategies.costs import layer
from strategies.model import gpt
from strategies.model.gpt import GPT, param_count
from strategies.step import forward_to_train
from tests.strategies.models import MTP, active_param_count

TRAIN = TrainConfig(batch_size=4, remat="none")
TOKENS_BS: Any = np.random.default_rng(0).integers(0, MTP.vocab, (4, MTP.sequence + 1))
FACTOR, EPSILON = 0.3, 1e-5


def by_hand(model, tokens_BS):
    """Equations 21 to 25, token by token: the mean over all tokens of the loss of the token after the next."""
    further = jax.tree.map(lambda w: w[0], nnx.split(model.mtp))  # of one block
    mtp, table_VD = nnx.merge(*further), model.embedding.token_VD[...]
    x_BTD, targets_BT = model.run(model.embed(tokens_BS[:, :-1]))[0], tokens_BS[:, 1:]

    def normed(x, norm):
        return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * norm.scale_D[...]

    inputs_BTI = jnp.concatenate([normed(table_VD[targets_BT], mtp.embedding_norm), normed(x_BTD, mtp.stream_norm)], -1)
    y_BTD = mtp.block(inputs_BTI @ mtp.join_ID[...], model.layer_info)[0]
    logits_BTV = (normed(y_BTD, mtp.norm) @ model.head.token_VD[...].T)[..., : MTP.vocab]
    losses = []
    for token in range(MTP.sequence - 1):
        losses.append(jax.nn.logsumexp(logits_BTV[:, token], -1))
        losses[-1] -= jnp.take_along_axis(logits_BTV[:, token], tokens_BS[:, token + 2, None], 1)[:, 0]
    return jnp.stack(losses).sum() / targets_BT.size


def differences():
    """How far the step's term of the loss is from it by hand, and the gradients of both."""
    model, tokens_BS = GPT(MTP, TRAIN, nnx.Rngs(0)), jnp.asarray(TOKENS_BS)
    graph, weights = nnx.split(model)

    def ours(weights):
        return forward_to_train(nnx.merge(graph, weights), tokens_BS)[1]["mtp"] / (4 * MTP.sequence)

    def theirs(weights):
        return FACTOR * by_hand(nnx.merge(graph, weights), tokens_BS)

    found, expected = (jax.jit(jax.value_and_grad(function))(weights) for function in (ours, theirs))
    return jax.tree.leaves(jax.tree.map(lambda one, other: np.abs(one - other).max(), found, expected))


def test_it_predicts_the_token_after_the_next(monkeypatch):
    """Loss and gradients are those by hand; with targets that are shifted by no token they are not."""
    assert max(differences()) < 1e-6
    monkeypatch.setattr(gpt, "after_next", lambda targets_BT: targets_BT)
    assert max(differences()) > 1e-3


def test_it_adds_to_the_loss_of_training_only():
    """The loss of a step, and of an evaluation, is that of the next tokens."""
    step = STRATEGIES["single"].build(MTP, "data=1", TRAIN)
    state = step.init(jax.random.key(0))
    evaluated = float(step.evaluate(state.params, TOKENS_BS))
    metrics = {name: float(value) for name, value in step(state, TOKENS_BS)[1].items()}
    assert metrics["loss"] == pytest.approx(evaluated, rel=1e-6)
    assert metrics["mtp"] == pytest.approx(FACTOR * evaluated, rel=0.1)  # no token is predicted yet


def test_deepseek_v3_has_the_weights_that_were_released():
    """Its MTP block has 11.6 billion parameters, of which a token uses 688 million."""
    without = PRESETS["deepseek-v3"]
    with_mtp = replace(without, mtp_loss=0.3)
    assert param_count(with_mtp) - param_count(without) == 11_610_068_224  # with the router's 256 biases
    assert round((active_param_count(with_mtp) - active_param_count(without)) / 1e6) == 688


def test_its_flops_are_those_of_a_layer_and_logits():
    """Of DeepSeek-V3 4.4% more: a layer, the matrix that joins its inputs, and logits again. Scores are left out."""
    without = PRESETS["deepseek-v3"]

    def flops(config: GPTConfig) -> int:
        return layer.flops_per_token(config) - 3 * config.all_blocks * layer.score_flops(config)

    more = flops(replace(without, mtp_loss=0.3)) - flops(without)
    join, logits = 2 * 7168 * 2 * 7168, 2 * 129_280 * 7168
    assert more == 3 * (layer.matmul_flops(without) + join + logits)
    assert round(1e3 * more / flops(without)) == 44
