"""The cases and the run plan that tests of the engine share."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.cases.case import Case
from benchmarks.cli.values import MIN_ROUNDS
from benchmarks.run.corpus import read_corpus
from benchmarks.run.engine import Engine
from benchmarks.run.states import RunSettings
from strategies import GPTConfig, MeshSpec

CONFIG = GPTConfig(layers=1, embed=16, heads=2, vocab=256, sequence=16)
SINGLE = Case("single", MeshSpec.parse("data=1"), "tiny", CONFIG, 4, 1, "float32", "none")
DATA = replace(SINGLE, strategy="data", mesh=MeshSpec.parse("data=2"))
TWIN = "relative_to_twin", "relative_to_twin_low", "relative_to_twin_high"
PLAN = RunSettings(read_corpus(None, CONFIG), rounds=MIN_ROUNDS)
Begin = Callable[..., Engine]
Info = dict[str, Any]


def measure(engine: Engine, *measured: Case) -> list[Info]:
    """Measure cases, and return their rows."""
    engine.run(measured)
    return [dict(engine.rows[str(case)].extra_info) for case in measured]


def listen(engine: Engine, said: list[str]) -> None:
    """Collect what a run says of its progress."""
    engine.states.journal.listeners.append(lambda entry: said.extend([entry["said"]] if "said" in entry else []))
