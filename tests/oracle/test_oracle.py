"""One device computes what Hugging Face transformers computes with the same weights (golden.py wrote the files)."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from strategies.huggingface import tensors
from strategies.model.gpt import GPT
from strategies.single import SINGLE
from tests.oracle.families import (
    FAMILIES,
    FOLDER,
    STEPS,
    TOLERANCE,
    TRAIN,
    batch_of,
    difference,
    drawn,
    layouts_of,
    named,
    sketch,
    stored,
)
from tests.strategies import quick
from tests.strategies.sampling import nightly


def params_of(config) -> Any:
    """The weights of the golden model, as this repository stores them."""
    params = {name: drawn(name, shape) for name, shape in tensors.shapes(layouts_of(config)).items()}
    return jax.tree.map(lambda w: jnp.asarray(w, jnp.float32), stored(config, params))


def sketches(tree: Any) -> dict[str, list[float]]:
    """A sketch of each array of a tree."""
    return {name: sketch(array, name) for name, array in named(tree).items()}


# Dots1 has the attention of Qwen3, and gpt-oss the biases of Qwen2, the window of Mistral and the router of Mixtral.
AT_NIGHT = "mistral", "qwen2", "qwen3", "mixtral", "qwen3-moe"
"""Families whose parts others have: those of Llama, Dots1 and gpt-oss."""


@pytest.mark.parametrize("family", [*(name for name in FAMILIES if name not in AT_NIGHT), *nightly(*AT_NIGHT)])
def test_equals_transformers(family):
    """Logits, losses, every gradient, and every weight after three steps of AdamW."""
    config, golden = FAMILIES[family], json.loads((FOLDER / f"{family}.json").read_text())
    params = params_of(config)

    def logits(params, tokens_BT):
        model = GPT.of_weights(config, TRAIN, params)
        return model.logits(model.run(model.embed(tokens_BT))[0])

    with jax.default_matmul_precision("highest"):
        made = np.asarray(jax.jit(logits)(params, batch_of(0)[:, :-1]))
    assert max(difference({"logits": sketch(made, "logits")}, golden["logits"]).values()) < TOLERANCE

    step = SINGLE.build(config, "data=1", TRAIN)
    update = quick.compiled(step.lower())
    state = jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), step.state)._replace(params=params)
    reported, gradients = {"loss": [], "balance_loss": [], "grad_norm": []}, None
    for index in range(STEPS):
        state, metrics = update(state, step.place(batch_of(index)))
        for name, values in reported.items():
            values.append(float(metrics.get(name, 0)))
        if index == 0:
            gradients = jax.tree.map(lambda m: np.asarray(m) / (1 - TRAIN.beta1), state.optimizer[0].mu)
    for name, values in reported.items():
        np.testing.assert_allclose(values, golden[name], rtol=TOLERANCE, err_msg=name)
    assert max(difference(sketches(gradients), golden["gradients"]).values()) < TOLERANCE
    assert max(difference(sketches(state.params), golden["weights"]).values()) < TOLERANCE


def test_another_model_is_caught():
    """Mistral's gradients are off from Llama's by far more than the tolerance, in each array."""
    golden = json.loads((FOLDER / "llama.json").read_text())
    other = json.loads((FOLDER / "mistral.json").read_text())
    assert min(difference(other["gradients"], golden["gradients"]).values()) > 100 * TOLERANCE
