"""Random compositions by seed: tables of the values of each field, and what goes together."""

import contextlib
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, get_args

from strategies import STRATEGIES, MeshSpec, Strategy
from strategies.config import PipelineSchedule, idle_options
from strategies.core.axis import placement_of
from strategies.infeasible import divisors
from strategies.mesh import all_axes
from strategies.model.block import BLOCKS
from tests.strategies.fuzz.composition import AXES, BACKENDS, PARTS, Composition

Values = Mapping[str, Sequence[Any]]
"""Values of fields, of which the first is the default."""
OF_AXES: Values = {
    "schedule": ("1f1b", *(name for name in get_args(PipelineSchedule) if name != "1f1b"), "auto"),
    "chunks": (2, 1, 3),
    "sequence_parallel": (True, False),
    "gather": ("layer", "step"),
    "regather": (True, False),
    "prefetch": ("auto", "off", "on"),
    "halves": ("auto", "off", "on"),
    "bucket_bytes": (None, 4096, 20_000),
    "compression": ("none", "int8", "onebit"),
    "compression_warmup": (20, 1),
    "reduce": ("auto", "layer", "step"),
    "reduce_dtype": ("float32", "bfloat16"),
    "context_attention": ("auto", "ring", "ulysses"),
    "dispatch": ("auto", "all_to_all", "all_gather"),
    "master": ("none", "float32"),
    "matrices": ("auto", "gather", "deal", "gram", "block"),
}
"""Options that only some axes have."""
OF_ALL: Values = {
    "dtype": ("float32", "bfloat16", "float16"),
    "remat": ("dots", "none", "full"),
    "unroll": ("auto", 1, 2, 3),
    "logits_bytes": (None, 2**12, 2**14),
    "z_loss": (0.0, 1e-3),
    "warmup_steps": (0, 2),
    "decay_steps": (None, 4),
    "clip_norm": (1.0, float("inf")),
    "optimizer": ("adamw", "muon", "sgd"),
    "by_head": (False, True),
    "matrix_scale": ("rms", "original"),
    "nesterov": (True, False),
    "momentum_dtype": ("float32", "bfloat16"),
}
"""Options of every step."""
MODEL: Values = {
    "tied": (True, False),
    "mlp": (None, 48, 96),
    "vocab_multiple": (128, 1, 8),
    "head_size": (None, 4, 6),
    "rope_factor": (1.0, 8.0),
}
"""Fields of every model."""
OF_EXPERTS: Values = {
    "experts_per_token": (2, 1, 3),
    "expert_mlp": (None, 24),
    "shared_mlp": (None, 40),
    "router": ("renormalised", "softmax", "sigmoid"),
    "routing": ("learned", "balanced", "one", "zipf=1.2"),
    "capacity_factor": (None, 1.0, 1.25),
    "expert_group": (None, 8, 4),
    "balance_loss": (0.0, 0.01),
    "router_z_loss": (0.0, 0.001),
}
"""Fields of models with experts."""
OF_SIGMOIDS: Values = {
    "routed_scale": (1.0, 2.5),
    "router_bias_rate": (None, 0.01),
    "router_groups": (1, 2, 4),
    "groups_per_token": (1, 2),
}
"""Fields of routers whose scores are sigmoids."""
OTHERS = {
    *("layers", "embed", "heads", "key_heads", "vocab", "sequence", "block", "full_attention_every"),
    *("attention_window", "attention_stride", "attention_pattern", "attention_summary", "experts", "dense_layers"),
    *("latent_rank", "query_rank", "rotary_size", "value_size", "context_payload", "mtp_loss", "balance_over"),
    *("batch_size", "microbatches", "attention"),
}
"""Fields that are drawn together."""
NUMBERS = {
    *(
        "norm_epsilon",
        "rope_theta",
        "rope_mscale",
        "loss_scale",
        "loss_scale_growth_steps",
        "learning_rate",
        "final_learning_rate",
    ),
    *("beta1", "beta2", "epsilon", "weight_decay", "momentum"),
}
"""Fields that are not drawn: no shape and no collective depends on them."""


