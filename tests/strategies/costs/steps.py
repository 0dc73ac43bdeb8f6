"""The steps whose costs are tested: models, meshes and options; by formula, and compiled."""

import dataclasses

import jax

from benchmarks.program.compiled import Program, read_program
from strategies import STRATEGIES, GPTConfig, MeshSpec, TrainConfig
from strategies.costs.predict import predict
from strategies.model.gpt import param_count
from tests.strategies import quick

SMALL = GPTConfig(layers=2, embed=32, heads=4, vocab=256, sequence=16)
PAIRED = dataclasses.replace(SMALL, key_heads=2)
SHALLOW = dataclasses.replace(SMALL, layers=1)
# Sizes of which none is another's multiple by chance, and a vocabulary that tensor and pipeline must pad.
ODD = GPTConfig(layers=6, embed=48, heads=4, vocab=257, sequence=24, mlp=80)
UNTIED = dataclasses.replace(ODD, tied=False)
EVEN = dataclasses.replace(ODD, layers=8)
# A sequence long enough that blocks are skipped.
LONG = GPTConfig(layers=2, embed=32, heads=4, vocab=256, sequence=64, attention_window=8)
WIDE = dataclasses.replace(LONG, attention_window=24)
WIDEST = dataclasses.replace(LONG, attention_window=60)
STRIDED = dataclasses.replace(LONG, attention_window=None, attention_stride=8)
TURNS = dataclasses.replace(LONG, layers=8, full_attention_every=2)
FIXED = dataclasses.replace(STRIDED, attention_pattern="fixed", attention_summary=2)
# Scores are most of what a layer holds, or gradients are most of what a device holds.
DENSE = GPTConfig(layers=2, embed=32, heads=4, vocab=128, sequence=512, mlp=64)
WINDOWED = dataclasses.replace(DENSE, attention_window=384)
# Heads of queries share heads of keys; one head of keys alone.
GROUPED = dataclasses.replace(DENSE, key_heads=2)
SHARED = dataclasses.replace(DENSE, key_heads=1)
# Heads whose features are not those of the residual stream, and do not divide it.
HEADED = GPTConfig(layers=2, embed=44, heads=8, head_size=6, vocab=257, sequence=32, mlp=80)
LLAMA = dataclasses.replace(ODD, block="llama", key_heads=2, head_size=8, tied=False)
QWEN3 = dataclasses.replace(LLAMA, block="qwen3")
# Norms of heads with fewer features than there are devices.
NARROW = dataclasses.replace(QWEN3, head_size=4)
# Experts that drop tokens.
EXPERTS = dataclasses.replace(ODD, experts=8, expert_mlp=24, capacity_factor=1.0, balance_loss=0.01)
TURNS_OF_EXPERTS = dataclasses.replace(TURNS, experts=8, expert_mlp=24, capacity_factor=1.0, balance_loss=0.01)
# Memory is mostly that of copies of KV heads, or of SwiGLU, where gradients of weights wait.
COPIED = GPTConfig(layers=4, embed=256, heads=8, key_heads=1, vocab=128, sequence=8, mlp=64)
GATED = GPTConfig(layers=4, embed=32, heads=4, vocab=128, sequence=64, mlp=256, block="llama", tied=False)
DEEP = GPTConfig(layers=8, embed=64, heads=4, vocab=128, sequence=32)
BATCH = 16
L, T, D, F, V = SMALL.layers, SMALL.sequence, SMALL.embed, SMALL.mlp_dim, SMALL.vocab
PARAMS = param_count(SMALL)
BLOCKS = L * (4 * D**2 + 2 * D * F + 9 * D + F)
VECTORS = (6 * L + 2 + T) * D  # of norms, biases after cut matmuls, and positions: what the tensor axis does not cut
TOKENS = BATCH * T
SCORES = 3 / 4 * 2 * L * T * D
BTD = TOKENS * D

