"""The check of the first law fails where it must, and what changes nothing is the same program."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.strategies.equality import CONFIG, ROUNDING, assert_equal, build, single
from tests.strategies.meshes import HARDEST
from tests.strategies.sampling import nightly


def test_a_planted_error_is_caught():
    """The check fails if one weight in a thousand has a gradient that is 1% too large."""
    reference = single()
    wrong = jax.tree.map(np.copy, reference[2])
    wrong[0].optimizer[0].mu["blocks"]["attention"]["qkv_DCA"].flat[::1000] *= 1.01
    with pytest.raises(AssertionError):
        assert_equal((*reference[:2], wrong), reference, ROUNDING["float32"])


@pytest.mark.parametrize(
    ("name", "mesh"),
    [(name, HARDEST[name]) if name == "context" else nightly((name, HARDEST[name]))[0] for name in HARDEST],
)
def test_a_window_of_the_sequence_is_dense_to_the_bit(name, mesh):
    """Under every strategy it is the program of dense attention, to the letter."""
    microbatches = 4 if "pipeline" in mesh.sizes else 1
    window = dataclasses.replace(CONFIG, attention_window=CONFIG.sequence)
    whole, dense = (
        build(name, mesh, config, microbatches=microbatches).lower().as_text() for config in (window, CONFIG)
    )
    assert whole == dense
