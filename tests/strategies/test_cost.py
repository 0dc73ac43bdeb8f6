"""What a step costs is what formulas say, held against compiled programs: bytes sent and arguments to the byte.

Programs are compiled for float32: XLA's CPU backend sends bfloat16 as float32, by `test_bfloat16_is_sent_as_float32`.
"""

import dataclasses
import functools
import math

import jax
import pytest

from benchmarks.compiled import Program, read_program
from strategies import PRESETS, STRATEGIES, GPTConfig, MeshSpec, TrainConfig
from strategies.cost import predict
from strategies.held import layer_bytes
from strategies.plan import BYTES
from strategies.traffic import LAWS

SMALL = GPTConfig(layers=2, embed=32, heads=4, vocab=256, sequence=16)
# Sizes of which none is another's multiple by chance, and a vocabulary that tensor and pipeline must pad.
ODD = GPTConfig(layers=6, embed=48, heads=4, vocab=257, sequence=24, mlp=80)
UNTIED = dataclasses.replace(ODD, tied=False)
BATCH = 16

CASES = [
    ("single", "data=1", ODD, {"remat": "full"}),
    ("data", "data=8", UNTIED, {"microbatches": 2}),
    ("fsdp", "fsdp=8", ODD, {"remat": "none"}),
    ("fsdp", "fsdp=2", UNTIED, {"remat": "dots", "microbatches": 2}),
    ("fsdp", "fsdp=4", SMALL, {"remat": "full"}),
    ("tensor", "tensor=4", ODD, {"remat": "full"}),
    ("tensor", "tensor=2", UNTIED, {"remat": "none", "microbatches": 2}),
    ("tensor", "tensor=4", SMALL, {"remat": "full", "sequence_parallel": False}),
    ("pipeline", "pipeline=2", ODD, {"microbatches": 4}),
    ("three_d", "data=2,pipeline=2,tensor=2", UNTIED, {"microbatches": 2, "remat": "full"}),
    ("three_d", "data=4,tensor=2", SMALL, {"remat": "none"}),
    ("three_d", "pipeline=2,tensor=4", SMALL, {"microbatches": 4, "sequence_parallel": False}),
]


def cost(name, mesh, config=SMALL, **train):
    """What formulas say."""
    return predict(name, config, MeshSpec.parse(mesh), TrainConfig(BATCH, **train))


def step(name, mesh, config=SMALL, **train):
    """The step itself."""
    spec = MeshSpec.parse(mesh)
    return STRATEGIES[name].build(config, spec, TrainConfig(BATCH, **train), jax.devices()[: spec.size])


@functools.cache
def compiled(name, mesh, config=SMALL, **train):
    """What the compiler made of it: what it does, and the memory that it plans."""
    built = step(name, mesh, config, **train)
    program = built.lower().compile()
    return read_program(program.as_text(), built.mesh.shape), program.memory_analysis()


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


@pytest.mark.parametrize(("name", "mesh", "config", "train"), CASES, ids=str)
def test_compiled_program_is_what_formulas_say(name, mesh, config, train):
    """Each kind of collective over each axis sends as many bytes, matmuls do as many FLOPs, arguments are as large."""
    program, memory = compiled(name, mesh, config, **train)
    predicted = cost(name, mesh, config, **train)
    assert sent(program) == by_axes(predicted)
    assert program.flops * predicted.plan.mesh.size == sum(predicted.flops.values())
    assert memory.argument_size_in_bytes == sum(predicted.arguments.values())


def test_every_strategy_has_its_law_and_is_held_to_it():
    """What is in the registry is in the table of laws, and among the programs that are compiled here."""
    assert set(LAWS) == set(STRATEGIES) == {name for name, *_ in CASES}


@pytest.mark.parametrize("config", [*PRESETS.values(), UNTIED], ids=str)
def test_weights_are_those_of_the_model(config):
    """On one device the formulas have as many parameters as the model."""
    assert predict("single", config, MeshSpec.parse("data=1"), TrainConfig(BATCH)).plan.elements == config.param_count


def loops(program):
    """Every loop of a jaxpr, and of those inside."""
    for equation in program.eqns:
        if equation.primitive.name == "scan":
            yield equation
        for value in equation.params.values():
            for item in value if isinstance(value, tuple | list) else [value]:
                inner = getattr(item, "jaxpr", item)
                if hasattr(inner, "eqns"):
                    yield from loops(inner)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("remat", ["none", "dots", "full"])
@pytest.mark.parametrize(
    ("name", "mesh", "train"),
    [
        ("fsdp", "fsdp=4", {"microbatches": 2}),
        ("tensor", "tensor=4", {}),
        ("tensor", "tensor=2", {"sequence_parallel": False}),
        ("three_d", "data=2,pipeline=2,tensor=2", {"microbatches": 4}),
    ],
    ids=str,
)
def test_layers_keep_what_the_formula_says(name, mesh, train, remat, dtype):
    """What the loop over layers hands to the one of the backward pass, to the byte, by policy and dtype."""
    built = step(name, mesh, ODD, remat=remat, dtype=dtype, **train)
    plan = cost(name, mesh, ODD, remat=remat, dtype=dtype, **train).plan
    jaxpr = jax.make_jaxpr(built.gradients)(built.state.params, built.batch).jaxpr
    forward, _ = [
        loop for loop in loops(jaxpr) if loop.params["num_carry"] == 1 and loop.params["length"] == plan.layers
    ]
    kept = forward.outvars[1:]
    assert not forward.params["reverse"]
    assert sum(BYTES[str(each.aval.dtype)] * math.prod(each.aval.shape) for each in kept) == (
        plan.layers * layer_bytes(plan)
    )
