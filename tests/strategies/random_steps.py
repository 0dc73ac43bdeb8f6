"""Steps that are drawn at random: any strategy, mesh of up to eight devices, model and options that fit together."""

import random
from typing import Any, get_args

from strategies import STRATEGIES, GPTConfig, Infeasible, MeshSpec, TrainConfig
from strategies.config import PipelineSchedule
from strategies.costs.predict import predict, strategies_with_formulas

Drawn = tuple[str, GPTConfig, MeshSpec, TrainConfig]

OPTIONS: dict[str, tuple[Any, ...]] = {
    "schedule": get_args(PipelineSchedule),
    "sequence_parallel": (True, False),
    "gather": ("layer", "step"),
    "regather": (True, False),
    "prefetch": ("off", "on"),
    "halves": ("off", "on"),
    "reduce": ("step", "layer"),
    "bucket_bytes": (None, 20_000),
    "context_attention": ("auto", "ring", "ulysses"),
    "logits_bytes": (None, 2**14),
}
"""Values of the options that change what a step sends, computes or holds in float32."""


def drawn(seed: int) -> Drawn:
    """The case of a seed."""
    draw = random.Random(seed)
    while True:
        try:
            case = _case(draw)
            predict(*case)
        except Infeasible:
            continue
        return case


def _case(draw: random.Random) -> Drawn:
    """A case that may not fit together."""
    name = draw.choice([name for name in strategies_with_formulas() if name != "single"])
    mesh = draw.choice(STRATEGIES[name].meshes(draw.choice((2, 3, 4, 6, 8, 8))))
    train = {option: draw.choice(OPTIONS[option]) for option in STRATEGIES[name].options if option in OPTIONS}
    train["logits_bytes"] = draw.choice((None, None, 2**14))
    microbatches = draw.choice((1, 2, 4)) * mesh.sizes.get("pipeline", 1)
    batch_size = microbatches * STRATEGIES[name].batch_shards(mesh) * draw.choice((1, 2))
    remat, unroll = draw.choice(("none", "dots", "full")), draw.choice((1, 1, 2, 3, 4))
    return name, _model(draw), mesh, TrainConfig(batch_size, microbatches, remat=remat, unroll=unroll, **train)


def _model(draw: random.Random) -> GPTConfig:
    """A model that may be impossible."""
    heads = draw.choice((1, 2, 4, 6, 8))
    attention: dict[str, Any] = {}
    sequence = draw.choice((8, 16, 24, 32, 48, 64, 72))
    kind = draw.choice(("dense", "dense", "dense", "window", "strided", "fixed"))
    if kind == "window":
        attention["attention_window"] = draw.randrange(1, sequence)
    elif kind != "dense":
        attention["attention_stride"], attention["attention_pattern"] = draw.choice((4, 8)), kind
    if kind == "fixed":
        attention["attention_summary"] = draw.choice((1, 2))
    return GPTConfig(
        layers=draw.randrange(1, 5),
        embed=heads * draw.choice((8, 12)),
        heads=heads,
        key_heads=draw.choice((None, None, 1, 2)),
        vocab=draw.randrange(17, 300),
        sequence=sequence,
        mlp=draw.choice((None, 48, 96)),
        tied=draw.choice((True, False)),
        vocab_multiple=draw.choice((1, 8, 128)),
        **attention,
        block=draw.choice(("gpt2", "gpt2", "llama", "qwen2", "qwen3")),
    )
