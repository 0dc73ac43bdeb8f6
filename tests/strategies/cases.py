"""The steps that are held to the laws in each test run: one for each thing that may go wrong. A few wait for the night.

The grid of every strategy, model and option is in nightly_laws.py and nightly_formulas.py. Cases with the same model
stand together, because the results of one device are kept for a few models.
"""

from dataclasses import replace

from tests.strategies.equality import CONFIG
from tests.strategies.laws import SPLIT, ULYSSES, ZB_H1, Case
from tests.strategies.models import (
    BIASED,
    COPIED,
    COPIED_LEAD,
    CROWDED_SHALLOW,
    DEEPSEEK,
    FORCED,
    GATED,
    GPT_OSS,
    LATENT,
    LATENT_KEYS,
    MOE_ROUTERS,
    MTP,
    NARROW,
    ODD,
    SHORT_LEAD,
    SPARSE_MTP,
    UNTIED,
    WINDOWED,
)

MUON = {"optimizer": "muon"}
OTHER_MUON = {**MUON, "matrix_scale": "original", "nesterov": False, "momentum_dtype": "bfloat16"}
DAILY = [
    Case("zero1", "data=8"),
    Case("pipeline", "pipeline=8", CONFIG, {"microbatches": 8, "remat": "full"}),
    Case("three_d", "data=2,pipeline=2,tensor=2", CONFIG, {"microbatches": 4}),
    Case("explicit", "data=8", CONFIG, {"microbatches": 2}),
    Case("explicit", "fsdp=2,tensor=4", CONFIG, {"remat": "full", "logits_bytes": 2**14, "z_loss": 1e-2}),
    Case("three_d", "data=2,context=2,tensor=2", CONFIG, {**ULYSSES, **SPLIT}),
    Case("three_d", "data=2,fsdp=2,tensor=2", CONFIG, {"reduce": "layer"}),
    Case("tensor", "tensor=4", CONFIG, {"halves": "on", "remat": "full"}),
    Case("fsdp", "fsdp=8", CONFIG, {"remat": "none", "unroll": 2, "logits_bytes": 2**14, "z_loss": 1e-2}),
    Case("pipeline", "pipeline=4", CONFIG, {"schedule": "zb-h1", "microbatches": 3, "batch_size": 15}),
    Case("pipeline", "pipeline=2", CONFIG, {"schedule": "dualpipe-v", "microbatches": 5, "batch_size": 15}),
    Case("three_d", "fsdp=2,pipeline=2,tensor=2", CONFIG, {"schedule": "zb-v", "microbatches": 4}),
    Case("three_d", "data=2,pipeline=2,tensor=2", CONFIG, {"schedule": "eager-1f1b", "microbatches": 4}),
    Case("context", "context=8", replace(CONFIG, attention_stride=4)),
    Case("context", "context=8", replace(CONFIG, key_heads=2), ULYSSES),
    # Sizes of which none is another's multiple, and a vocabulary that tensor and pipeline pad.
    Case("single", "data=1", UNTIED, {"remat": "full", "logits_bytes": 2**16}),
    Case("explicit", "fsdp=2,tensor=2", UNTIED, {"remat": "none", "microbatches": 2}),
    Case("explicit", "fsdp=2,tensor=2", UNTIED, {"dtype": "bfloat16", "reduce_dtype": "bfloat16", "microbatches": 2}),
    Case("explicit", "data=2,tensor=2", UNTIED, {"sequence_parallel": False}),
    Case("three_d", "fsdp=2,pipeline=2,context=2", UNTIED, ZB_H1),
    Case("three_d", "fsdp=2,context=2,tensor=2", UNTIED, {"microbatches": 2, "gather": "step", "remat": "full"}),
    # Rotations, gates, copies of KV heads, and norms of heads with fewer features than devices.
    Case("zero2", "data=8", NARROW, {"reduce": "layer", "microbatches": 2}),
    Case("three_d", "data=2,tensor=4", NARROW),
    # Memory is mostly copies of KV heads.
    Case("tensor", "tensor=8", COPIED),
    # Mixtures of experts, with losses of the router, biases, forced routing, leading dense layers; and gpt-oss.
    Case("three_d", "expert=2,tensor=2", BIASED, {"halves": "on", **SPLIT}),
    Case("explicit", "data=2,expert=2", BIASED, {"microbatches": 2}),
    Case("pipeline", "pipeline=2", FORCED, ZB_H1),
    Case("expert", "data=2,expert=2", CROWDED_SHALLOW, {"dispatch": "all_to_all", "halves": "on"}),
    Case("expert", "expert=2", CROWDED_SHALLOW, {"dispatch": "all_gather", "remat": "full"}),
    Case("explicit", "fsdp=2,expert=4", SHORT_LEAD, {"remat": "none"}),
    Case("three_d", "pipeline=2,expert=2,tensor=2", COPIED_LEAD, {"microbatches": 2, **SPLIT}),
    Case("three_d", "data=2,tensor=2", COPIED_LEAD, {"reduce": "layer"}),
    Case("three_d", "expert=2,tensor=2", GPT_OSS, SPLIT),
    Case("fsdp", "fsdp=8", UNTIED, {"prefetch": "on", "remat": "full", "unroll": 2, "microbatches": 2}),
    # Latents: gathered as such, around a ring and by heads, and of a mixture like DeepSeek's.
    Case("tensor", "tensor=4", LATENT, SPLIT),
    Case("context", "context=4", LATENT_KEYS, {"context_attention": "ring"}),
    Case("pipeline", "pipeline=2", LATENT, ZB_H1),
    Case("three_d", "context=2,expert=2,tensor=2", DEEPSEEK, ULYSSES),
    # Multi-token prediction: its gathers, its ring, its parts on stages, and its router.
    Case("three_d", "fsdp=2,context=2,tensor=2", MTP, {"remat": "full", **SPLIT}),
    Case("three_d", "fsdp=2,pipeline=2,tensor=2", MTP, {"microbatches": 4}),
    Case("pipeline", "pipeline=2", SPARSE_MTP, {"microbatches": 2}),
    # Optimizers: matrices that are whole, dealt out, gathered, or whose Gram matrices are summed.
    Case("data", "data=8", CONFIG, {"optimizer": "sgd"}),
    Case("fsdp", "fsdp=8", CONFIG, MUON),
    Case("fsdp", "fsdp=4", CONFIG, {**MUON, "matrices": "gather", "microbatches": 2}),
    Case("three_d", "fsdp=2,tensor=4", CONFIG, {**MUON, "matrices": "gram"}),
    Case("three_d", "fsdp=2,pipeline=2,tensor=2", CONFIG, {**MUON, "microbatches": 4}),
    Case("explicit", "fsdp=2,tensor=2", CONFIG, MUON),
    Case(
        "zero1", "data=4", CONFIG, {**MUON, "matrix_scale": "original", "nesterov": False, "momentum_dtype": "bfloat16"}
    ),
    Case("tensor", "tensor=4", NARROW, {**MUON, "by_head": True}),
]

SLOW = [
    Case("context", "context=4", WINDOWED, {"remat": "full"}),
    Case("pipeline", "pipeline=2", GATED, ZB_H1),
    Case("pipeline", "pipeline=2", SPARSE_MTP, ZB_H1),
    Case("single", "data=1", MOE_ROUTERS[2], {"remat": "full"}),
    Case("explicit", "data=2,fsdp=4", NARROW, {"dtype": "bfloat16"}),
    Case("explicit", "data=2,expert=2", CROWDED_SHALLOW, {"dispatch": "all_to_all", "remat": "full"}),
    Case("fsdp", "fsdp=8", ODD, {"prefetch": "on", "remat": "none", "microbatches": 2}),
    Case("zero2", "data=8", NARROW, MUON),
    Case("expert", "data=2,expert=2", CROWDED_SHALLOW, MUON),
    Case("data", "data=8", CONFIG, OTHER_MUON),
]
"""Steps that are trained at night: each takes long, and most of what it has some shorter one has each day."""
