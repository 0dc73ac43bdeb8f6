"""What a step costs is what formulas say: bytes sent and arguments to the byte, and FLOPs to the last one.

Compiled programs are held to formulas, and formulas to numbers by hand, those of the strategies' docstrings. Programs
are compiled for float32: XLA's CPU backend sends bfloat16 as float32, by `test_bfloat16_is_sent_as_float32`.
"""

import dataclasses
import math
import os
import subprocess
import sys
import textwrap

import jax
import pytest

from benchmarks.program.compiled import Program, read_program
from strategies import PRESETS, STRATEGIES, GPTConfig, Infeasible, MeshSpec, TrainConfig
from strategies.costs.memory import layer_bytes
from strategies.costs.plan import BYTES
from strategies.costs.predict import known, predict
from strategies.pipelining.jaxpr import Loop
from tests.strategies import quick

SMALL = GPTConfig(layers=2, embed=32, heads=4, vocab=256, sequence=16)
# Sizes of which none is another's multiple by chance, and a vocabulary that tensor and pipeline must pad.
ODD = GPTConfig(layers=6, embed=48, heads=4, vocab=257, sequence=24, mlp=80)
UNTIED = dataclasses.replace(ODD, tied=False)
EVEN = dataclasses.replace(ODD, layers=8)
BATCH = 16
L, T, D, F, V = SMALL.layers, SMALL.sequence, SMALL.embed, SMALL.mlp_dim, SMALL.vocab
PARAMS = SMALL.param_count
BLOCKS = L * (4 * D**2 + 2 * D * F + 9 * D + F)
VECTORS = (6 * L + 2 + T) * D  # of norms, biases behind cut matmuls, and positions: what the tensor axis does not cut
TOKENS = BATCH * T
SCORES = 3 / 4 * 2 * L * T * D
BTD = TOKENS * D

CASES = [
    ("single", "data=1", ODD, {"remat": "full", "logits_bytes": 2**16}),
    ("data", "data=8", UNTIED, {"microbatches": 2}),
    ("zero1", "data=2", SMALL, {"remat": "none"}),
    ("zero2", "data=4", ODD, {"microbatches": 2}),
    ("fsdp", "fsdp=8", ODD, {"remat": "none"}),
    ("fsdp", "fsdp=8", SMALL, {}),
    ("fsdp", "fsdp=2", UNTIED, {"remat": "full", "microbatches": 2}),
    ("fsdp", "fsdp=4", SMALL, {"regather": False}),
    ("hsdp", "data=2,fsdp=4", SMALL, {"gather": "step", "microbatches": 2}),
    ("tensor", "tensor=4", ODD, {"remat": "full"}),
    ("tensor", "tensor=4", SMALL, {}),
    ("tensor", "tensor=2", UNTIED, {"remat": "none", "microbatches": 2}),
    ("tensor", "tensor=4", SMALL, {"remat": "full", "sequence_parallel": False}),
    ("context", "context=4", ODD, {"remat": "full"}),
    ("context", "context=4", SMALL, {}),
    ("context", "context=4", SMALL, {"context_attention": "ulysses"}),
    ("pipeline", "pipeline=4", ODD, {"microbatches": 8, "remat": "full"}),
    ("pipeline", "pipeline=2", EVEN, {"microbatches": 4, "schedule": "interleaved"}),
    ("pipeline", "pipeline=4", ODD, {"microbatches": 8, "schedule": "zb-h1"}),
    ("three_d", "data=2,pipeline=2,tensor=2", UNTIED, {"microbatches": 4, "sequence_parallel": False}),
    ("three_d", "fsdp=2,pipeline=2,tensor=2", ODD, {"microbatches": 4, "remat": "none"}),
    ("three_d", "fsdp=2,pipeline=2,context=2", UNTIED, {"microbatches": 4, "schedule": "zb-h1"}),
    ("three_d", "fsdp=2,context=2,tensor=2", ODD, {"microbatches": 2, "gather": "step", "remat": "full"}),
    ("three_d", "fsdp=2,tensor=4", UNTIED, {"microbatches": 2, "remat": "none"}),
    ("three_d", "data=4,context=2", ODD, {"remat": "none"}),
    ("three_d", "data=2,context=2,tensor=2", SMALL, {"context_attention": "ulysses", "sequence_parallel": False}),
    ("three_d", "data=2,pipeline=4", ODD, {"microbatches": 4, "schedule": "zb-h1", "remat": "full"}),
]