def draw(seed: int) -> Composition:
    """The composition of a seed, which may be refused."""
    random = Random(seed)
    strategy = _strategy(random)
    made = Composition(strategy, "", {}).made_strategy()
    mesh = _mesh(random, made)
    options = (option for axis in made.axes if axis.name in mesh.sizes for option in axis.options)
    changed = _changed(random, {**OF_ALL, **{option: OF_AXES[option] for option in options if option in OF_AXES}})
    idle = idle_options(changed)  # refused, so that little would be drawn that is not
    train = {name: value for name, value in changed.items() if name not in idle}
    microbatches = random.choice((1, 1, 2, 4)) * mesh.sizes.get("pipeline", 1)
    sizes = {"batch_size": microbatches * made.batch_shards(mesh) * random.choice((1, 2)), "microbatches": microbatches}
    backend = random.choice([*BACKENDS]) if random.random() < 0.3 else "cpu"
    kernel = {} if backend == "cpu" else {"attention": "xla"}  # the others do not exist where this is traced
    model = _model(random)
    latents = _latents(Random(~seed), model)
    if latents and any("context_payload" in axis.options for axis in made.axes if axis.name in mesh.sizes):
        train |= {"context_payload": random.choice(("auto", "latent", "expanded"))}
    losses: dict[str, Any] = {"mtp_loss": Random(f"mtp {seed}").choice((0.0, 0.0, 0.3))}
    if model.get("balance_loss"):
        losses["balance_over"] = Random(f"balance {seed}").choice(("batch", "sequence"))
    return Composition(strategy, str(mesh), {**model, **latents, **losses}, {**sizes, **kernel, **train}, backend)


def _strategy(random: Random) -> str:
    """A built-in strategy, most often the one with most axes, or axes that no one has combined."""
    if random.random() < 0.6:
        return random.choice([*["three_d"] * 8, *(name for name in STRATEGIES if STRATEGIES[name].by_default)])
    by_mesh_axis = [[name for name, axis in AXES.items() if axis.name == slot] for slot in all_axes()]
    while True:
        chosen = [random.choice(names) for names in by_mesh_axis if names and random.random() < 0.5]
        with contextlib.suppress(ValueError):  # some exclude each other
            placement_of(tuple(AXES[name] for name in chosen))
            if len(chosen) > 1:
                return "+".join(chosen)


def _mesh(random: Random, strategy: Strategy) -> MeshSpec:
    """A mesh of two to eight devices, most often over several axes; of one device where the strategy has no other."""
    meshes = strategy.meshes(random.choice((8, 8, 8, 4, 4, 6, 2))) or strategy.meshes(1)
    return max(random.choices(meshes, k=2), key=lambda mesh: len(mesh.axes))


def _changed(random: Random, values: Values, often: float = 0.4) -> dict[str, Any]:
    """Fields with another value than the default, which is the first."""
    return {name: random.choice(others) for name, (_, *others) in values.items() if random.random() < often}


def _model(random: Random) -> dict[str, Any]:
    """Fields of a model, which may be refused."""
    heads, sequence, layers = (random.choice(sizes) for sizes in ((4, 8, 8, 6, 2), (16, 32, 48, 64), (2, 3, 4, 6)))
    sizes = {"layers": layers, "embed": heads * random.choice((8, 12)), "heads": heads, "sequence": sequence}
    model = {**sizes, "vocab": random.choice((64, 257)), "block": _block(random), **_changed(random, MODEL, 0.3)}
    if random.random() < 0.5:
        model["key_heads"] = random.choice(divisors(heads))
    model |= _pattern(random, sequence)
    if random.random() < 0.5:
        return model | _mixture(random, layers)
    return model | _turns(random, layers)


def _block(random: Random) -> str:
    """A built-in block, or parts that no one has combined."""
    if random.random() < 0.6:
        return random.choice([*BLOCKS])
    return "+".join(random.choice(kinds).__name__ for kinds in PARTS)


def _pattern(random: Random, sequence: int) -> dict[str, Any]:
    """Dense attention, a window, or one of the sparse patterns."""
    window, stride = random.randrange(1, sequence), random.choice((4, 8))
    return random.choice(
        (
            *({}, {}),
            {"attention_window": window},
            {"attention_stride": stride},
            {"attention_stride": stride, "attention_window": window},
            {"attention_stride": stride, "attention_pattern": "fixed", "attention_summary": random.choice((1, 2))},
        )
    )


def _mixture(random: Random, layers: int) -> dict[str, Any]:
    """Fields of a model with experts, which may lead with dense layers."""
    found = {"experts": random.choice((4, 8, 8, 6)), **_changed(random, OF_EXPERTS, 0.3)}
    found |= _changed(random, OF_SIGMOIDS) if found.get("router") == "sigmoid" else {}
    return found | ({"dense_layers": random.randrange(1, layers)} if random.random() < 0.3 else _turns(random, layers))


def _latents(random: Random, model: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of latent attention, of every other model that may have it."""
    if model["block"] != "llama" or random.random() < 0.5:
        return {}
    sizes = {"latent_rank": (8, 20), "query_rank": (None, 12), "rotary_size": (4,), "value_size": (4, 6, 12)}
    drawn = {name: random.choice(values) for name, values in sizes.items()}
    return {**drawn, "head_size": random.choice((10, 12)), "key_heads": None}


def _turns(random: Random, layers: int) -> dict[str, Any]:
    """Layers that take turns, in one model of four."""
    return {"full_attention_every": random.choice(divisors(layers)[1:])} if random.random() < 0.25 else {}
