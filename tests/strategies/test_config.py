"""Model and training configurations: published sizes, FLOPs, and what is refused."""

import dataclasses
from typing import Any, get_type_hints

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import example, given, settings

from strategies import PRESETS, GPTConfig, Infeasible, MeshSpec, TrainConfig
from strategies.costs.layer import flops_per_token
from strategies.model.gpt import param_count, resolved
from tests.strategies.models import MOE
from tests.strategies.refusals import assert_refused


@pytest.mark.parametrize(
    ("preset", "count"),
    [
        # Counted from the released weights of Radford et al. 2019.
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        # The metadata of the released weights.
        ("llama2-7b", 6_738_415_616),
        ("llama2-13b", 13_015_864_320),
        ("llama2-70b", 68_976_648_192),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3-405b", 405_853_388_800),
        ("llama3.2-1b", 1_235_814_400),
        ("mistral-7b", 7_241_732_096),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-32b", 32_762_123_264),
        ("tinyllama", 1_100_048_384),
    ],
)
def test_presets_have_the_published_number_of_parameters(preset, count):
    """The presets of released weights have exactly the published number of parameters."""
    assert param_count(PRESETS[preset]) == count


@pytest.mark.parametrize(
    ("preset", "billions"),
    [
        ("gpt3-125m", 0.125),
        ("gpt3-350m", 0.35),
        ("gpt3-760m", 0.76),
        ("gpt3-1.3b", 1.3),
        ("gpt3-2.7b", 2.7),
        ("gpt3-6.7b", 6.7),
        ("gpt3-13b", 13.0),
        ("gpt3-175b", 175.0),
    ],
)
def test_large_presets_have_the_size_in_their_name(preset, billions):
    """The GPT-3 presets are within 2% of the rounded sizes in Brown et al. 2020, table 2.1."""
    assert param_count(PRESETS[preset]) / 1e9 == pytest.approx(billions, rel=0.02)


def test_qwen3_without_its_table_has_the_published_size():
    """0.6 billion parameters, of which 0.44 billion are not of the table (Yang et al. 2025, model card)."""
    config = PRESETS["qwen3-0.6b"]
    assert round(param_count(config) / 1e9, 1) == 0.6
    assert round((param_count(config) - config.vocab * config.embed) / 1e9, 2) == 0.44


def test_an_untied_head_costs_one_more_table():
    """An untied head adds vocabulary x embed parameters."""
    tied = PRESETS["nano"]
    untied = dataclasses.replace(tied, tied=False)
    assert param_count(untied) - param_count(tied) == tied.vocab * tied.embed


def test_flops_are_six_a_weight_plus_attention():
    """FLOPs per token are 6 a matmul weight plus 12 L E T for attention, counted by hand for a tiny model."""
    config = GPTConfig(layers=1, embed=2, heads=1, vocab=3, sequence=5)
    assert flops_per_token(config) == 6 * (12 * 4 + 2 * 3) + 12 * 2 * 5
    wide = dataclasses.replace(config, heads=3, head_size=4)
    assert flops_per_token(wide) == 6 * (4 * 2 * 12 + 8 * 4 + 2 * 3) + 12 * 12 * 5


def test_the_size_of_a_head_is_a_size_of_its_own():
    """It is embed / heads unless given; given, heads need not divide embed, and the same size is the same model."""
    plain = GPTConfig(layers=1, embed=8, heads=2)
    assert (plain.head_dim, plain.head_features) == (4, 8)
    assert resolved(plain) == resolved(dataclasses.replace(plain, head_size=4, key_heads=2))
    assert resolved(plain) != resolved(dataclasses.replace(plain, key_heads=1))
    given = GPTConfig(layers=1, embed=8, heads=3, head_size=5)
    assert (given.head_dim, given.head_features, given.dim_sizes["head_features"]) == (5, 15, 15)