def cost(name, mesh, config=SMALL, **train):
    """What formulas say."""
    return predict(name, config, MeshSpec.parse(mesh), TrainConfig(BATCH, **train))


def step(name, mesh, config=SMALL, **train):
    """The step itself."""
    spec = MeshSpec.parse(mesh)
    return STRATEGIES[name].build(config, spec, TrainConfig(BATCH, **train), jax.devices()[: spec.size])


def compiled(name, mesh, config=SMALL, fast=True, **train):
    """What the compiler made of it: what it does, and the memory that it plans."""
    built = step(name, mesh, config, **train)
    program = quick.compiled(built.lower()) if fast else built.lower().compile()
    text, memory = program.as_text(), program.memory_analysis()
    assert text
    assert memory
    return read_program(text, built.mesh.shape), memory


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


@pytest.mark.parametrize(
    "fast", [True, pytest.param(False, marks=pytest.mark.factorisations)], ids=["quick", "as used"]
)
@pytest.mark.parametrize(("name", "mesh", "config", "train"), CASES, ids=str)
def test_compiled_program_is_what_formulas_say(name, mesh, config, train, fast):
    """Each kind of collective over each axis sends as many bytes, matmuls do as many FLOPs, arguments are as large.

    And no two collectives may be in flight together, which could deadlock (benchmarks/program/deadlock.py). Formulas of
    one more layer on each stage are wrong in all of this; but stages send what is between layers. At night programs are
    compiled as they are used; those of the default matrix are held to the formulas by each run (test_predicted.py).
    """
    program, memory = compiled(name, mesh, config, fast, **train)
    assert program.concurrent == ()
    predicted = cost(name, mesh, config, **train)
    assert sent(program) == by_axes(predicted)
    assert program.flops * predicted.plan.mesh.size == sum(predicted.flops.values())
    assert memory.argument_size_in_bytes == sum(predicted.arguments.values())
    assert memory.temp_size_in_bytes == pytest.approx(sum(predicted.temporaries.values()), rel=0.15)

    stages = MeshSpec.parse(mesh).sizes.get("pipeline", 1)
    wrong = cost(name, mesh, dataclasses.replace(config, layers=config.layers + stages), **train)
    assert (sent(program) == by_axes(wrong)) == (name in ("single", "pipeline"))
    assert program.flops * wrong.plan.mesh.size < sum(wrong.flops.values())
    assert memory.argument_size_in_bytes < sum(wrong.arguments.values())


