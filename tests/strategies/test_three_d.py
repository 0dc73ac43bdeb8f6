"""`three_d` on any product of axes: how weights are split, and what is refused."""

import dataclasses
import re
from functools import partial

import jax
import pytest
from jax.sharding import PartitionSpec as P

from strategies import PRESETS, STRATEGIES, MeshSpec, TrainConfig
from strategies.backends.backend import backend_for
from strategies.core.plan import Plan
from strategies.three_d import THREE_D
from tests.strategies import equality
from tests.strategies.sampling import nightly

CONFIG = dataclasses.replace(PRESETS["nano"], layers=4, embed=32, heads=4, sequence=16)
MESHES = STRATEGIES["three_d"].meshes(8)


build = partial(equality.build, "three_d", config=CONFIG)


def test_fsdp_cuts_every_weight_and_another_dim_where_there_is_one():
    """fsdp splits every weight once, along a dim that pipeline and tensor leave, or a bias along its only dim again."""
    params = build("fsdp=2,pipeline=2,tensor=2", microbatches=2).state.params
    specs = jax.tree.map(lambda w: w.sharding.spec, params)
    assert specs["blocks"]["attention"]["qkv_DCA"] == P("pipeline", "fsdp", None, "tensor")
    assert specs["blocks"]["attention"]["out_AD"] == P("pipeline", "tensor", "fsdp")
    assert specs["blocks"]["mlp"]["up_bias_F"] == P("pipeline", ("tensor", "fsdp"))
    assert specs["blocks"]["attention"]["qkv_bias_CA"] == P("pipeline", None, ("tensor", "fsdp"))
    assert specs["embedding"]["token_VD"] == P(("pipeline", "tensor"), "fsdp")
    assert all(jax.tree.leaves(tuple(spec)).count("fsdp") == 1 for spec in jax.tree.leaves(specs))


@pytest.mark.parametrize(("stages", "way"), [(1, "ring"), (2, "ulysses")])
def test_attention_goes_around_a_ring_but_with_stages_from_all_to_all(stages, way):
    """Context attention defaults to a ring, and with pipeline stages to Ulysses, unless it is given."""
    mesh = MeshSpec.parse(f"pipeline={stages},context=2")
    resolve = partial(Plan.of, THREE_D.axes, CONFIG, mesh, checked=False)
    assert resolve(TrainConfig(16)).train.context_attention == way
    assert resolve(TrainConfig(16, context_attention="ulysses")).train.context_attention == "ulysses"


@pytest.mark.parametrize(
    ("platform", "size", "tensors", "options", "way"),
    [
        ("cuda", 2, 2, {}, "ulysses"),
        ("cuda", 4, 2, {}, "ring"),
        ("cuda", 2, 2, {"dtype": "float32"}, "ring"),
        ("cuda", 2, 2, {"attention": "xla"}, "ring"),
        ("tpu", 2, 2, {}, "ring"),
        (None, 2, 1, {}, "ring"),
        ("cuda", 1, 1, {}, "auto"),
    ],
)
def test_gpus_attend_by_all_to_all_where_heads_allow_it(platform, size, tensors, options, way):
    """On GPUs Ulysses is the default if cuDNN has the kernel and the tensor and context axes divide the 4 heads. Other
    devices have a ring, and so has a window.
    """
    train = TrainConfig(16, **{"dtype": "bfloat16", **options})
    mesh, backend = MeshSpec.parse(f"context={size},tensor={tensors}"), backend_for(platform)
    resolve = partial(Plan.of, THREE_D.axes, mesh=mesh, train=train, backend=backend, checked=False)
    assert resolve(config=CONFIG).train.context_attention == way
    window = dataclasses.replace(CONFIG, attention_window=4)
    assert resolve(config=window).train.context_attention == ("auto" if size == 1 else "ring")


@pytest.mark.parametrize(
    ("simpler", "mesh", "microbatches"),
    [("data", "data=4", 1), ("fsdp", "fsdp=4", 2), ("tensor", "tensor=4", 2), ("context", "context=4", 1)],
)
def test_without_stages_it_is_plain_autodiff(simpler, mesh, microbatches):
    """On the axis of a simpler strategy three_d lowers to that strategy's program, line by line."""
    steps = (equality.build(name, mesh, CONFIG, microbatches=microbatches) for name in ("three_d", simpler))
    mine, theirs = (step.lower().as_text() for step in steps)
    assert f'"{simpler}"=4' in theirs
    assert on_one_axis(mine) == on_one_axis(theirs)


def test_gathers_of_a_step_without_shards_change_nothing():
    """Where no axis shards weights, gather=step neither gathers nor casts them."""
    programs = {build("tensor=2", dtype="bfloat16", gather=when).lower().as_text() for when in ("step", "layer")}
    assert len(programs) == 1


def on_one_axis(text):
    """The lowered program without its mesh, because three_d's has more axes, of one device each."""
    named = re.sub(r"(?m)^ *sdy\.mesh @mesh\w* = .*$", "", text)
    return re.sub(r"manual_axes=\{[^}]*\}", "", named)


@pytest.mark.parametrize("mesh", [*MESHES[::4], *nightly(*(mesh for i, mesh in enumerate(MESHES) if i % 4))], ids=str)
def test_every_factorisation_of_eight_devices_is_legal(mesh):
    """The default model builds on every factorisation of eight devices without options."""
    assert build(mesh, config=PRESETS["nano"], microbatches=2).mesh.size == 8