EVERY_DAY = [
    ("single", "data=1", ODD, {"remat": "full", "logits_bytes": 2**16}),
    ("zero2", "data=8", NARROW, {"reduce": "layer", "microbatches": 2}),
    ("fsdp", "fsdp=8", ODD, {"prefetch": "on", "remat": "none", "microbatches": 2}),
    ("context", "context=4", PAIRED, {"context_attention": "ulysses"}),
    ("pipeline", "pipeline=4", ODD, {"microbatches": 8, "remat": "full"}),
    ("three_d", "fsdp=2,pipeline=2,context=2", UNTIED, {"microbatches": 4, "schedule": "zb-h1"}),
    ("three_d", "fsdp=2,context=2,tensor=2", ODD, {"microbatches": 2, "gather": "step", "remat": "full"}),
    ("context", "context=4", WINDOWED, {"remat": "full"}),
    ("tensor", "tensor=8", COPIED, {}),
    ("pipeline", "pipeline=2", GATED, {"microbatches": 4, "schedule": "zb-h1"}),
]
AT_NIGHT = [
    ("three_d", "data=2,tensor=4", COPIED, {"reduce": "layer"}),
    ("three_d", "pipeline=2,tensor=4", COPIED, {"microbatches": 4}),
    ("tensor", "tensor=8", dataclasses.replace(COPIED, key_heads=2), {"microbatches": 2}),
    ("three_d", "pipeline=2,tensor=2", GATED, {"microbatches": 4, "schedule": "zb-h1"}),
    ("pipeline", "pipeline=2", GATED, {"microbatches": 4, "schedule": "zb-h1", "remat": "full"}),
    ("pipeline", "pipeline=2", GATED, {"microbatches": 4, "schedule": "zb-h1", "remat": "none"}),
    ("three_d", "pipeline=2,tensor=2", GATED, {"microbatches": 4, "schedule": "zb-h1", "remat": "none"}),
    ("three_d", "fsdp=2,context=2,tensor=2", HEADED, {"context_attention": "ulysses"}),
    ("single", "data=1", GROUPED, {"remat": "full"}),
    ("single", "data=1", TURNS, {"remat": "full"}),
    ("fsdp", "fsdp=4", TURNS, {}),
    ("context", "context=4", TURNS, {"remat": "none"}),
    ("context", "context=2", dataclasses.replace(TURNS, block="llama", key_heads=2, mlp=80), {"remat": "full"}),
    ("pipeline", "pipeline=2", TURNS, {"microbatches": 4, "schedule": "zb-h1"}),
    ("expert", "data=2,expert=4", TURNS_OF_EXPERTS, {}),
    ("expert", "data=2,expert=4", TURNS_OF_EXPERTS, {"remat": "full", "dispatch": "all_gather"}),
    # XLA's CPU backend sends float16 as it is. It copies weights to float32, which other meshes and options show more.
    ("zero1", "data=4", SMALL, {"dtype": "float16", "master": "float32", "remat": "none"}),
    ("hsdp", "data=2,fsdp=4", ODD, {"prefetch": "on", "remat": "full", "reduce": "layer"}),
    ("expert", "data=2,expert=4", EXPERTS, {}),
    ("zero2", "data=4", ODD, {"reduce": "layer", "microbatches": 2}),
    ("zero1", "data=8", NARROW, {}),
    ("fsdp", "fsdp=8", NARROW, {"prefetch": "on"}),
    ("fsdp", "fsdp=8", NARROW, {"gather": "step", "microbatches": 2}),
    ("data", "data=8", UNTIED, {"reduce": "layer", "bucket_bytes": 20_000}),
    ("fsdp", "fsdp=2", UNTIED, {"remat": "full", "microbatches": 2, "unroll": 2}),
    ("tensor", "tensor=4", ODD, {"remat": "full"}),
    ("three_d", "fsdp=2,tensor=2", ODD, {"halves": "on", "prefetch": "on"}),
    ("context", "context=4", STRIDED, {}),
    ("three_d", "data=2,pipeline=2,tensor=2", UNTIED, {"microbatches": 4, "sequence_parallel": False}),
    ("single", "data=1", SHARED, {}),
    ("context", "context=2", GROUPED, {"context_attention": "ulysses", "remat": "full"}),
    ("context", "context=4", SHARED, {}),
    ("context", "context=4", HEADED, {"remat": "full"}),
    ("context", "context=4", dataclasses.replace(HEADED, attention_window=6), {"remat": "none"}),
    ("tensor", "tensor=4", HEADED, {"remat": "full"}),
    ("zero2", "data=4", HEADED, {}),
    ("zero1", "data=2", SMALL, {"remat": "none"}),
    ("zero2", "data=4", SMALL, {"dtype": "float16", "master": "float32", "reduce": "layer"}),
    ("fsdp", "fsdp=4", SMALL, {"regather": False}),
    ("pipeline", "pipeline=2", EVEN, {"microbatches": 4, "schedule": "interleaved"}),
    ("three_d", "fsdp=2,pipeline=4", EVEN, {"microbatches": 8, "schedule": "zb-h1"}),
    ("context", "context=4", WIDE, {"remat": "full"}),
    ("context", "context=4", WIDEST, {}),
    ("context", "context=2", DENSE, {"remat": "full"}),
    ("context", "context=8", DEEP, {"remat": "full"}),
    ("single", "data=1", FIXED, {"remat": "full"}),
    # All layers in one iteration, which is still a loop.
    ("fsdp", "fsdp=4", SMALL, {"microbatches": 4, "unroll": 2}),
    ("context", "context=4", SMALL, {"unroll": 3}),
    ("context", "context=4", SHALLOW, {}),
    # Chunks of one token, and of one token of two heads that share a head of keys.
    ("context", "context=8", SMALL, {}),
    ("context", "context=8", PAIRED, {"remat": "full"}),
    ("hsdp", "data=2,fsdp=4", SMALL, {"gather": "step", "microbatches": 2}),
    ("tensor", "tensor=4", SMALL, {"remat": "full", "sequence_parallel": False}),
    ("data", "data=8", UNTIED, {"microbatches": 2}),
    ("fsdp", "fsdp=8", SMALL, {}),
    ("fsdp", "fsdp=2", UNTIED, {"remat": "full", "microbatches": 2}),
    ("fsdp", "fsdp=8", EVEN, {"remat": "full", "unroll": 4}),
    ("hsdp", "data=2,fsdp=4", EVEN, {"prefetch": "on", "remat": "full", "unroll": 2}),
    ("three_d", "fsdp=2,tensor=2", EVEN, {"unroll": 4}),
    ("tensor", "tensor=2", UNTIED, {"remat": "none", "microbatches": 2}),
    ("context", "context=4", ODD, {"remat": "full"}),
    ("three_d", "data=2,context=2,tensor=2", LONG, {"remat": "none", "microbatches": 2}),
    ("tensor", "tensor=4", ODD, {"halves": "on", "remat": "full", "sequence_parallel": False}),
    ("three_d", "data=2,pipeline=2,tensor=2", ODD, {"halves": "on", "microbatches": 4, "schedule": "zb-h1"}),
    ("zero1", "data=8", UNTIED, {"reduce": "layer"}),
    ("hsdp", "data=2,fsdp=4", ODD, {"reduce": "layer", "remat": "full"}),
    ("three_d", "data=2,context=2,tensor=2", ODD, {"reduce": "layer"}),
    ("zero2", "data=4", ODD, {"microbatches": 2}),
    ("fsdp", "fsdp=8", ODD, {"remat": "none"}),
    ("fsdp", "fsdp=4", UNTIED, {"prefetch": "on"}),
    ("fsdp", "fsdp=8", SMALL, {"prefetch": "on"}),
    ("three_d", "fsdp=2,context=2,tensor=2", ODD, {"prefetch": "on"}),
    ("tensor", "tensor=4", SMALL, {}),
    ("context", "context=4", SMALL, {}),
    ("pipeline", "pipeline=4", ODD, {"microbatches": 8, "schedule": "zb-h1"}),
    ("three_d", "fsdp=2,pipeline=2,tensor=2", ODD, {"microbatches": 4, "remat": "none"}),
    ("three_d", "fsdp=2,tensor=4", UNTIED, {"microbatches": 2, "remat": "none"}),
    ("three_d", "data=4,context=2", ODD, {"remat": "none"}),
    ("three_d", "data=2,context=2,tensor=2", SMALL, {"context_attention": "ulysses", "sequence_parallel": False}),
    ("three_d", "data=2,pipeline=4", ODD, {"microbatches": 4, "schedule": "zb-h1", "remat": "full"}),
    ("three_d", "pipeline=4,tensor=2", EVEN, {"microbatches": 8, "schedule": "zb-h1", "remat": "none"}),
    ("single", "data=1", LONG, {}),
    ("context", "context=4", LONG, {}),
    ("three_d", "fsdp=2,pipeline=2,context=2", WIDE, {"microbatches": 4, "schedule": "zb-h1"}),
    ("context", "context=2", WIDEST, {"remat": "none"}),
    ("context", "context=4", WIDEST, {"remat": "none"}),
    ("context", "context=4", WIDEST, {"remat": "full"}),
    ("context", "context=8", WIDE, {"remat": "none"}),
    ("context", "context=8", WIDE, {}),
    ("context", "context=8", WIDE, {"remat": "full"}),
    ("context", "context=2", WINDOWED, {}),
    ("context", "context=4", WINDOWED, {}),
    ("context", "context=4", WINDOWED, {"remat": "none"}),
    ("context", "context=2", WINDOWED, {"remat": "full", "context_attention": "ulysses"}),
    ("context", "context=4", DENSE, {"remat": "full", "context_attention": "ulysses"}),
    ("context", "context=4", GROUPED, {"context_attention": "ulysses"}),
    ("context", "context=4", SHARED, {"remat": "full", "context_attention": "ulysses"}),
    ("context", "context=4", DENSE, {}),
    ("context", "context=8", DENSE, {"remat": "full"}),
    ("single", "data=1", DENSE, {}),
    ("single", "data=1", WINDOWED, {"remat": "full"}),
    ("data", "data=8", DEEP, {"remat": "full"}),
    ("hsdp", "data=4,fsdp=2", DEEP, {"remat": "full"}),
    ("three_d", "data=2,context=2,tensor=2", WINDOWED, {"remat": "full"}),
]
CASES = EVERY_DAY + AT_NIGHT