SPARSE = GPTConfig(layers=2, embed=16, heads=4, vocab=19, sequence=16)
NO_MODEL = {
    PRESETS["nano"]: [
        ({"layers": 0}, "layers=0; it must be a whole number of at least 1"),
        ({"heads": 3}, "heads=3 does not divide embed=128; it can be 1, 2, 4, 8, 16, 32, 64 or 128"),
        ({"head_size": 0}, "head_size=0; it must be a whole number of at least 1"),
        ({"vocab": -1}, "vocab=-1; it must be a whole number of at least 1"),
        ({"embed": 99_999_999_999}, "heads=8 does not divide embed=99999999999; it can be 1, 3, 9, .* or 99999999999"),
        ({"full_attention_every": 3}, "full_attention_every=3 does not divide layers=8; it can be 1, 2, 4 or 8"),
        (
            {"full_attention_every": 2, "experts": 4, "dense_layers": 2},
            "full_attention_every=2 does not go with dense_layers=2; omit one of them",
        ),
        ({"full_attention_every": 1}, "full_attention_every=1; it must be a whole number of at least 2"),
        ({"tied": "no"}, "tied='no'; it must be true or false"),
        ({"layers": 2.5}, "layers=2.5; it must be a whole number"),
        ({"layers": 10**9}, "layers=1000000000; it must be a whole number of at most 100000"),
    ],
    MOE: [
        ({"experts_per_token": 7}, "experts_per_token=7 is more than experts=6; use at most 6"),
        ({"experts": None, "capacity_factor": 1.0}, r"expert_mlp=20 is for a model with experts; set experts"),
        ({"dense_layers": 4}, "dense_layers=4 leaves no layer with experts; take fewer than 4"),
        ({"dense_layers": -1}, "dense_layers=-1; it must be a whole number of at least 0"),
        ({"expert_group": 7}, "expert_group=7 does not divide sequence=24; it can be 1, 2, 3"),
        ({"routed_scale": 2.0}, "routed_scale=2.0 is for router=sigmoid; omit it"),
        ({"router_bias_rate": 0.0}, "router_bias_rate=0.0 is for router=sigmoid; omit it"),
        (
            {"router": "sigmoid", "router_groups": 4},
            "router_groups=4 does not divide experts=6; it can be 1, 2, 3 or 6",
        ),
        (
            {"router": "sigmoid", "router_groups": 2, "groups_per_token": 3},
            "groups_per_token=3 is more than router_groups=2; use at most 2",
        ),
        (
            {"router": "sigmoid", "router_groups": 6},
            "the groups_per_token=1 groups of a token have 1 experts, fewer than experts_per_token=2",
        ),
        ({"router": "soft"}, "router"),
    ],
    SPARSE: [
        ({"attention_window": 0}, "attention_window=0; it must be a whole number of at least 1"),
        ({"attention_stride": 5}, "attention_stride=5 does not divide sequence=16; it can be 1, 2, 4, 8 or 16"),
        ({"attention_pattern": "star"}, "attention_pattern='star'; it can be strided, fixed"),
        (
            {"attention_pattern": "fixed"},
            "attention_pattern=fixed has blocks of attention_stride tokens; set attention_stride",
        ),
        (
            {"attention_pattern": "fixed", "attention_stride": 4, "attention_window": 2},
            "attention_window=2 does not go with attention_pattern=fixed",
        ),
        (
            {"attention_pattern": "fixed", "attention_stride": 4, "attention_summary": 5},
            "attention_summary=5 is more than the attention_stride=4 tokens of a block; use at most 4",
        ),
        (
            {"attention_stride": 4, "attention_summary": 2},
            "attention_summary=2 is for attention_pattern=fixed; omit it",
        ),
    ],
}
"""Changes of a model that cannot be, and what the message says."""
NO_STEP = [
    ({"batch_size": 0}, "batch_size=0; it must be a whole number of at least 1"),
    ({"clip_norm": 0.0}, "clip_norm=0.0; it must be a number above 0"),
    ({"batch_size": 6, "microbatches": 4}, "microbatches=4 does not divide batch_size=6; it can be 1, 2, 3 or 6"),
    ({"dtype": "float64"}, "dtype='float64'; it can be float32, bfloat16, float16"),
    ({"reduce_dtype": "float16"}, "reduce_dtype='float16'; it can be float32, bfloat16"),
    ({"loss_scale": 0.5}, "loss_scale=0.5; it must be a number from 1 to 1.84467e"),
    ({"loss_scale": 1000.0}, "loss_scale=1000.0; it must be a power of 2"),
    ({"loss_scale": float("nan")}, "loss_scale=nan; it must be a number from 1 to 1.84467e"),
    ({"loss_scale_growth_steps": 0}, "loss_scale_growth_steps=0; it must be a whole number of at least 1"),
    ({"regather": "off"}, "regather='off'; it must be true or false"),
    ({"sequence_parallel": 1}, "sequence_parallel=1; it must be true or false"),
    ({"batch_size": "8"}, "batch_size='8'; it must be a whole number"),
    ({"remat": "some"}, "remat='some'; it can be none, dots, full"),
    ({"gather": "never"}, "gather='never'; it can be layer, step"),
    ({"compression": "zip"}, "compression='zip'; it can be none, int8, onebit"),
    ({"compression": "int8", "bucket_bytes": 4}, "bucket_bytes=4 does not go with compression=int8"),
    ({"bucket_bytes": 3}, "bucket_bytes=3; it must be a whole number of at least 4"),
    ({"learning_rate": -1.0}, "learning_rate=-1.0; it must be a number of at least 0"),
    ({"learning_rate": 0.0, "decay_steps": 9}, "learning_rate=0.0; .* above 0 with decay_steps"),
    ({"final_learning_rate": 1.0}, "final_learning_rate=1.0; it must be from 0 to .*=0.0003"),
    ({"warmup_steps": -1}, "warmup_steps=-1; it must be a whole number of at least 0"),
    ({"warmup_steps": 5, "decay_steps": 5}, "decay_steps=5 ends before warmup_steps=5; set both to more"),
    ({"beta2": 1.0}, "beta2=1.0; it must be a number below 1"),
    ({"weight_decay": -0.1}, "weight_decay=-0.1; it must be a number of at least 0"),
    ({"z_loss": -1.0}, "z_loss=-1.0; it must be a number of at least 0"),
]
"""Options that cannot be, and what the message says."""


