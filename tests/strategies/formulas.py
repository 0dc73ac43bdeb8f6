"""What a step sends, computes and holds: by formula, and as the compiler made it."""

import dataclasses
import math

import jax

from benchmarks.program.compiled import Program, read_program
from strategies.costs.predict import predict
from tests.strategies import quick
from tests.strategies.equality import TRAIN, build
from tests.strategies.models import SMALL


def cost(name, mesh, config=SMALL, **train):
    """What formulas say."""
    return predict(name, config, mesh, dataclasses.replace(TRAIN, **train))


def compiled(name, mesh, config=SMALL, fast=True, **train):
    """What the compiler made of it: what it does, and the memory that it plans."""
    return compiled_step(build(name, mesh, config, **train), fast)


def compiled_step(step, fast=True):
    """The same of a step that is built."""
    return read(step, (quick.compiled if fast else quick.as_used)(step.lower()))


def read(step, program):
    """What a compiled step does, and the memory that it plans."""
    text, memory = program.as_text(), program.memory_analysis()
    assert text
    assert memory
    return read_program(text, step.mesh.shape), memory


def assert_exact(program, memory, predicted):
    """The compiled program sends, computes and takes what the formulas say, to the byte.

    No two collectives may be in flight together, which could deadlock (benchmarks/program/deadlock.py).
    """
    assert program.unread == ""
    assert program.concurrent == ()
    assert sent(program) == by_axes(predicted)
    assert program.flops * predicted.plan.mesh.size == sum(predicted.flops.values())
    assert memory.argument_size_in_bytes == sum(predicted.arguments.values())


def sent(program: Program):
    """Bytes by kind and axes."""
    total = {}
    for each in program.collectives:
        key = each.kind, each.axes
        total[key] = total.get(key, 0) + each.times * each.sent_bytes
    return total


def by_axes(predicted):
    """Bytes by kind and axes, whatever they are."""
    return {key: sum(parts.values()) for key, parts in predicted.sent.items()}


def assert_memory(memory, predicted):
    """The temporaries that a CPU's compiler plans are at least what a step must hold by formula.

    What it plans besides no formula follows; what it plans for GPUs is in costs/test_gpu_memory.py.
    """
    must = {name: size for name, size in predicted.temporaries.items() if name != "working"}
    assert memory.temp_size_in_bytes >= sum(must.values())


def held_bytes(tree):
    """Bytes of the arrays of a tree on one device."""
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))