@pytest.mark.parametrize(
    ("name", "mesh", "train", "elements"),
    [
        ("data", "data=8", {}, {"all_reduce.data": 2 * (PARAMS + 1) * 7 / 8}),
        (
            "fsdp",
            "fsdp=8",
            {},
            # Fewer gathers than its docstring has: outside the loop over layers the compiler gathers nothing twice.
            {
                # Not needed backward: a layer's last bias, and those of queries, keys and values, kept with them.
                "all_gather.fsdp": (PARAMS + BLOCKS - 4 * L * D) * 7 / 8,
                "reduce_scatter.fsdp": (PARAMS + V * D) * 7 / 8,  # the table twice: as embedding and as head
                "all_reduce.fsdp": 2 * 2 * 7 / 8,  # loss and norm
            },
        ),
        (
            "tensor",
            "tensor=4",
            {},
            {
                "all_gather.tensor": (6 * L + 2) * BTD * 3 / 4,
                "reduce_scatter.tensor": (4 * L + 2) * BTD * 3 / 4,
                "all_reduce.tensor": 2 * (3 * TOKENS + VECTORS + 1) * 3 / 4,
            },
        ),
        (
            "tensor",
            "tensor=4",
            {"sequence_parallel": False},
            {"all_reduce.tensor": 2 * ((4 * L + 2) * BTD + 3 * TOKENS + 1) * 3 / 4},
        ),
        (
            "context",
            "context=4",
            {},
            {"permute.context": (3 * 4 - 2) * 2 * L * BTD / 4, "all_reduce.context": 2 * (PARAMS + 1) * 3 / 4},
        ),
        (
            "context",
            "context=4",
            {"context_attention": "ulysses"},
            {"all_to_all.context": 8 * L * BTD * 3 / 4**2, "all_reduce.context": 2 * (PARAMS + 1) * 3 / 4},
        ),
        (
            "pipeline",
            "pipeline=2",
            {"microbatches": 4},
            {
                # Of two stages one sends each microbatch forward and one back, of which two times both at once.
                "permute.pipeline": (4 + 4 - 2) * BTD / 4,
                "all_reduce.pipeline": 2 * (4 * BTD + 3 * TOKENS + 2 * D + 1) / 2,
            },
        ),
        (
            "three_d",
            "data=2,pipeline=2,tensor=2",
            {"microbatches": 2},
            # For half of the sequences, and half of the layers.
            {
                "all_gather.tensor": (6 * L / 2 + 2) * BTD / 2 / 2,
                "reduce_scatter.tensor": (4 * L / 2 + 2) * BTD / 2 / 2,
                "permute.pipeline": 2 * BTD / 2 / 2,
                "all_reduce.pipeline": 2 * (4 * BTD / 2 / 2 + 2 * D + 1) / 2,
                "all_reduce.several": 2 * (3 * TOKENS / 2 + 1) * 3 / 4,
                "all_reduce.tensor": 2 * (VECTORS - 6 * L / 2 * D) / 2,
                "all_reduce.data": 2 * (V * D / 4 + VECTORS - 6 * L / 2 * D + (BLOCKS / L - 6 * D) / 2 + 1) / 2,
            },
        ),
    ],
)
def test_formulas_are_what_docstrings_say(name, mesh, train, elements):
    """A step sends what its strategy's docstring says, and single numbers for the loss and the norm: no byte more."""
    sent = {
        f"{kind}.{axes[0] if len(axes) == 1 else 'several'}": sent
        for (kind, axes), sent in by_axes(cost(name, mesh, **train)).items()
    }
    assert sent == {key: 4 * count for key, count in elements.items()}


@pytest.mark.parametrize(
    ("remat", "recomputed"),
    [
        # The backward pass of attention computes the scores again.
        ("dots", SCORES),
        # And here that of a block all but its last matmul, and attention, whose scores it then has. The logits are
        # outside the loop over layers: the compiler finds them computed.
        ("full", SCORES + 2 * L * (4 * D**2 + D * F) + SCORES),
    ],
)
def test_flops_of_a_step_are_those_of_its_matmuls(remat, recomputed):
    """On one device a step does the model's FLOPs for each token, and those that it does again, to the last one.

    But for a quarter of attention, of whose scores these are six times as many.
    """
    flops = sum(cost("single", "data=1", remat=remat).flops.values())
    assert flops == TOKENS * (SMALL.flops_per_token - 6 * SCORES / 3 + recomputed)


@pytest.mark.parametrize(("name", "mesh"), [("data", "data=8"), ("fsdp", "fsdp=8"), ("tensor", "tensor=4")])
def test_devices_share_the_flops(name, mesh):
    """Devices that share a step's sequences, or the dims of its layers, do equal parts of it, and nothing twice."""
    assert sum(cost(name, mesh).flops.values()) == sum(cost("single", "data=1").flops.values())


def test_every_strategy_by_hand_has_formulas_and_is_held_to_them():
    """Every strategy that the compiler does not partition has a layout, and is among the programs compiled here.

    Of what the compiler partitions nothing is known, and nothing is made up.
    """
    by_hand = {name for name, strategy in STRATEGIES.items() if not strategy.twins}
    assert set(known()) == by_hand == {name for name, *_ in CASES}
    with pytest.raises(Infeasible, match="nothing is known of what auto sends; it can be single, data"):
        predict("auto", PRESETS["nano"], MeshSpec.parse("data=8"), TrainConfig(BATCH))


