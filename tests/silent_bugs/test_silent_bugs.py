"""The check finds every bug of the museum, and nothing where none is planted."""

import jax
import numpy as np
import pytest

from strategies.step import Step
from tests.silent_bugs import BUGS
from tests.silent_bugs.museum import Bug
from tests.strategies import equality

DTYPES = "float32", pytest.param("bfloat16", marks=pytest.mark.factorisations)


def check(step: Step, reference: Step) -> None:
    """Raise AssertionError unless both compute the same, and devices that should have equal arrays have them."""
    mine, state = equality.trained(step, equality.initial(step), range(equality.STEPS))
    other, _ = equality.trained(reference, equality.initial(reference), range(equality.STEPS))
    assert np.isfinite(mine[0]).all()
    equality.assert_equal(mine, other, equality.ROUNDING[step.train.dtype])
    for array in jax.tree.leaves(state):
        first = {str(shard.index): shard.data for shard in array.addressable_shards}
        assert all((shard.data == first[str(shard.index)]).all() for shard in array.addressable_shards)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_the_check_finds_it(bug: Bug, dtype: str) -> None:
    """A step with the bug is told from one device."""
    with pytest.raises(AssertionError):
        check(bug.step(dtype=dtype), bug.reference(dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bug", {bug.case: bug for bug in BUGS}.values(), ids=str)
def test_the_case_is_sound_without_it(bug: Bug, dtype: str) -> None:
    """Where no bug is planted the check raises nothing."""
    check(bug.step(sound=True, dtype=dtype), bug.reference(dtype=dtype))
