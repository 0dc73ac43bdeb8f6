"""One device computes what Hugging Face transformers computes with the same weights (golden.py wrote the files)."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from strategies.model.gpt import GPT
from strategies.single import SINGLE
from tests.oracle.families import (
    FAMILIES,
    FOLDER,
    STEPS,
    TOLERANCE,
    TRAIN,
    difference,
    drawn,
    named,
    sketch,
    stored,
    tokens,
)
from tests.strategies import quick


def params_of(config) -> Any:
    """The weights of the golden model, as this repository stores them."""
    size, width, hidden = config.head_dim, config.embed, config.mlp_dim
    features = {"q": config.head_features, "k": config.key_features, "v": config.key_features}
    shapes: dict[str, tuple[int, ...]] = {"model.norm.weight": (width,)}
    shapes |= dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), (config.vocab, width))
    for index in range(config.layers):
        layer = {f"self_attn.{name}_proj.weight": (count, width) for name, count in features.items()}
        layer |= {"self_attn.o_proj.weight": (width, features["q"]), "mlp.down_proj.weight": (width, hidden)}
        layer |= {f"mlp.{name}_proj.weight": (hidden, width) for name in ("gate", "up")}
        layer |= {f"{name}_layernorm.weight": (width,) for name in ("input", "post_attention")}
        if config.block == "qwen2":
            layer |= {f"self_attn.{name}_proj.bias": (count,) for name, count in features.items()}
        if config.block == "qwen3":
            layer |= {f"self_attn.{name}_norm.weight": (size,) for name in "qk"}
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    params = {name: drawn(name, shape) for name, shape in shapes.items()}
    return jax.tree.map(lambda w: jnp.asarray(w, jnp.float32), stored(config, params))


def sketches(tree: Any) -> dict[str, list[float]]:
    """A sketch of each array of a tree."""
    return {name: sketch(array, name) for name, array in named(tree).items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_transformers(family):
    """Logits, losses, every gradient, and every weight after three steps of AdamW."""
    config, golden = FAMILIES[family], json.loads((FOLDER / f"{family}.json").read_text())
    params = params_of(config)

    def logits(params, tokens_BT):
        model = GPT.of_weights(config, TRAIN, params)
        return model.logits(model.run(model.embed(tokens_BT))[0])

    with jax.default_matmul_precision("highest"):
        made = np.asarray(quick.jit(logits)(params, tokens(0)[:, :-1]))
    assert max(difference({"logits": sketch(made, "logits")}, golden["logits"]).values()) < TOLERANCE

    step = SINGLE.build(config, "data=1", TRAIN)
    update, state = quick.compiled(step.lower()), step.init(jax.random.key(0))._replace(params=params)
    losses, norms, gradients = [], [], None
    for index in range(STEPS):
        state, metrics = update(state, step.place(tokens(index)))
        losses.append(float(metrics["loss"]))
        norms.append(float(metrics["grad_norm"]))
        if index == 0:
            gradients = jax.tree.map(lambda m: np.asarray(m) / (1 - TRAIN.beta1), state.optimizer[0].mu)
    np.testing.assert_allclose(losses, golden["loss"], rtol=TOLERANCE)
    np.testing.assert_allclose(norms, golden["grad_norm"], rtol=TOLERANCE)
    assert max(difference(sketches(gradients), golden["gradients"]).values()) < TOLERANCE
    assert max(difference(sketches(state.params), golden["weights"]).values()) < TOLERANCE


def test_another_model_is_caught():
    """Mistral's gradients are off from Llama's by far more than the tolerance, in each array."""
    golden = json.loads((FOLDER / "llama.json").read_text())
    other = json.loads((FOLDER / "mistral.json").read_text())
    assert min(difference(other["gradients"], golden["gradients"]).values()) > 100 * TOLERANCE