@pytest.mark.parametrize("config", [*PRESETS.values(), UNTIED], ids=str)
def test_weights_are_those_of_the_model(config):
    """On one device the formulas have as many parameters as the model, and those of a padded vocabulary."""
    tables = 1 if config.tied else 2
    padding = tables * config.embed * (config.vocab_rows() - config.vocab)
    elements = predict("single", config, MeshSpec.parse("data=1"), TrainConfig(BATCH)).plan.elements
    assert elements == config.param_count + padding
    unpadded = dataclasses.replace(config, vocab_multiple=1)
    plan = predict("single", unpadded, MeshSpec.parse("data=1"), TrainConfig(BATCH)).plan
    assert plan.elements == config.param_count


@pytest.mark.parametrize("vocab", [256, 257, 50257])
def test_all_meshes_of_a_comparison_have_the_same_vocabulary(vocab):
    """Padded, it has as many rows on every mesh of up to eight devices, and so do its matmuls as many FLOPs."""
    config = dataclasses.replace(EVEN, vocab=vocab, heads=8, embed=64, mlp=None, sequence=32)
    plans = [
        predict(name, config, mesh, TrainConfig(BATCH, microbatches=2 if "pipeline" in mesh.sizes else 1)).plan
        for name in known()
        for devices in (1, 2, 4, 8)
        for mesh in STRATEGIES[name].meshes(devices)
    ]
    assert len(plans) > 50
    assert {plan.rows for plan in plans} == {128 * math.ceil(vocab / 128)}


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


@pytest.mark.parametrize("remat", ["none", "dots", "full"])
@pytest.mark.parametrize(
    ("name", "mesh", "train"),
    [
        ("fsdp", "fsdp=4", {"microbatches": 2}),
        ("tensor", "tensor=4", {}),
        ("tensor", "tensor=2", {"sequence_parallel": False}),
        ("context", "context=2", {}),
        ("context", "context=4", {"context_attention": "ulysses"}),
        ("three_d", "data=2,pipeline=2,tensor=2", {"microbatches": 4}),
        ("three_d", "fsdp=2,pipeline=2,tensor=2", {"microbatches": 4}),
        ("three_d", "fsdp=2,pipeline=2,context=2", {"microbatches": 4}),
    ],
    ids=str,
)
def test_layers_keep_what_the_formula_says(name, mesh, train, remat):
    """What the loop over layers hands to that of the backward pass, to the byte, in bfloat16 and in float32.

    Of a pipeline, whose passes go layer by layer, what each layer hands on by itself.
    """
    built = step(name, mesh, ODD, remat=remat, dtype="bfloat16", **train)
    plan = cost(name, mesh, ODD, remat=remat, dtype="bfloat16", **train).plan
    jaxpr = jax.make_jaxpr(built.gradients)(built.state.params, built.batch).jaxpr
    layers = 1 if plan.staged else plan.layers
    forward, _ = [loop for loop in loops(jaxpr) if Loop.of(loop).carry == 1 and loop.params["length"] == layers]
    kept = forward.outvars[1:]
    assert not forward.params["reverse"]
    assert sum(BYTES[str(each.aval.dtype)] * math.prod(each.aval.shape) for each in kept) == (
        layers * layer_bytes(plan)
    )


def test_bfloat16_is_sent_as_float32():
    """Half the bytes, but for gradients and vectors, which are float32; XLA's CPU backend sends all as in float32."""
    program, _ = compiled("fsdp", "fsdp=4", SMALL, dtype="bfloat16")
    half, whole = cost("fsdp", "fsdp=4", dtype="bfloat16"), cost("fsdp", "fsdp=4")
    assert sent(program) == by_axes(whole)
    gathered = "all_gather", ("fsdp",)
    vectors = sum(w.elements for w in half.plan.weights if half.plan.dtype(w) == "float32")
    wide = 2 * by_axes(half)[gathered] - by_axes(whole)[gathered]
    # All but the last norm, the bias at a layer's end, and those of queries, keys and values.
    again = vectors - (4 * SMALL.layers + 2) * SMALL.embed // 4
    assert wide == 4 * 3 * (vectors + again)
    assert by_axes(half)["reduce_scatter", ("fsdp",)] == by_axes(whole)["reduce_scatter", ("fsdp",)]
    assert half.sent["all_reduce", ("fsdp",)] == whole.sent["all_reduce", ("fsdp",)] == {"loss": 6, "norm": 6}


