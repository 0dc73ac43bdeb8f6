"""Steps that are trained with `-m factorisations`: every strategy on every usual mesh, all options, and experts."""

from dataclasses import replace

from strategies import STRATEGIES
from tests.strategies.equality import CONFIG
from tests.strategies.laws import MB4, SPLIT, ULYSSES, ZB_H1, Case
from tests.strategies.meshes import HARDEST, SEVERAL, USUAL, WIDEST
from tests.strategies.models import (
    ALL_KEPT,
    BALANCED,
    BIASED,
    CROWDED,
    CROWDED_SHALLOW,
    DEEP_COPIED_LEAD,
    DEEP_LEAD,
    DROPPING,
    FORCED,
    GPT_OSS,
    LEAD,
    ONE_EXPERT,
    QWEN3_MOE,
    SHORT_LEAD,
    TWO_LEAD,
    UNBALANCED,
    UNTIED,
)
from tests.strategies.nightly_latents import LATENTS, OF_MTP

MIXTURES = [
    Case("expert", "data=2,expert=2", DROPPING, {"halves": "on", "dispatch": "all_gather", "remat": "full"}),
    Case("three_d", "fsdp=2,expert=2,tensor=2", DROPPING, {"halves": "on", "remat": "none", "prefetch": "on"}),
    Case("three_d", "pipeline=2,expert=2", DROPPING, {"halves": "on", "microbatches": 4, "schedule": "zb-h1"}),
    Case("auto", "data=2,expert=2", DROPPING, {"microbatches": 2}),
    Case("expert", "data=2,expert=4", DROPPING, {"dispatch": "all_gather", "remat": "full"}),
    Case("three_d", "fsdp=2,expert=2,tensor=2", DROPPING, {"dispatch": "all_gather"}),
    Case("three_d", "context=2,expert=4", DROPPING, {"dispatch": "all_gather"}),
    Case("three_d", "pipeline=2,expert=4", DROPPING, {"dispatch": "all_gather", "microbatches": 4}),
    Case("tensor", "tensor=4", DROPPING),
    Case("expert", "data=2,expert=2", DROPPING, {"reduce": "layer"}),
    Case("three_d", "fsdp=2,expert=2,tensor=2", DROPPING, {"remat": "full"}),
    Case("three_d", "fsdp=4,expert=2", DROPPING, {"prefetch": "on"}),
    Case("three_d", "context=2,expert=4", DROPPING),
    Case("three_d", "data=2,pipeline=2,expert=2", DROPPING, MB4),
    Case("data", "data=4", DROPPING),
    Case("zero1", "data=8", DROPPING),
    Case("zero1", "expert=4", DROPPING),
    Case("zero2", "data=2,expert=2", DROPPING, {"microbatches": 2}),
    Case("zero2", "data=4", DROPPING, {"microbatches": 2}),
    Case("fsdp", "fsdp=8", DROPPING, {"remat": "full"}),
    Case("context", "context=2", DROPPING),
    Case("pipeline", "pipeline=2", DROPPING, MB4),
    Case("auto", "fsdp=2,tensor=2", DROPPING),
    Case("tensor", "tensor=4", ALL_KEPT, {"halves": "on"}),
    Case("fsdp", "fsdp=4", ALL_KEPT, {"remat": "full", "prefetch": "on"}),
    Case("tensor", "tensor=4", ALL_KEPT, {"remat": "full"}),
    Case("pipeline", "pipeline=2", ALL_KEPT, {"remat": "full", "microbatches": 4}),
    Case("auto", "expert=4", ALL_KEPT, {"remat": "full"}),
    Case("context", "context=4", ALL_KEPT, ULYSSES),
    Case("expert", "expert=4", ALL_KEPT, {"dispatch": "all_gather", "remat": "full", "halves": "on"}),
    Case("three_d", "expert=2,tensor=2", ALL_KEPT, {"remat": "full", "halves": "on"}),
    Case("expert", "expert=2", ALL_KEPT, {"dispatch": "all_to_all", "remat": "full"}),
    Case("expert", "expert=8", ALL_KEPT, {"dispatch": "all_to_all", "remat": "none"}),
    Case("expert", "expert=8", ALL_KEPT),
    Case("zero1", "data=2,expert=4", ALL_KEPT, {"dispatch": "all_to_all"}),
    Case("three_d", "expert=2,tensor=2", ALL_KEPT, SPLIT),
    Case("three_d", "expert=2,tensor=2", ALL_KEPT, {**SPLIT, "remat": "full"}),
    Case("three_d", "fsdp=2,expert=2,tensor=2", ALL_KEPT, {"dispatch": "all_to_all", "prefetch": "on"}),
    Case("three_d", "fsdp=2,expert=4", ALL_KEPT, {"dispatch": "all_gather", "remat": "full"}),
    Case("three_d", "context=2,expert=2", ALL_KEPT, {"dispatch": "all_to_all", "remat": "full"}),
    Case("three_d", "pipeline=2,expert=2", ALL_KEPT, {**MB4, "dispatch": "all_to_all"}),
    Case("three_d", "pipeline=3,expert=2", ALL_KEPT, {**MB4, "dispatch": "all_to_all", "schedule": "zb-h1"}),
    Case("three_d", "pipeline=3,expert=2", ALL_KEPT, {**MB4, "schedule": "zb-h1"}),
    Case("three_d", "pipeline=2,expert=2", ALL_KEPT, {**MB4, "dispatch": "all_to_all", "schedule": "dualpipe-v"}),
    Case("expert", "data=2,expert=4", FORCED, {"remat": "full"}),
    Case("context", "context=2", FORCED),
    Case("three_d", "fsdp=2,expert=2,tensor=2", FORCED, {"microbatches": 2}),
    Case("three_d", "data=2,pipeline=2,expert=2", FORCED, MB4),
    Case("auto", "fsdp=2,tensor=2", FORCED),
    Case("auto", "data=2,expert=4", BIASED),
    Case("tensor", "tensor=4", BIASED),
    Case("expert", "data=2,expert=2", BIASED, {"microbatches": 2, "remat": "none"}),
    Case("expert", "data=2,expert=4", BIASED, {"dispatch": "all_gather", "remat": "full"}),
    Case("fsdp", "fsdp=4", BIASED, {"microbatches": 2}),
    Case("fsdp", "fsdp=8", BIASED, {"prefetch": "on", "remat": "full"}),
    Case("zero1", "data=4", BIASED, {"microbatches": 2}),
    Case("zero2", "data=4", BIASED, {"reduce": "layer"}),
    Case("context", "context=2", BIASED),
    Case("pipeline", "pipeline=2", BIASED, MB4),
    Case("pipeline", "pipeline=2", BIASED, ZB_H1),
    Case("three_d", "data=2,pipeline=2,tensor=2", BIASED, {"microbatches": 4, "sequence_parallel": False}),
    Case("three_d", "fsdp=2,expert=2,tensor=2", BIASED, {"remat": "full"}),
    Case("auto", "fsdp=2,tensor=2", BIASED),
    Case("zero2", "data=2,expert=4", BIASED, {"microbatches": 2, "reduce": "layer", "remat": "full"}),
    Case("expert", "expert=4", UNBALANCED, {"dispatch": "all_gather", "remat": "none", "microbatches": 2}),
    Case("expert", "expert=4", UNBALANCED, {"remat": "none", "microbatches": 2}),
    Case("hsdp", "data=2,fsdp=4", UNBALANCED, {"prefetch": "on"}),
    Case("three_d", "data=2,expert=2,tensor=2", QWEN3_MOE),
    Case("fsdp", "fsdp=4", QWEN3_MOE, {"remat": "none"}),
    Case("zero1", "data=4,expert=2", QWEN3_MOE, {"microbatches": 2, "dispatch": "all_to_all"}),
    Case("pipeline", "pipeline=2", BALANCED, {"microbatches": 4, "schedule": "zb-h1", "remat": "full"}),
    Case("pipeline", "pipeline=2", ONE_EXPERT, ZB_H1),
    Case("three_d", "expert=2,tensor=4", replace(TWO_LEAD, key_heads=2), {"reduce": "layer"}),
    Case("three_d", "context=2,tensor=2", replace(TWO_LEAD, key_heads=1), {"reduce": "layer"}),
    Case("three_d", "data=2,pipeline=2,tensor=2", replace(TWO_LEAD, key_heads=1), MB4),
    Case("three_d", "pipeline=2,expert=2,tensor=2", SHORT_LEAD, {"microbatches": 2, "sequence_parallel": False}),
    Case("zero1", "data=2,expert=2", SHORT_LEAD, {"microbatches": 2}),
    Case("zero1", "data=2,expert=4", TWO_LEAD, {"reduce": "layer"}),
    Case("data", "data=4", TWO_LEAD, {"reduce": "layer"}),
    Case("data", "data=4", TWO_LEAD, {"bucket_bytes": 20_000}),
    Case("zero2", "data=4", TWO_LEAD, {"microbatches": 2}),
    Case("fsdp", "fsdp=4", TWO_LEAD, {"prefetch": "on", "microbatches": 2}),
    Case("tensor", "tensor=4", TWO_LEAD, {"remat": "full"}),
    Case("expert", "data=2,expert=4", TWO_LEAD, {"remat": "full"}),
    Case("three_d", "fsdp=2,expert=2,tensor=2", TWO_LEAD, {"prefetch": "on"}),
    Case("pipeline", "pipeline=2", TWO_LEAD, {"microbatches": 4, "remat": "none"}),
    Case("pipeline", "pipeline=2", TWO_LEAD, ZB_H1),
    Case("three_d", "fsdp=2,pipeline=2,tensor=2", TWO_LEAD, {"microbatches": 4, "schedule": "zb-h1", "remat": "none"}),
    Case("three_d", "pipeline=2,expert=2,tensor=2", TWO_LEAD, {"microbatches": 4, "remat": "full"}),
    Case("auto", "fsdp=2,tensor=2", TWO_LEAD),
    Case("auto", "fsdp=2,expert=2", TWO_LEAD),
    Case("three_d", "expert=2,tensor=2", LEAD, SPLIT),
    Case("single", "data=1", LEAD, {"remat": "none", "microbatches": 2}),
    Case("zero1", "data=4", LEAD, {"reduce": "layer"}),
    Case("fsdp", "fsdp=4", LEAD, {"gather": "step", "microbatches": 2}),
    Case("hsdp", "data=2,fsdp=4", LEAD, {"regather": False}),
    Case("context", "context=2", LEAD, {"context_attention": "ulysses", "remat": "full"}),
    Case("expert", "data=2,expert=2", LEAD, {"reduce": "layer"}),
    Case("pipeline", "pipeline=3", LEAD, {"microbatches": 4, "schedule": "gpipe", "remat": "full"}),
    Case("three_d", "fsdp=2,pipeline=2,tensor=2", LEAD, {"microbatches": 4, "gather": "step"}),
    Case("three_d", "fsdp=2,pipeline=2", LEAD, {"microbatches": 4, "remat": "full"}),
    Case("three_d", "pipeline=2,context=2", LEAD, {"microbatches": 4, "schedule": "gpipe", "remat": "full"}),
    Case("three_d", "pipeline=2,tensor=2", DEEP_LEAD, {"microbatches": 4, "schedule": "interleaved", "remat": "full"}),
    Case("three_d", "data=2,pipeline=2,tensor=2", DEEP_LEAD, {"microbatches": 4, "sequence_parallel": False}),
    Case("three_d", "data=2,pipeline=2,expert=2", DEEP_LEAD, {"microbatches": 4, "schedule": "interleaved"}),
    Case("expert", "data=2,expert=2", CROWDED_SHALLOW, {"dispatch": "all_to_all"}),
    Case("expert", "data=4,expert=2", CROWDED, {"dispatch": "all_to_all", "microbatches": 2}),
    Case("expert", "data=4,expert=2", CROWDED, {"dispatch": "all_gather", "remat": "none"}),
    Case("three_d", "context=2,expert=2", CROWDED, {"dispatch": "all_gather"}),
    Case("fsdp", "fsdp=4", GPT_OSS),
    Case("tensor", "tensor=4", GPT_OSS),
    Case("tensor", "tensor=4", GPT_OSS, {"remat": "full"}),
    Case("context", "context=2", GPT_OSS),
    Case("context", "context=4", GPT_OSS, ULYSSES),
    Case("expert", "data=2,expert=2", GPT_OSS, {"dispatch": "all_to_all"}),
    Case("expert", "expert=4", GPT_OSS, {"dispatch": "all_to_all", "remat": "full"}),
    Case("expert", "data=2,expert=4", GPT_OSS, {"dispatch": "all_gather", "remat": "none"}),
    Case("pipeline", "pipeline=2", GPT_OSS, MB4),
    Case("three_d", "fsdp=2,expert=2,tensor=2", GPT_OSS, {"remat": "full"}),
    Case("auto", "fsdp=2,tensor=2", GPT_OSS),
]
"""Mixtures of experts and gpt-oss, under every strategy."""


