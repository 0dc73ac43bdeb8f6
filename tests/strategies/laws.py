"""The laws of a step, held by one program of it: it is built, traced and compiled once for all of them.

It computes what one device computes (equality.py); it sends, computes and takes what the formulas say, to the byte
(formulas.py); its temporaries are at least what it must hold; and no two collectives may be in flight together.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from strategies import STRATEGIES, GPTConfig, State, Step
from tests.strategies import quick
from tests.strategies.equality import CONFIG, STEPS, TRAIN, assert_equal, build, initial, rounding_of, single, trained
from tests.strategies.formulas import assert_exact, assert_memory, by_axes, cost, read, sent

MB4 = {"microbatches": 4}
ULYSSES = {"context_attention": "ulysses"}
ZB_H1 = {"microbatches": 4, "schedule": "zb-h1"}
SPLIT = {"sequence_parallel": False}


@dataclass(frozen=True)
class Case:
    """A step: strategy, mesh, model, and options besides the batch of the tests."""

    name: str
    mesh: str
    config: GPTConfig = CONFIG
    train: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """The id of its test: of the model, what differs from the usual one."""
        usual, model = dataclasses.asdict(CONFIG), dataclasses.asdict(self.config)
        changed = {name: value for name, value in model.items() if value != usual[name]}
        return " ".join([self.name, self.mesh, *(f"{name}={value}" for name, value in (changed | self.train).items())])

    @property
    def has_formulas(self) -> bool:
        """Whether the formulas are of its program: XLA's CPU backend sends bfloat16 as float32."""
        return STRATEGIES[self.name].has_formulas and self.train.get("dtype") != "bfloat16"


def hold(case: Case) -> tuple[Step, State, Any]:
    """Hold a step to its laws; what it is, its last state, and what it computed."""
    step = build(case.name, case.mesh, case.config, **case.train)
    update = quick.compiled(step.lower())
    results, state = trained(step, initial(step), range(STEPS), update)
    rounding = rounding_of(case.config, step.train)
    assert_equal(results, single(case.config, **case.train), rounding, dataclasses.replace(TRAIN, **case.train))
    hold_formulas(case, *read(step, update))
    return step, state, results


def hold_formulas(case: Case, program: Any, memory: Any) -> None:
    """Hold a compiled step to the formulas, which must be wrong of a model with more layers."""
    assert program.concurrent == ()
    if not case.has_formulas:
        return
    config = case.config
    predicted = cost(case.name, case.mesh, config, **case.train)
    assert_exact(program, memory, predicted)
    assert_memory(memory, predicted)
    parts = predicted.plan.schedule.stages * predicted.plan.schedule.chunks
    larger = dataclasses.replace(config, layers=config.layers + parts * (config.full_attention_every or 1))
    wrong = cost(case.name, case.mesh, larger, **case.train)
    assert (sent(program) == by_axes(wrong)) == (case.name in ("single", "pipeline"))
    assert program.flops * wrong.plan.mesh.size < sum(wrong.flops.values())
    assert memory.argument_size_in_bytes < sum(wrong.arguments.values())