def test_it_takes_no_devices_and_no_time():
    """A model of 175 billion parameters on 1,024 devices is one call, with JAX unable to find any device."""
    code = """
        from strategies import PRESETS, MeshSpec, TrainConfig
        from strategies.costs.predict import predict
        train = TrainConfig(batch_size=1536, microbatches=12, dtype="bfloat16")
        cost = predict("three_d", PRESETS["gpt3-175b"], MeshSpec.parse("data=16,pipeline=8,tensor=8"), train)
        print(cost.sent_bytes, cost.arguments, cost.temporaries, cost.hardware_flops, cost.bubble)
    """
    environment = os.environ | {"JAX_PLATFORMS": "none such"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("preset", ["gpt2-xl", "gpt3-175b"])
def test_model_flops_are_the_published_formula(preset):
    """Narayanan et al. 2021, equation 3, without its recomputation: 72 B T L D^2 (1 + T / 6D + V / 12LD)."""
    config = PRESETS[preset]
    layers, embed, tokens = config.layers, config.embed, BATCH * config.sequence
    terms = 1 + config.sequence / (6 * embed) + config.vocab / (12 * layers * embed)
    predicted = predict("single", config, MeshSpec.parse("data=1"), TrainConfig(BATCH))
    assert predicted.model_flops() == pytest.approx(72 * tokens * layers * embed**2 * terms, rel=1e-12)
    halved = predicted.model_flops() - predicted.model_flops(causal=True)
    assert halved == 6 * tokens * layers * embed * config.sequence


def simulated_bubble(schedule, forward, inputs, weights):
    """Of a schedule whose stages start each operation as soon as they can, found by visiting them again and again."""
    backward = inputs if schedule.splits_backward else inputs + weights
    lasts = {kind: each / schedule.chunks for kind, each in {"F": forward, "B": backward, "W": weights}.items()}
    parts, ends, clock = schedule.stages * schedule.chunks, {}, [0.0] * schedule.stages
    left = [list(order) for order in schedule.orders]
    while any(left):
        for stage, ops in enumerate(left):
            while ops:
                kind, m, chunk = ops[0]
                part = chunk * schedule.stages + stage
                before = {"F": ("F", m, part - 1), "B": ("B", m, part + 1), "W": ("B", m, part)}[kind]
                if kind == "B" and part == parts - 1:
                    before = ("F", m, part)
                if before not in ends and before[2] >= 0:
                    break
                clock[stage] = ends[kind, m, part] = max(clock[stage], ends.get(before, 0.0)) + lasts[kind]
                ops.pop(0)
    return 1 - schedule.microbatches * (forward + inputs + weights) / max(clock)


@pytest.mark.parametrize("remat", ["none", "dots", "full"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb-h1"])
def test_bubble_is_that_of_passes_as_long_as_their_flops(schedule, remat):
    """Simulated with costs by hand, for a layer and a token: matmuls 24 D^2, attention 4 D T (Qi et al. 2023, table 1).

    Backward, 8 D T of attention and its scores, 2 D T, again; with `remat="full"` all that but the last matmul, 8 D^2.
    A quarter of attention is left out (attention.py).
    """
    config, train = PRESETS["gpt3-6.7b"], TrainConfig(32, 32, schedule=schedule, remat=remat)
    matmuls, embed, tokens = 24 * config.embed**2, config.embed, 3 * config.sequence // 4
    again = matmuls + 4 * embed * tokens - 8 * embed**2 if remat == "full" else 2 * embed * tokens
    by_hand = matmuls + 4 * embed * tokens, matmuls + 8 * embed * tokens + again, matmuls
    predicted = predict("pipeline", config, MeshSpec.parse("pipeline=8"), train)
    assert predicted.bubble == pytest.approx(simulated_bubble(predicted.plan.schedule, *by_hand), rel=1e-9)


def test_zero_bubble_waits_for_recomputation():
    """ZB-H1 waits (S-1) (F+B-W) (Qi et al. 2023, table 2): of 8 stages with 32 microbatches of gpt3-6.7b, 9.7%."""
    train = TrainConfig(32, 32, schedule="zb-h1", remat="full")
    predicted = predict("pipeline", PRESETS["gpt3-6.7b"], MeshSpec.parse("pipeline=8"), train)
    forward, inputs, weights = predicted.passes
    idle, work = 7 * (forward + inputs - weights), 32 * (forward + inputs + weights)
    assert predicted.bubble == pytest.approx(idle / (idle + work), rel=1e-9)
    assert predicted.bubble == pytest.approx(0.0967, abs=5e-5)


@pytest.mark.parametrize(("name", "mesh", "config", "train"), CASES, ids=str)
def test_passes_and_the_head_are_all_flops(name, mesh, config, train):
    """What the bubble is made of are the FLOPs that are held against the compiled program, but for the head."""
    predicted = cost(name, mesh, config, **train)
    plan, tokens = predicted.plan, BATCH * config.sequence
    head = (8 if plan.logits_again else 6) * config.embed * plan.rows
    assert tokens * (sum(predicted.passes) + head) == predicted.hardware_flops


def test_what_is_computed_again_is_no_waiting():
    """Hardware FLOPs are the model's and those done again, in a pipeline as on one device, however long it waits."""
    one, staged = cost("single", "data=1", remat="full"), cost("pipeline", "pipeline=2", remat="full", microbatches=4)
    assert staged.hardware_flops == one.hardware_flops > one.model_flops()
    assert (one.bubble, staged.bubble) == (0, pytest.approx(1 / 5))


@pytest.mark.parametrize(
    ("name", "mesh", "message"),
    [
        ("no_such", "data=2", "nothing is known of what no_such sends; it can be single, data"),
        ("single", "data=2", "mesh data=2 has the axis data, which splits nothing here"),
        ("tensor", "tensor=8", "tensor=8 does not divide heads=4; tensor can be 1, 2 or 4"),
        ("pipeline", "pipeline=4", "2 layers are too few for 4 parts of a pipeline"),
        ("data", "data=32", "data=32 x microbatches=1 does not divide batch_size=16"),
    ],
)
def test_what_does_not_fit_has_no_cost(name, mesh, message):
    """It is refused as `build` refuses it."""
    with pytest.raises(Infeasible, match=message):
        cost(name, mesh)


def test_plans_share_what_takes_long_to_find():
    """A schedule, its ticks and its bubble are found once, whatever else differs between plans."""
    one = cost("pipeline", "pipeline=2", microbatches=4, remat="full")
    other = cost("three_d", "data=2,pipeline=2", microbatches=4, remat="none")
    assert one.plan.order is other.plan.order
    assert one.plan.order is not cost("pipeline", "pipeline=2", microbatches=8, remat="full").plan.order


@pytest.mark.parametrize(
    ("mesh", "train", "message"),
    [
        ("pipeline=4", {"microbatches": 4}, "2 layers are too few for 4 parts of a pipeline; take at most 2"),
        ("pipeline=2", {"schedule": "interleaved"}, "2 layers are too few for 4 parts of a pipeline"),
        (
            "pipeline=2",
            {"schedule": "interleaved", "chunks": 1},
            "pipeline=2 does not divide microbatches=1, as an interleaved schedule needs; take a multiple of 2",
        ),
    ],
)
def test_what_does_not_fit_has_no_plan(mesh, train, message):
    """Of stages, too: it is refused before anything is asked of the plan, in the words of `build`."""
    for name in ("pipeline", "three_d"):
        with pytest.raises(Infeasible, match=message):
            predict(name, SMALL, mesh, TrainConfig(BATCH, **train))
        with pytest.raises(Infeasible, match=message):
            step(name, mesh, **train)
