"""What strategies communicate, counted in their traced programs, for one model."""

import dataclasses
import functools

import jax

from strategies import PRESETS, STRATEGIES
from tests.strategies.equality import TRAIN
from tests.strategies.jaxprs import communicated

CONFIG = dataclasses.replace(PRESETS["nano"], embed=64, sequence=32, tied=False)


@functools.cache
def communication(name, mesh, config=CONFIG, part="gradients", unit="elements", **options):
    """Of the gradients of a strategy, or of its whole update."""
    step = STRATEGIES[name].build(config, mesh, dataclasses.replace(TRAIN, **options))
    program = jax.make_jaxpr(getattr(step, part))(step.state, step.batch)
    return communicated(program.jaxpr, unit=unit)
