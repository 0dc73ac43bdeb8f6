"""A loop of steps is held back on virtual devices, so that no more steps are in flight than XLA has room for."""

import warnings

import jax
import numpy as np
import pytest

from strategies import STRATEGIES, GPTConfig, MeshSpec, TrainConfig
from strategies.backends import pace
from strategies.backends.pace import MOST_AHEAD, keep_pace

TINY = GPTConfig(layers=2, embed=16, heads=2, vocab=32, sequence=8)


@pytest.fixture
def waited(monkeypatch):
    """The indices of the steps that were waited for, recorded by fake metrics."""
    pace._ahead.clear()
    pace._warn_about_cached_executables.cache_clear()
    waited: list[int] = []
    monkeypatch.setattr(pace, "_on_virtual_devices", lambda result: True)
    yield waited
    pace._ahead.clear()


class Result:
    """A metric of a step that has not run yet."""

    def __init__(self, index, waited, failed=False):
        self.index, self.waited, self.failed = index, waited, failed

    def block_until_ready(self):
        """Record that the step was waited for, and fail if the step did."""
        self.waited.append(self.index)
        if self.failed:
            raise RuntimeError("the step failed, or its result was deleted")


def test_each_step_waits_for_the_one_so_many_before(waited):
    """At most `MOST_AHEAD` steps are in flight; the oldest is waited for first."""
    for index in range(3 * MOST_AHEAD):
        keep_pace({"loss": Result(index, waited), "grad_norm": Result(-1, waited)})
        assert waited == list(range(index + 1 - MOST_AHEAD))


def test_what_failed_does_not_fail_again_in_a_later_step(waited):
    """A failed step, or deleted metrics, raise nothing in the later step that waits for them."""
    for index in range(2 * MOST_AHEAD):
        keep_pace({"loss": Result(index, waited, failed=True)})
    assert waited == list(range(MOST_AHEAD))


@pytest.mark.parametrize(("name", "mesh", "held"), [("data", "data=8", True), ("single", "data=1", False)])
def test_a_step_on_virtual_devices_is_held(name, mesh, held):
    """Steps on several virtual devices are counted as in flight, steps on one device are not."""
    pace._ahead.clear()
    spec = MeshSpec.parse(mesh)
    step = STRATEGIES[name].build(TINY, spec, TrainConfig(8))
    state, batch = step.init(jax.random.key(0)), step.place(np.zeros(step.batch.shape, np.int32))
    for _ in range(3):
        state, _ = step(state, batch)
    assert len(pace._ahead) == (3 if held else 0)


def test_a_traced_step_is_not_held():
    """A step that is traced inside another program is not counted as in flight."""
    pace._ahead.clear()
    step = STRATEGIES["data"].build(TINY, MeshSpec.parse("data=8"), TrainConfig(8))
    jax.eval_shape(step, step.state, step.batch)
    assert not pace._ahead


@pytest.fixture
def _kept(tmp_path):
    """Turn JAX's persistent compilation cache on."""
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    yield
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_enable_compilation_cache", True)


@pytest.mark.usefixtures("_kept")
@pytest.mark.parametrize("used", [True, False])
def test_cached_programs_are_warned_of(waited, used):
    """With JAX's compilation cache on, the first step warns once that a program may hang, and of the way out."""
    jax.config.update("jax_enable_compilation_cache", used)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for index in range(2):
            keep_pace({"loss": Result(index, waited)})
    assert [str(each.message) for each in said] == used * [
        "a program from JAX's compilation cache may wait forever on virtual CPU devices: call "
        'jax.config.update("jax_enable_compilation_cache", False) before the first step'
    ]
