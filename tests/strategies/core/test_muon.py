"""Muon: what it does to a matrix, and that every placement does the same."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from strategies import MeshSpec, TrainConfig
from strategies.checking import Mismatch, check_step
from strategies.core import newton_schulz as iterations
from strategies.core.matrices import Muon
from strategies.core.newton_schulz import COEFFICIENTS, ITERATIONS, Matrices, newton_schulz
from strategies.costs.predict import predict
from tests.strategies.equality import BATCH, CONFIG, build

COUNT, ROWS, COLUMNS, DEVICES = 6, 16, 24, 4


def drawn(count=COUNT):
    """Matrices with normal elements of the size of gradients."""
    return np.random.default_rng(0).normal(size=(count, ROWS, COLUMNS)).astype("float32") * 1e-3


def group(placement, rows=(), columns=(), count=COUNT):
    """Equal matrices whose rows or columns are split over devices."""
    return Matrices((), (count,), ROWS, COLUMNS, rows, columns, placement, {"fsdp": DEVICES})


def spread(group, g_MRC):
    """What devices make of matrices of which each has a part, together."""
    spec = P(None, group.row_axes or None, group.column_axes or None)
    mesh = Mesh(np.array(jax.devices()[:DEVICES]), "fsdp")
    return np.asarray(jax.jit(jax.shard_map(group.orthogonalised, mesh=mesh, in_specs=spec, out_specs=spec))(g_MRC))


def test_singular_values_become_about_one():
    """All but small ones, in float32 and bfloat16; singular vectors stay, and a matrix of zeros stays zero."""
    g_MRC = drawn()
    u, s, vt = np.linalg.svd(g_MRC.astype("float64"), full_matrices=False)
    for dtype, error in (("float32", 2**-24), ("bfloat16", 2**-9)):
        found = np.asarray(newton_schulz(jnp.asarray(g_MRC, dtype)).astype("float32"), "float64")
        s_now = np.linalg.svd(found, compute_uv=False)
        assert 0.6 < s_now.min() < s_now.max() < 1.25
        x = s / np.linalg.norm(s, axis=1, keepdims=True)
        for _ in range(ITERATIONS):
            x = COEFFICIENTS[0] * x + COEFFICIENTS[1] * x**3 + COEFFICIENTS[2] * x**5
        expected = u * x[:, None] @ vt
        # Each of the iterations multiplies the relative error of small singular values by at most COEFFICIENTS[0].
        assert np.linalg.norm(found - expected) < COEFFICIENTS[0] ** ITERATIONS * error * np.linalg.norm(expected)
    assert not newton_schulz(jnp.zeros((1, 4, 4))).any()


@pytest.mark.parametrize("split", [{"rows": ("fsdp",)}, {"columns": ("fsdp",)}], ids=str)
@pytest.mark.parametrize("count", [COUNT, 1, 8])
def test_every_placement_does_the_same(split, count):
    """Dealt out and gathered matrices are equal to the bit to one device's, whether or not devices divide them."""
    g_MRC = drawn(count)
    one = np.asarray(jax.jit(newton_schulz)(g_MRC))
    for placement in ("gather", "deal"):
        np.testing.assert_array_equal(spread(group(placement, **split, count=count), g_MRC), one)
    if "columns" in split:
        np.testing.assert_allclose(spread(group("gram", **split, count=count), g_MRC), one, atol=1e-4)


def test_a_block_is_not_a_matrix():
    """Parts that are orthogonalised as if they were whole are far from those of the whole matrix."""
    g_MRC = drawn()
    whole, half = np.asarray(newton_schulz(jnp.asarray(g_MRC))), COLUMNS // 2
    blocks = [np.asarray(newton_schulz(jnp.asarray(part))) for part in (g_MRC[..., :half], g_MRC[..., half:])]
    assert np.linalg.norm(np.concatenate(blocks, -1) - whole) > 0.2 * np.linalg.norm(whole)


def test_blocks_are_devices_own_matrices():
    """Along tensor nothing is sent, each device's part is a matrix, and the step is inexact by design."""
    step = build("tensor", "tensor=2", optimizer="muon", matrices="block")
    assert step.inexact == "matrices=block"
    plan = predict("tensor", CONFIG, "tensor=2", step.train).plan
    assert {group.row_axes + group.column_axes for group in Muon(plan).groups} == {()}
    assert {size for group in Muon(plan).groups for size in (group.rows, group.columns)} == {
        CONFIG.embed // 2,
        CONFIG.embed,
        CONFIG.mlp_dim // 2,
    }
    adamw = predict("tensor", CONFIG, "tensor=2", replace(step.train, optimizer="adamw", matrices="auto"))
    assert predict("tensor", CONFIG, "tensor=2", step.train).sent_bytes == adamw.sent_bytes


def test_devices_with_whole_layers_send_what_adamw_sends():
    """zero1 splits matrices by layer if its devices divide the layers; otherwise it deals them out."""
    sent = {
        (devices, optimizer): predict(
            "zero1", CONFIG, MeshSpec.parse(f"data={devices}"), TrainConfig(BATCH, optimizer=optimizer)
        ).sent_bytes
        for devices in (CONFIG.layers, 2 * CONFIG.layers)
        for optimizer in ("adamw", "muon")
    }
    assert sent[CONFIG.layers, "muon"] == sent[CONFIG.layers, "adamw"]
    assert sent[2 * CONFIG.layers, "muon"] > sent[2 * CONFIG.layers, "adamw"]


def test_a_partial_gram_matrix_is_found(monkeypatch):
    """The check against one device finds Gram matrices of a device's own columns in place of their sums."""
    step = build("tensor", "tensor=2", optimizer="muon", matrices="gram")
    check_step(step)
    monkeypatch.setattr(iterations, "newton_schulz", lambda g_MRC, summed=(): newton_schulz(g_MRC))
    planted = build("tensor", "tensor=2", optimizer="muon", matrices="gram")
    with pytest.raises(Mismatch, match="change of blocks"):
        check_step(planted)