def cost(name, mesh, config=SMALL, **train):
    """What formulas say."""
    return predict(name, config, MeshSpec.parse(mesh), TrainConfig(BATCH, **train))


def step(name, mesh, config=SMALL, **train):
    """The step itself."""
    spec = MeshSpec.parse(mesh)
    return STRATEGIES[name].build(config, spec, TrainConfig(BATCH, **train), jax.devices()[: spec.size])


def compiled(name, mesh, config=SMALL, fast=True, **train):
    """What the compiler made of it: what it does, and the memory that it plans."""
    return compiled_step(step(name, mesh, config, **train), fast)


def compiled_step(built, fast=True):
    """The same of a step that is built."""
    program = quick.compiled(built.lower()) if fast else built.lower().compile()
    text, memory = program.as_text(), program.memory_analysis()
    assert text
    assert memory
    return read_program(text, built.mesh.shape), memory


def assert_exact(program, memory, predicted):
    """The compiled program sends, computes and takes what the formulas say, to the byte.

    No two collectives may be in flight together, which could deadlock (benchmarks/program/deadlock.py).
    """
    assert program.unread == ""
    assert program.concurrent == ()
    assert sent(program) == by_axes(predicted)
    assert program.flops * predicted.plan.mesh.size == sum(predicted.flops.values())
    assert memory.argument_size_in_bytes == sum(predicted.arguments.values())


def assert_held(memory, predicted):
    """The temporaries that a CPU's compiler plans are at least what a step must hold by formula.

    What it plans besides no formula follows; that of an absent GPU is in test_gpu_memory.py.
    """
    must = {name: size for name, size in predicted.temporaries.items() if name != "working"}
    assert memory.temp_size_in_bytes >= sum(must.values())


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