@pytest.mark.parametrize(
    ("config", "sizes", "message"), [(config, *row) for config, rows in NO_MODEL.items() for row in rows], ids=str
)
def test_a_model_that_cannot_be_is_refused(config, sizes, message):
    """With the numbers and the legal values."""
    assert_refused(lambda: dataclasses.replace(config, **sizes), message)


@pytest.mark.parametrize(("options", "message"), NO_STEP, ids=str)
def test_a_step_that_cannot_be_is_refused(options, message):
    """With the numbers and the legal values."""
    assert_refused(lambda: TrainConfig(**{"batch_size": 8, **options}), message)


NUMBERS = st.one_of(st.integers(), st.integers(-2, 70), st.floats(), st.sampled_from([2**31, 2**63, 2**64, 1e400]))
TEXTS = st.one_of(st.text(max_size=8), st.sampled_from(["auto", "on", "none", "float32", "8", "true", "data"]))
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
VALUES = st.recursive(
    LEAVES, lambda each: st.lists(each, max_size=3) | st.dictionaries(TEXTS, each, max_size=2), max_leaves=6
)
"""Any value of JSON, often one that a field may have."""
MESHES = st.lists(st.tuples(st.sampled_from(["data", "fsdp", "tensor", "x", 1]), VALUES), max_size=3)
VALID = {GPTConfig: {"layers": 2, "embed": 8, "heads": 2}, TrainConfig: {"batch_size": 8}}
FIELDS = [(kind, field.name) for kind in VALID for field in dataclasses.fields(kind)]


def holds_its_types(config: Any) -> bool:
    """Whether each field has its annotated type and range, in a conversion that changes nothing."""
    hints = get_type_hints(type(config), include_extras=True)
    values = {name: getattr(config, name) for name in hints}
    converted = {name: msgspec.convert(value, hints[name]) for name, value in values.items()}
    return all((type(converted[name]), converted[name]) == (type(value), value) for name, value in values.items())


@settings(max_examples=600, deadline=None)
@given(where=st.sampled_from(FIELDS), value=VALUES)
@example(where=(TrainConfig, "learning_rate"), value=1)
@example(where=(TrainConfig, "regather"), value="off")
def test_any_value_in_any_field_is_valid_or_refused(where, value):
    """A configuration has its annotated types and ranges, whatever it is made from, or it is refused in a line."""
    kind, name = where
    try:
        config = kind(**VALID[kind] | {name: value})
    except Infeasible as error:
        said = str(error)
    else:
        assert holds_its_types(config)
        return
    assert len(said.splitlines()) == 1
    assert name in said or name in ("heads", "embed", "sequence", "batch_size")  # another field does not fit to it


@settings(max_examples=300, deadline=None)
@given(axes=MESHES | VALUES)
@example(axes=(("data", True),))
@example(axes=[["data", 2]])
def test_any_mesh_is_valid_or_refused(axes):
    """A mesh has names and whole sizes of at least 1, whatever it is made from, or it is refused in a line."""
    try:
        mesh = MeshSpec(axes)
    except Infeasible as error:
        said = str(error)
    else:
        assert holds_its_types(mesh)
        assert MeshSpec.parse(str(mesh)) == mesh
        assert hash(mesh) == hash(MeshSpec.parse(str(mesh)))
        return
    assert len(said.splitlines()) == 1
