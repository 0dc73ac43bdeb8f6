"""Check a strategy against one device, as the benchmarks do before they time a step."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from strategies.arguments import require_instance
from strategies.checking.bounds import Rounding
from strategies.checking.comparison import Agreement, Comparison, Mismatch
from strategies.checking.first_steps import FirstSteps, Recorder
from strategies.checking.initial import initial_state, initial_weights, trained_weights
from strategies.checking.projections import is_on_host
from strategies.config import DEFAULTS, TrainConfig
from strategies.gpt_config import GPTConfig
from strategies.infeasible import Infeasible
from strategies.mesh import Devices, MeshSpec
from strategies.single import SINGLE
from strategies.step import Step
from strategies.strategy import Strategy

CHECKED_STEPS = 3
"""Number of steps that are compared."""
CLIP_NORM = 0.1
"""Below the gradient norm of any new model, so that clipping is compared, too."""
BATCHES = 2
"""One batch fewer than checked steps: the last step repeats the first batch, so its loss shows learning."""


def check(
    strategy: Strategy, config: GPTConfig, mesh: MeshSpec | str, train: TrainConfig, devices: Devices | None = None
) -> Agreement:
    """Check that a strategy's step computes what one device computes, weight by weight, up to rounding.

    If it computes, sums gradients or keeps momentum in 16 bits, its float32 step is checked first, because rounding
    hides less there. Gradients are clipped at a norm that they exceed, unless `clip_norm` is infinite.

    Args:
        strategy: a `Strategy`, built in or your own; not its name.
        config: the model.
        mesh: such as "fsdp=8".
        train: options of the step.
        devices: of the mesh; default: the first of `jax.devices()`.

    Raises:
        Mismatch: the step computes something else; names the weight, layer, both numbers and their ratio.
        Infeasible: the step cannot be built, or is inexact by design.
        TypeError: an argument has the wrong type.
    """
    require_instance(strategy, Strategy, "strategy", TypeError)
    require_instance(config, GPTConfig, "config", TypeError)
    require_instance(train, TrainConfig, "train", TypeError)
    # A warmup would start with weight changes that are below their rounding.
    clip_norm = min(train.clip_norm, CLIP_NORM) if math.isfinite(train.clip_norm) else train.clip_norm
    train = replace(train, warmup_steps=0, decay_steps=None, final_learning_rate=0.0, clip_norm=clip_norm)
    in_32_bits = ""
    if is_rounded(train):
        try:
            check_step(strategy.build(config, mesh, in_float32(train), devices))
            in_32_bits = "equal"
        except Mismatch:
            raise
        except Exception as error:  # it may need more memory than the step itself
            in_32_bits = f"not compared: {str(error).partition(chr(10))[0]}"
    return replace(check_step(strategy.build(config, mesh, train, devices)), float32=in_32_bits)


def check_step(step: Step, batches: Sequence[Any] = ()) -> Agreement:
    """Check a step in its own dtype, like `check`. `batches` are host tokens [batch_size, sequence + 1], or random."""
    if require_instance(step, Step, "the step", TypeError).inexact:
        raise Infeasible(f"the step is not exact by design, so it equals no other: {step.inexact}")
    single = SINGLE.build(step.config, "data=1", for_one_device(step.train, step.config), one_device(step))
    random = np.random.default_rng(0)
    batches = batches or [random.integers(0, step.config.vocab, step.batch.shape) for _ in range(BATCHES)]
    return compare(step, first_steps(step, batches), first_steps(single, batches))


def compare(step: Step, mine: FirstSteps, single: FirstSteps) -> Agreement:
    """Compare the first steps of a step with one device's."""
    steps = len(single.losses)
    rounding = Rounding.of(step.config, step.train, steps, step.mesh.size)
    drift_factor = rounding.gradient / Rounding.of(step.config, step.train, steps).gradient
    sizes = {**step.mesh.shape, "microbatches": step.train.microbatches}
    return Comparison(mine, single, rounding, sizes, is_rounded(step.train), drift_factor).require_equal()


def first_steps(step: Step, batches: Sequence[Any]) -> FirstSteps:
    """Train the compared steps from an initial state with noise."""
    state, recorder = initial_state(step)(jax.random.key(0)), Recorder(step)
    # The host has memory for a copy of the weights, which is faster than compiling them again.
    copies = [jnp.copy(weight) for weight in trained_weights(step, state).values()] if is_on_host(step.mesh) else []
    placed = [step.place(batch) for batch in batches]
    evaluation = float(step.evaluate(state.params, placed[0]))
    for number in range(CHECKED_STEPS):
        batch = placed[number % len(placed)]
        recorder.before(state, batch)
        state, metrics = step(state, batch)
        recorder.after(state, metrics)
    found = recorder.first_steps(state, lambda: copies or initial_weights(step)(jax.random.key(0)))
    return replace(found, evaluation=evaluation)


def is_rounded(train: TrainConfig) -> bool:
    """Whether a step computes in 16 bits, or sums gradients over devices or keeps momentum in 16 bits."""
    return {train.dtype, train.reduce_dtype, train.momentum_dtype} != {"float32"}


def in_float32(train: TrainConfig) -> TrainConfig:
    """The options of the same step in float32, without those that only 16-bit dtypes have."""
    scaling = {name: DEFAULTS[name] for name in ("loss_scale", "loss_scale_growth_steps")}
    wide = dict.fromkeys(("dtype", "reduce_dtype", "momentum_dtype"), "float32")
    return replace(train, **wide, master="none", attention="auto", **scaling)


def for_one_device(train: TrainConfig, config: GPTConfig) -> TrainConfig:
    """A step's options without those of strategies. Experts may be balanced over each microbatch."""
    microbatches = train.microbatches if config.balance_loss else 1
    return SINGLE.applicable(replace(train, attention="auto", microbatches=microbatches))


def one_device(step: Step) -> list[Any]:
    """A device of the step that belongs to this process."""
    return [device for device in step.mesh.devices.flat if device.process_index == jax.process_index()][:1]


__all__ = ["Agreement", "Mismatch", "check", "check_step"]
