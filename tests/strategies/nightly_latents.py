"""Steps with latent attention and with multi-token prediction, of nightly_laws.py."""

from dataclasses import replace

from tests.strategies.laws import ULYSSES, ZB_H1, Case
from tests.strategies.models import DEEPSEEK, DEEPSEEK_MTP, LATENT, LATENT_KEYS, MTP

OF_MTP = [
    Case("single", "data=1", replace(MTP, tied=True, full_attention_every=2, attention_window=8), {"remat": "full"}),
    Case("auto", "data=2,tensor=2", MTP),
    Case("data", "data=4", MTP, {"reduce": "layer"}),
    Case("zero2", "data=4", replace(MTP, tied=True), {"microbatches": 2}),
    Case("fsdp", "fsdp=4", MTP, {"optimizer": "muon", "prefetch": "on"}),
    Case("fsdp", "fsdp=4", MTP, {"gather": "step", "remat": "none"}),
    Case("context", "context=4", MTP, {"context_attention": "ring", "logits_bytes": 2**14}),
    Case("expert", "expert=4", DEEPSEEK_MTP, {"dispatch": "all_gather"}),
    Case("pipeline", "pipeline=2", replace(MTP, tied=True), {"microbatches": 4, "schedule": "1f1b"}),
    Case("pipeline", "pipeline=2", replace(MTP, layers=4), {"microbatches": 4, "schedule": "dualpipe-v"}),
    Case("pipeline", "pipeline=2", DEEPSEEK_MTP, ZB_H1),
    Case("three_d", "pipeline=2,expert=2,tensor=2", DEEPSEEK_MTP, {"microbatches": 4}),
    Case("three_d", "fsdp=2,expert=2", DEEPSEEK_MTP, {"dtype": "float16", "halves": "on"}),
    Case("zero1", "data=4", MTP, {"dtype": "bfloat16", "master": "float32"}),
]
"""Multi-token prediction."""
LATENTS = [
    Case("single", "data=1", replace(LATENT, full_attention_every=2, attention_window=8)),
    Case("fsdp", "fsdp=4", LATENT, {"remat": "none"}),
    Case("fsdp", "fsdp=8", LATENT, {"optimizer": "muon"}),
    Case("explicit", "fsdp=2", LATENT),
    Case("explicit", "data=2,fsdp=2", LATENT, {"dtype": "bfloat16"}),
    Case("auto", "fsdp=2,tensor=2", LATENT_KEYS),
    Case("tensor", "tensor=4", LATENT_KEYS, {"remat": "full"}),
    Case("context", "context=4", LATENT, {"context_attention": "ring", "remat": "full"}),
    Case("context", "context=4", LATENT, {"context_attention": "ring", "context_payload": "expanded"}),
    Case("context", "context=4", LATENT, {**ULYSSES, "context_payload": "expanded"}),
    Case("context", "context=8", LATENT_KEYS, {"context_attention": "ring"}),
    Case("context", "context=2", replace(LATENT, attention_window=8), ULYSSES),
    Case("context", "context=2", replace(LATENT, full_attention_every=2, attention_window=8), ULYSSES),
    Case(
        "three_d", "pipeline=2,expert=2,tensor=2", replace(DEEPSEEK, layers=5), {"microbatches": 4, "schedule": "zb-v"}
    ),
    # Routing is forced: where a learned router's scores round differently, a token takes another expert.
    Case("three_d", "fsdp=2,expert=2", replace(DEEPSEEK, routing="zipf=1.2"), {"dtype": "float16"}),
]