OPTIONS = (
    (replace(CONFIG, tied=False), {"remat": "full", "microbatches": 2}),
    (CONFIG, {"remat": "none", "unroll": 2, "logits_bytes": 2**14, "z_loss": 1e-2}),
)
STRIDED4, WINDOW5 = replace(CONFIG, attention_stride=4), replace(CONFIG, attention_window=5)
DENSE_TURNS = replace(CONFIG, attention_window=3, full_attention_every=2)
"""Every second layer has no window, and around a ring others get keys from both neighbours."""
PATTERNS = (
    replace(CONFIG, attention_window=4),
    STRIDED4,
    replace(CONFIG, attention_stride=8, attention_pattern="fixed", attention_summary=2),
)


def staged(mesh):
    """Microbatches for the stages of a mesh."""
    return MB4 if "pipeline" in str(mesh) else {}


GRID = [
    *(Case(name, str(mesh), CONFIG, staged(mesh)) for name in SEVERAL for mesh in (*USUAL[name], WIDEST[name])),
    *(
        Case(name, str(mesh), CONFIG, staged(mesh))
        for name in ("hsdp", "three_d")
        for mesh in STRATEGIES[name].meshes(8)
    ),
    *(Case("context", str(mesh), CONFIG, ULYSSES) for mesh in USUAL["context"]),
    *(Case(name, str(WIDEST[name]), *options) for name in SEVERAL for options in OPTIONS),
    *(
        Case(name, str(WIDEST[name]), CONFIG, SPLIT)
        for name in SEVERAL
        if "sequence_parallel" in STRATEGIES[name].options
    ),
    # Combinations of axes, however each is split.
    Case("three_d", "pipeline=3,tensor=2", CONFIG, MB4),
    Case("three_d", "fsdp=2,pipeline=2,tensor=2", CONFIG, {**MB4, "gather": "step"}),
    Case("three_d", "fsdp=2,pipeline=2,context=2", CONFIG, {**ZB_H1, "remat": "full"}),
    # Schedules, with microbatches that stages do not divide, and fewer than stages.
    Case("pipeline", "pipeline=2", CONFIG, {"schedule": "interleaved", "chunks": 3, "microbatches": 8}),
    Case("pipeline", "pipeline=4", CONFIG, {"schedule": "gpipe", "microbatches": 5, "batch_size": 15}),
    Case("pipeline", "pipeline=4", CONFIG, {"schedule": "interleaved", "chunks": 2, "microbatches": 8}),
    Case("pipeline", "pipeline=3", CONFIG, {"schedule": "eager-1f1b", "microbatches": 5, "batch_size": 15}),
    Case("pipeline", "pipeline=4", CONFIG, {"schedule": "eager-zb", "microbatches": 8}),
    Case("pipeline", "pipeline=2", FORCED, {"schedule": "eager-zb", "microbatches": 4}),
    Case("pipeline", "pipeline=2", FORCED, {"schedule": "dualpipe-v", "microbatches": 4}),
    Case("three_d", "pipeline=2,expert=2,tensor=2", DEEP_COPIED_LEAD, {"schedule": "dualpipe-v", **MB4, **SPLIT}),
    Case("three_d", "data=2,pipeline=2", UNTIED, {"schedule": "dualpipe-v", **MB4}),
    Case("three_d", "fsdp=2,pipeline=2", UNTIED, {"schedule": "dualpipe-v", **MB4}),
    Case("three_d", "pipeline=2,context=2", CONFIG, {"schedule": "dualpipe-v", **MB4}),
    Case("three_d", "fsdp=2,pipeline=2,context=2", CONFIG, {"schedule": "dualpipe-v", "dtype": "float16", **MB4}),
    Case("three_d", "fsdp=2,pipeline=2", UNTIED, {"schedule": "eager-1f1b", **MB4}),
    Case("three_d", "pipeline=2,context=2", CONFIG, {"schedule": "eager-1f1b", **MB4}),
    Case("three_d", "pipeline=2,expert=2", LEAD, {"schedule": "eager-1f1b", **MB4}),
    Case("three_d", "pipeline=2,expert=2", FORCED, {"schedule": "eager-1f1b", "dtype": "float16", **MB4}),
    Case("three_d", "pipeline=2,tensor=2", UNTIED, {"schedule": "eager-zb", **MB4}),
    Case("three_d", "data=2,pipeline=2,tensor=2", CONFIG, {"schedule": "eager-zb", **MB4}),
    Case("three_d", "fsdp=2,pipeline=2,context=2", UNTIED, {"schedule": "zb-v", "microbatches": 4}),
    Case("three_d", "data=2,pipeline=2,tensor=2", CONFIG, {"schedule": "zb-v", "dtype": "bfloat16", "microbatches": 4}),
    Case("three_d", "pipeline=2,expert=2,tensor=2", DEEP_COPIED_LEAD, {"schedule": "zb-v", **MB4, **SPLIT}),
    Case("pipeline", "pipeline=2", CONFIG, {"schedule": "zb-v", "dtype": "float16", "microbatches": 4}),
    Case("pipeline", "pipeline=3", CONFIG, {"schedule": "zb-h1", "dtype": "bfloat16", "microbatches": 8}),
    Case("pipeline", "pipeline=3", CONFIG, {"schedule": "1f1b", "microbatches": 5, "batch_size": 15}),
    Case("three_d", "data=2,pipeline=2,tensor=2", CONFIG, {"schedule": "zb-h1", "microbatches": 8}),
    Case("pipeline", "pipeline=4", CONFIG, {"schedule": "zb-h1", "remat": "none", "microbatches": 8}),
    Case("pipeline", "pipeline=3", CONFIG, {"schedule": "zb-h1", "microbatches": 8}),
    Case(
        "pipeline",
        "pipeline=2",
        CONFIG,
        {"schedule": "interleaved", "chunks": 3, "dtype": "bfloat16", "microbatches": 8},
    ),
    Case("three_d", "pipeline=4,tensor=2", CONFIG, {"schedule": "interleaved", "chunks": 2, "microbatches": 8}),
    Case("three_d", "fsdp=2,context=2,tensor=2", CONFIG, {"schedule": "zb-h1", "microbatches": 2}),
    # Two halves of the batch.
    Case("three_d", "data=2,pipeline=2,tensor=2", CONFIG, {"halves": "on", "microbatches": 2, "schedule": "zb-h1"}),
    Case("tensor", "tensor=2", CONFIG, {"halves": "on", "dtype": "bfloat16"}),
    Case("three_d", "data=2,pipeline=2,tensor=2", CONFIG, {"halves": "on", **MB4}),
    Case("tensor", "tensor=4", CONFIG, {"halves": "on", **SPLIT, "microbatches": 2}),
    Case("three_d", "fsdp=2,tensor=4", CONFIG, {"halves": "on", "prefetch": "on"}),
    Case("three_d", "data=2,fsdp=2,tensor=2", CONFIG, {"halves": "on", "reduce": "layer", "remat": "none"}),
    # Gradients that are summed in the backward loop.
    Case("data", "data=8", CONFIG, {"reduce": "layer", "bucket_bytes": 10_000, "unroll": 2}),
    Case("zero1", "data=8", replace(CONFIG, tied=False), {"reduce": "layer"}),
    Case("zero2", "data=4", CONFIG, {"reduce": "layer", "microbatches": 2}),
    Case("hsdp", "data=2,fsdp=4", CONFIG, {"reduce": "layer", "remat": "full"}),
    Case("data", "data=8", CONFIG, {"reduce": "layer"}),
    Case("data", "data=8", CONFIG, {"reduce": "layer", "reduce_dtype": "bfloat16", "dtype": "bfloat16"}),
    Case("context", "context=4", CONFIG, {"reduce": "layer"}),
    Case("three_d", "data=2,context=2,tensor=2", CONFIG, {"reduce": "layer"}),
    Case("three_d", "data=2,fsdp=2,tensor=2", CONFIG, {"reduce": "layer", **SPLIT}),
    # Weights that are gathered a layer ahead, once a step, or once for both passes; and buckets.
    Case("fsdp", "fsdp=4", replace(CONFIG, tied=False), {"prefetch": "on", "remat": "full", "unroll": 2}),
    Case("three_d", "fsdp=2,context=2,tensor=2", CONFIG, {"prefetch": "on", **ULYSSES, **SPLIT, "microbatches": 2}),
    Case("hsdp", "data=2,fsdp=4", CONFIG, {"prefetch": "on", "remat": "full", "reduce": "layer"}),
    Case("fsdp", "fsdp=2", CONFIG, {"prefetch": "on", "remat": "none", "microbatches": 2}),
    Case("fsdp", "fsdp=8", CONFIG, {"prefetch": "on"}),
    Case("fsdp", "fsdp=4", CONFIG, {"prefetch": "on", "dtype": "bfloat16"}),
    Case("three_d", "data=2,fsdp=2,tensor=2", CONFIG, {"prefetch": "on", "reduce": "layer"}),
    Case("three_d", "fsdp=2,context=2,tensor=2", CONFIG, {"prefetch": "on", "remat": "full"}),
    Case("data", "data=8", CONFIG, {"bucket_bytes": 10_000}),
    Case("three_d", "fsdp=2,pipeline=2", CONFIG, {"gather": "step", **MB4, "dtype": "bfloat16"}),
    Case("fsdp", "fsdp=8", CONFIG, {"regather": False}),
    Case("fsdp", "fsdp=8", CONFIG, {"gather": "step", "microbatches": 2}),
    Case("fsdp", "fsdp=8", CONFIG, {"gather": "step", "microbatches": 2, "dtype": "bfloat16"}),
    Case("hsdp", "data=2,fsdp=4", CONFIG, {"gather": "step"}),
    # Sparse attention: every strategy with every pattern, and windows of one hop, of all tokens before, and of none.
    *(Case(name, str(HARDEST[name]), config, staged(HARDEST[name])) for config in PATTERNS for name in SEVERAL),
    *(
        Case(name, str(HARDEST[name]), WINDOW5, staged(HARDEST[name]))
        for name in ("fsdp", "three_d", "tensor", "pipeline")
    ),
    Case("context", "context=8", WINDOW5),
    Case("context", "context=8", WINDOW5, ULYSSES),
    Case("auto", str(WIDEST["auto"]), replace(STRIDED4, attention_pattern="fixed")),
    Case("pipeline", "pipeline=8", STRIDED4, ZB_H1),
    *(Case("context", "context=4", replace(CONFIG, attention_window=window)) for window in (1, 7, 15)),
    Case("context", "context=4", replace(CONFIG, attention_window=7), {"remat": "full"}),
    Case("three_d", "fsdp=2,context=2,tensor=2", replace(CONFIG, attention_window=6)),
    Case("three_d", "pipeline=2,context=2,tensor=2", replace(CONFIG, attention_window=6), ZB_H1),
    *(
        Case(name, str(HARDEST[name]), DENSE_TURNS, staged(HARDEST[name]))
        for name in ("fsdp", "three_d", "tensor", "zero2")
    ),
    Case("context", "context=2", DENSE_TURNS),
    Case("pipeline", "pipeline=4", DENSE_TURNS, MB4),  # 8 layers are 4 blocks, and a stage has one or more
    Case("context", "context=4", replace(DENSE_TURNS, attention_window=2), {"remat": "full"}),
    Case("context", "context=8", DENSE_TURNS, ULYSSES),
    Case("context", "context=2", replace(DENSE_TURNS, full_attention_every=4)),
]
"""Every strategy on every usual mesh, and each option; sizes are powers of two."""

NIGHTLY = {str(case): case for case in (*OF_MTP, *LATENTS, *MIXTURES, *GRID)}.values()
