"""Steps that save and restore in the tests: every strategy, on a mesh that stores its arrays in a way of its own."""

from functools import cache

import jax
import numpy as np

from strategies.checkpoints import restore, save
from tests.strategies.equality import build, initial, trained

VARIANTS = {
    "single": ("single", "data=1", {}),
    "data": ("data", "data=8", {}),
    "zero1": ("zero1", "data=2,expert=4", {}),
    "zero2": ("zero2", "data=8", {"microbatches": 2}),
    "fsdp": ("fsdp", "fsdp=8", {}),
    "hsdp": ("hsdp", "data=2,fsdp=4", {}),
    "tensor": ("tensor", "tensor=8", {}),
    "context": ("context", "context=8", {}),
    "expert": ("expert", "data=2,expert=4", {}),
    "interleaved": ("pipeline", "pipeline=4", {"microbatches": 4, "schedule": "interleaved"}),
    "empty slots": ("three_d", "pipeline=3,tensor=2", {"microbatches": 4}),
    "three_d": ("three_d", "fsdp=2,pipeline=2,tensor=2", {"microbatches": 4}),
    "auto": ("auto", "fsdp=2,tensor=4", {}),
    "explicit": ("explicit", "fsdp=2,tensor=4", {}),
}
"""A name -> strategy, mesh and options. Most have their strategy's hardest mesh (test_equality.py).

Layers are in other slots in `interleaved`; 8 layers leave one of 9 slots empty in `empty slots`, which pads the
vocabulary to a multiple of 6 devices as well.
"""


@cache
def step_of(variant):
    """The step of a variant."""
    name, mesh, options = VARIANTS[variant]
    return build(name, mesh, **options)


def step_at(case):
    """The step of `STRATEGY:MESH`."""
    name, _, mesh = case.partition(":")
    return build(name, mesh, microbatches=4 if "pipeline" in mesh else 1)


@cache
def first_half(variant, steps):
    """What a variant computes in its first steps, and the state after them, which must not be donated."""
    step = step_of(variant)
    return trained(step, initial(step), range(steps))


def copied(state):
    """The same state in other arrays."""
    return jax.tree.map(lambda array: array.copy(), state)


def joined(first, second):
    """The results of steps (see `trained`) one after another."""
    return (*(np.concatenate(pair) for pair in zip(first[:2], second[:2], strict=True)), first[2] + second[2])


def resumed(before, after, folder, steps, more):
    """Train some steps, save, restore in another step, and train more: all results, and the last state."""
    first, state = trained(before, initial(before), range(steps))
    save(before, state, folder).wait()
    second, state = trained(after, restore(after, folder), range(steps, steps + more))
    return joined(first, second), state
