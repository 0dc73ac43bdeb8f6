"""`Step.load`: what the routers of a step choose and drop, counted by a forward pass."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.program.compiled import read_program
from benchmarks.run.prepare import expert_facts
from strategies import Infeasible
from strategies.costs.layer import flops_per_token
from strategies.model.block import BLOCKS, LlamaBlock
from strategies.model.router import forced
from tests.strategies import quick
from tests.strategies.equality import CONFIG, TRAIN, build, initial
from tests.strategies.models import BIASED, FORCED
from tests.strategies.sampling import nightly


@pytest.mark.parametrize(
    ("name", "mesh", "options"),
    [
        ("expert", "data=2,expert=2", {}),
        ("explicit", "data=2,expert=2", {"microbatches": 2}),
        *nightly(
            ("pipeline", "pipeline=2", {"microbatches": 4}),
            ("three_d", "data=2,pipeline=2,expert=2", {"microbatches": 4}),
            ("tensor", "tensor=4", {}),
            ("single", "data=1", {"microbatches": 4}),
            ("fsdp", "fsdp=4", {"prefetch": "on"}),
            ("context", "context=2", {}),
            ("auto", "fsdp=2,tensor=2", {}),
            ("auto", "data=2,expert=2", {}),
        ),
    ],
    ids=str,
)
def test_every_strategy_counts_what_its_routers_do(name, mesh, options):
    """Where positions decide, choices and drops of each layer are known; model FLOPs leave out those that are dropped.

    The probabilities of a token add up to one, and no two collectives may be in flight together.
    """
    step = build(name, mesh, FORCED, **options)
    tokens = step.place(np.random.default_rng(0).integers(0, FORCED.vocab, step.batch.shape))
    program = quick.compiled(step.load.lower(step.state.params, step.batch))
    assert read_program(program.as_text() or "", step.mesh.shape).concurrent == ()
    state = initial(step)
    load = jax.device_get(program(state.params, tokens))
    forced_Gtk = np.asarray(forced(FORCED, jnp.arange(FORCED.sequence))).reshape(-1, FORCED.group_tokens, 2)
    counts_GE = np.array([np.bincount(forced_tk.reshape(-1), minlength=8) for forced_tk in forced_Gtk])
    dropped = TRAIN.batch_size * np.maximum(counts_GE - FORCED.capacity, 0).sum()
    assert (load.choices_LE == TRAIN.batch_size * counts_GE.sum(0)).all()
    assert (load.dropped_L == dropped).all()
    assert dropped > 0
    np.testing.assert_allclose(load.probs_LE.sum(1), step.tokens_per_step, rtol=1e-5)

    training: Any = SimpleNamespace(state=state, batches=iter([tokens]))
    facts = expert_facts(dataclasses.replace(step, load=program), training, name)
    saved = FORCED.layers * int(dropped) * 18 * FORCED.embed * FORCED.dim_sizes["expert_mlp"]
    assert facts["model_flops_per_step"] == flops_per_token(FORCED) * step.tokens_per_step - saved
    assert facts["columns"]["experts.largest_over_mean"] == pytest.approx(
        counts_GE.sum(0).max() / counts_GE.sum(0).mean()
    )
    dense = build("single", "data=1", CONFIG)
    with pytest.raises(Infeasible, match="experts=None: there is no load; use a model with experts"):
        dense.load.lower(dense.state.params, dense.batch)


class ParallelBlock(LlamaBlock):
    """A block whose branches all take the stream that enters it, as in GPT-J, and add to it together."""

    def __call__(self, x_BTD, info):
        """The residual stream with all branches added, and the sums of each branch, by its name."""
        added, sums, names = jnp.zeros_like(x_BTD), {}, [*self.parts]
        for norm, name in zip(names[::2], names[1::2], strict=True):
            y_BTD, sums[name] = getattr(self, name)(x_BTD, getattr(self, norm)(x_BTD), info)
            added += y_BTD - x_BTD
        return x_BTD + added, sums


def test_a_block_of_a_user_is_counted_as_it_runs(monkeypatch):
    """Choices less their mean are the loads of which a training step makes the gradients of the router's biases."""
    monkeypatch.setitem(BLOCKS, "parallel", ParallelBlock)
    step = build("single", "data=1", dataclasses.replace(BIASED, block="parallel"), microbatches=2)
    state = initial(step)
    tokens = step.place(np.random.default_rng(0).integers(0, BIASED.vocab, step.batch.shape))
    _, grads = quick.compiled(step.gradients.lower(step.state, step.batch))(state, tokens)
    choices_LE = quick.compiled(step.load.lower(step.state.params, step.batch))(state.params, tokens).choices_LE
    loads_LE = np.asarray(grads["blocks"]["experts"]["router_bias_E"]) * step.tokens_per_step
    np.testing.assert_allclose(choices_LE - choices_LE.mean(1, keepdims=True), loads_LE, atol=0.1)
    assert np.abs(loads_LE).max() > 1
