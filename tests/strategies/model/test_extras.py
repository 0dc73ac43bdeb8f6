"""What layers add to the loss, as a router does, is trained and reported under every strategy."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from strategies.costs.predict import predict
from strategies.model.block import BLOCKS, Block, LlamaBlock
from strategies.model.parts import GatedMLP
from tests.strategies.equality import CONFIG, ROUNDING, assert_equal, build, initial, trained
from tests.strategies.formulas import by_axes, compiled_step, sent
from tests.strategies.model.toy_blocks import register
from tests.strategies.models import SMALL_LLAMA as SMALL


@pytest.mark.factorisations  # every day cases.py has losses of routers
@pytest.mark.parametrize(
    ("name", "mesh", "options"),
    [
        ("zero2", "data=2", {"microbatches": 2}),
        ("three_d", "data=2,pipeline=2", {"microbatches": 2}),
        ("three_d", "data=2,pipeline=2,tensor=2", {"microbatches": 4}),
        ("fsdp", "fsdp=2", {"prefetch": "on", "microbatches": 2}),
        ("data", "data=4", {"reduce": "layer"}),
        ("three_d", "fsdp=2,pipeline=3", {"microbatches": 4, "schedule": "zb-h1"}),
        ("tensor", "tensor=2", {"halves": "on"}),
        ("tensor", "tensor=2", {"sequence_parallel": False}),
        ("context", "context=4", {}),
        ("data", "data=4", {"bucket_bytes": 20_000, "dtype": "float16"}),
        ("auto", "fsdp=2,tensor=2", {}),
    ],
)
def test_what_layers_add_to_the_loss_is_trained_and_reported(name, mesh, options, monkeypatch):
    """Beside the loss of the tokens, as on one device. Gradients are those of the sum; the bytes are known."""
    register(monkeypatch)
    config, reports, results = dataclasses.replace(SMALL, block="penalised"), [], []
    exact = {key: options[key] for key in options if key == "dtype"}
    for spec, of_mesh, given in (("single", "data=1", exact), (name, mesh, options)):
        built = build(spec, of_mesh, config, **given)
        results.append(trained(built, initial(built), range(3))[0])
        tokens = np.random.default_rng(0).integers(0, CONFIG.vocab, built.batch.shape)
        reports.append({key: float(value) for key, value in built(initial(built), tokens)[1].items()})
    rounding = ROUNDING[options.get("dtype", "float32")]
    assert_equal(results[1], results[0], rounding)
    assert reports[0]["squares"] > 0
    assert reports[1] == pytest.approx(reports[0], rel=rounding)
    plain = build("single", "data=1", SMALL)
    assert float(plain(initial(plain), tokens)[1]["grad_norm"]) != pytest.approx(reports[0]["grad_norm"], rel=0.01)
    if name != "auto":
        program, _ = compiled_step(built)
        assert sent(program) == by_axes(predict(name, config, mesh, built.train))


@pytest.mark.parametrize(("states", "adds"), [((), "squares"), (("squares",), "square"), (("loss",), "loss")], ids=str)
def test_parts_state_what_they_add(states, adds, monkeypatch):
    """What is added and not stated is refused: formulas would not count it. So is a name that the step reports."""

    class Wrong(GatedMLP):
        """A gated MLP that adds something to the loss."""

        extras = states

        def __call__(self, x_BTD, normed_BTD, info):
            """Add the gated MLP to the residual stream."""
            return super().__call__(x_BTD, normed_BTD, info)[0], {adds: jnp.float32(0)}

    wrong = type("WrongBlock", (Block,), {"parts": {**LlamaBlock.parts, "mlp": Wrong}})
    monkeypatch.setitem(BLOCKS, "wrong", wrong)
    step = build("single", "data=1", dataclasses.replace(SMALL, block="wrong"))
    with pytest.raises(ValueError, match=rf"WrongBlock: it adds \['{adds}'\] to the loss, and its parts state extras"):
        step.lower()
