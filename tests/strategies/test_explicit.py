"""What is the strategy `explicit`'s own. tests/strategies/cases.py holds it to the laws of all strategies."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from benchmarks.devices.topology import Topology
from benchmarks.program.compiled import Program, read_program
from strategies import STRATEGIES, MeshSpec, TrainConfig
from strategies.backends.backend import backend_for
from strategies.checking import check_step
from strategies.core.plan import Plan
from strategies.costs.predict import predict
from tests.strategies.equality import initial
from tests.strategies.formulas import sent
from tests.strategies.models import GATED, SMALL
from tests.strategies.quick import compiled

TOKEN = 5
CONFIG = replace(GATED, layers=1, sequence=128, mlp=64)


def row_gradient(strategy: Any, mesh: str) -> np.ndarray:
    """The gradient of the row of one token, of which all 16 sequences consist, in bfloat16."""
    step = strategy.build(CONFIG, mesh, TrainConfig(16, dtype="bfloat16"))
    state, batch = initial(step), step.place(np.full(step.batch.shape, TOKEN))
    _, grads = compiled(step.gradients.lower(state, batch))(state, batch)
    return np.asarray(grads["embedding"]["token_VD"], np.float64)[TOKEN]


def with_narrow_look_up(plan: Any, mesh: Any) -> Any:
    """The implementation of `explicit`, whose look-up sums gradients of a row in bfloat16."""
    sound, batch = STRATEGIES["explicit"].implement(plan, mesh), plan.over(plan.placement.batch) or None

    def look_up(table_VD: Any, row_BT: Any) -> Any:
        return table_VD.at[row_BT].get(out_sharding=P(batch))

    return replace(sound, hooks=replace(sound.hooks, look_up=look_up))


@pytest.mark.parametrize("mesh", ["data=2", "fsdp=2", "tensor=2"])
def test_gradients_of_a_repeated_token_are_summed_in_float32(mesh: str) -> None:
    """In bfloat16 the gradient of a token that occurs a thousand times on a device is that of one device.

    A sum in bfloat16 is caught.
    """
    expected = row_gradient(STRATEGIES["single"], "data=1")

    def error(strategy: Any) -> float:
        return float(np.linalg.norm(row_gradient(strategy, mesh) - expected) / np.linalg.norm(expected))

    assert error(STRATEGIES["explicit"]) < 2**-7
    if mesh != "tensor=2":  # whose look-up is model/weights.py's, as that of one device
        assert error(replace(STRATEGIES["explicit"], implement=with_narrow_look_up)) > 2**-5


@pytest.mark.libtpu
@pytest.mark.parametrize(("mesh", "twin"), [("fsdp=4", "fsdp"), ("fsdp=2,tensor=2", "three_d")])
def test_a_step_for_tpus_sends_what_its_twin_sends(mesh: str, twin: str) -> None:
    """libtpu compiles it for absent chips, to the FLOPs of the formulas and the bytes of the hand-written strategy."""
    config, train = replace(CONFIG, layers=2), TrainConfig(8, dtype="bfloat16", microbatches=2)

    def for_tpus(name: str) -> Program:
        step = STRATEGIES[name].build(config, mesh, train, Topology.parse("v5e:2x2").devices())
        return read_program(step.lower().compile().as_text() or "", MeshSpec.parse(mesh).sizes)

    program, other = for_tpus("explicit"), for_tpus(twin)
    assert program.unread == ""
    assert program.flops * 4 == sum(predict("explicit", config, mesh, train, "tpu").flops.values())
    assert sent(program) == sent(other)


def test_layers_are_a_loop_on_gpus_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other steps there run layers without a loop, which JAX refuses for arrays whose gradients are partial sums."""
    plan = Plan.of(STRATEGIES["explicit"].axes, SMALL, MeshSpec.parse("data=2"), TrainConfig(16), backend_for("cuda"))
    assert plan.needs_loop
    assert plan.loops_layers
    check_step(STRATEGIES["explicit"].build(SMALL, "data=2", TrainConfig(16, unroll=SMALL.layers)))
    monkeypatch.setattr(Plan, "needs_loop", False)
    with pytest.raises(ValueError, match="reduced"):
        check_step(STRATEGIES["explicit"].build(SMALL, "data=2", TrainConfig(16, unroll=SMALL.layers)))
