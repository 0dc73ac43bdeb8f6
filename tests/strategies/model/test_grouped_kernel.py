"""Kernels of grouped matmuls compute what the loop over blocks computes. They run here in Pallas' interpreter."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from strategies import PRESETS, STRATEGIES, MeshSpec, TrainConfig
from strategies.backends.backend import backend_for
from strategies.core.plan import Plan
from strategies.model.grouped_matmul import grouped_matmul
from strategies.model.pallas import grouped_kernel

DROPLESS = replace(PRESETS["nano-moe"], capacity_factor=None, layers=4)


def problem(expert_S, rows, embed, features, dtype="bfloat16"):
    """Rows, matrices and the gradient of the result. Blocks of the number after the last expert's have zeros."""
    experts = max(expert_S)
    keys, kept_S11 = jax.random.split(jax.random.key(0), 3), (jnp.array(expert_S) < experts)[:, None, None]
    normal = partial(jax.random.normal, dtype=dtype)
    x_SRD = normal(keys[0], (len(expert_S), rows, embed)) * kept_S11
    return x_SRD, normal(keys[1], (experts, embed, features)), normal(keys[2], (*x_SRD.shape[:2], features)) * kept_S11


@pytest.mark.parametrize(
    ("expert_S", "rows", "embed", "features", "dtype"),
    [([0, 0, 0, 2, 2, 3, 3, 4, 4], 16, 48, 32, "bfloat16"), ([1] * 4 + [2], 256, 16, 288, "float16")],
    ids=str,
)
def test_kernels_compute_what_the_loop_computes(expert_S, rows, embed, features, dtype):
    """The result and both gradients: of experts without rows, of empty blocks, and of several tiles."""
    x_SRD, w_EDF, dy_SRF = problem(expert_S, rows, embed, features, dtype)
    experts, numbers_S = len(w_EDF), jnp.array(expert_S, jnp.int32)
    y_SRF, pull_back = jax.vjp(lambda x, w: grouped_matmul(x, w, numbers_S, len(expert_S), "loop"), x_SRD, w_EDF)
    run = partial(partial, interpret=True, filled=len(expert_S))
    found = (
        run(grouped_kernel.multiply)(x_SRD, w_EDF, numbers_S),
        run(grouped_kernel.rows_gradient)(dy_SRF, w_EDF, numbers_S),
        run(grouped_kernel.matrices_gradient)(x_SRD, dy_SRF, numbers_S, experts),
    )
    for kernels, loops in zip(found, (y_SRF, *pull_back(dy_SRF)), strict=True):
        difference = np.abs(np.float32(kernels) - np.float32(loops)).max()
        assert difference <= 2**-8 * np.abs(np.float32(loops)).max()  # half a bfloat16's last digit of the largest


def test_kernels_run_where_they_fit():
    """Blocks of 8 rows, and 24 hidden features, are too small for a tile: a loop computes all blocks."""
    for batch_size, hidden, fits in ((16, 32, True), (1, 32, False), (16, 24, False)):
        config, mesh = replace(DROPLESS, expert_mlp=hidden), MeshSpec.parse("data=1")
        train = TrainConfig(batch_size, dtype="bfloat16")
        plan = Plan.of(STRATEGIES["single"].axes, config, mesh, train, backend_for("cuda"))
        assert plan.grouped_matmuls == plan.share.grouped_matmuls == ("kernel" if fits else "loop")
    x_SRD, w_EDF, _ = problem([0, 1, 2], 16, 16, 32)
    kernel = partial(grouped_matmul, expert_S=jnp.array([0, 1, 2], jnp.int32), filled=2, how="kernel")
    assert "pallas_call" in str(jax.make_jaxpr(kernel)(x_SRD, w_EDF))


@pytest.mark.parametrize(
    ("dtype", "mesh", "options", "kernels"),
    [
        ("bfloat16", "expert=2", {}, True),
        ("float16", "expert=2", {}, True),
        ("float32", "expert=2", {}, False),
        ("bfloat16", "pipeline=2,expert=2", {}, True),
        ("bfloat16", "pipeline=2,expert=2", {"schedule": "zb-h1"}, False),
    ],
)
def test_nvidia_gpus_skip_empty_blocks_in_kernels(dtype, mesh, options, kernels):
    """Kernels of 16-bit matmuls skip empty blocks, and loops compute them. A split backward pass has loops."""
    train = TrainConfig(batch_size=16, microbatches=4, dtype=dtype, **options)
    for platform in ("cuda", "gpu", "cpu"):
        plan = Plan.of(STRATEGIES["three_d"].axes, DROPLESS, MeshSpec.parse(mesh), train, backend_for(platform))
        by_platform = {"cuda": "kernel" if kernels else "loop", "gpu": "loop", "cpu": "skipping_loop"}
        assert plan.grouped_matmuls == ("loop" if "schedule" in options else by_platform[platform])
