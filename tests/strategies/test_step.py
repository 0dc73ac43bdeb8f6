"""The interface of a step: its state is sharded from birth and donated, it is traced once, and it learns."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from strategies import STRATEGIES
from tests.strategies import equality
from tests.strategies.formulas import held_bytes as held
from tests.strategies.meshes import WIDEST
from tests.strategies.models import HALF_NANO as CONFIG
from tests.strategies.quick import compiled
from tests.strategies.sampling import nightly, unless_sampled


def build(name, config=CONFIG, **options):
    """A small step on up to eight devices."""
    return equality.build(name, WIDEST[name], config, microbatches=2, **options)


class Shared(NamedTuple):
    """A step, and the number of arrays that its lowering has allocated."""

    step: Any
    allocated: int


@functools.cache
def shared(name):
    """A step that several tests train, traced and compiled once: lowered first, so that no call has allocated yet."""
    step, before = build(name), len(jax.live_arrays())
    step.lower()
    return Shared(step, len(jax.live_arrays()) - before)


def tokens(step, seed=0):
    """Random tokens of the step's batch shape."""
    return np.random.default_rng(seed).integers(0, CONFIG.vocab, step.batch.shape).astype(np.int32)


@pytest.mark.parametrize(
    "name", [*nightly("zero1", "auto"), *(unless_sampled(name) for name in STRATEGIES if name not in ("zero1", "auto"))]
)
def test_it_is_traced_once_and_donates_its_state(name):
    """Repeated steps trace nothing again and delete the old state."""
    step = shared(name).step
    state, metrics = step.init(jax.random.key(0)), {}
    for seed in range(3):
        before, (state, metrics) = state, step(state, step.place(tokens(step, seed)))
        assert all(x.is_deleted() for x in jax.tree.leaves(before))
    assert step.update._cache_size() == 1  # pyright: ignore[reportAttributeAccessIssue] (the count has no public name)
    assert set(metrics) == {"loss", "grad_norm"}
    assert {(x.shape, str(x.dtype)) for x in metrics.values()} == {((), "float32")}


@pytest.mark.parametrize("name", [unless_sampled(name) for name in STRATEGIES])
def test_lowering_allocates_nothing_and_promises_the_state(name):
    """Lowering allocates nothing, and state and batch have the promised shapes, dtypes and shardings."""
    step, allocated = shared(name)
    assert allocated <= 0
    state = step.init(jax.random.key(0))
    for real, promised in zip(jax.tree.leaves(state), jax.tree.leaves(step.state), strict=True):
        assert (real.shape, real.dtype) == (promised.shape, promised.dtype)
        assert real.sharding.is_equivalent_to(promised.sharding, real.ndim)
    assert step.place(tokens(step)).sharding == step.batch.sharding


@pytest.mark.parametrize("name", ["fsdp", "pipeline", *nightly("hsdp", "tensor", "three_d")])
def test_no_full_size_array_exists_even_in_init(name):
    """In the compiled `init` no array has the full shape of a weight that is sharded, in any dtype."""
    # No size divides another, or a shard could have the shape of a whole weight by chance.
    step = build(name, dataclasses.replace(CONFIG, layers=40, vocab=384, sequence=24, mlp=448))
    program = compiled(step.init.lower(jax.random.key(0)))
    text, memory = program.as_text(), program.memory_analysis()
    assert text
    assert memory
    weights = jax.tree.leaves(step.state.params)
    split = {w.shape for w in weights if w.sharding.shard_shape(w.shape) != w.shape}
    assert max((w.shape for w in weights), key=math.prod) in split
    assert not [shape for shape in split if f"[{','.join(map(str, shape))}]" in text]
    assert memory.output_size_in_bytes == pytest.approx(held(step.state), rel=0.01)


@pytest.mark.parametrize(
    ("name", "parts", "slack"),
    # tensor and three_d replicate norms, positions, and the biases that are added after an all-reduce.
    [("fsdp", 8, 0.02), *nightly(("three_d", 8, 0.05), ("hsdp", 4, 0.02), ("pipeline", 8, 0.06), ("tensor", 8, 0.20))],
)
def test_weights_and_moments_are_split(name, parts, slack):
    """A device holds its shard of parameters and optimizer state, and in full only what its strategy replicates."""
    step, whole = shared(name).step, held(build("single").state)
    assert held(step.state) == pytest.approx(whole / parts, rel=slack)
    memory = compiled(step.lower()).memory_analysis()
    assert memory is not None
    assert memory.argument_size_in_bytes == pytest.approx(held(step.state) + held(step.batch), rel=0.01)


def test_the_loss_falls():
    """On a few repeated tokens the loss falls far below that of a uniform guess."""
    step = shared("single").step
    state, batch = step.init(jax.random.key(0)), step.place(tokens(step))
    losses = []
    for _ in range(20):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    assert losses[0] == pytest.approx(math.log(CONFIG.vocab), rel=0.02)
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.parametrize("clip_norm", [0.01, *nightly(math.inf)])
def test_gradients_are_clipped_by_the_whole_model_norm(clip_norm):
    """Gradients are clipped by the whole model's norm, as AdamW's first moment shows; inf clips nothing."""
    step = build("fsdp", clip_norm=clip_norm)
    key = jax.random.key(0)
    state, metrics = compiled(step.lower())(compiled(step.init.lower(key))(key), step.place(tokens(step)))
    moments = jax.tree.leaves(state.optimizer[0].mu)
    norm = math.sqrt(sum(np.square(np.asarray(m, np.float64)).sum() for m in moments)) / (1 - step.train.beta1)
    assert metrics["grad_norm"] > 0.1
    assert norm == pytest.approx(min(clip_norm, float(metrics["grad_norm"])), rel=1e-4)
