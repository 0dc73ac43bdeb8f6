"""Reads the logs of training runs, which `meshmark train` writes as JSON Lines."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import pandas as pd

from results.records.reading import RecordError, check_version
from strategies.files import decode_json, read_bytes, shown
from strategies.schema import Count, Number, Positive, Whole, checked

SUFFIX = ".jsonl"
"""How the names of logs end. Files of `pytest benchmarks` end otherwise."""
SCHEMA_VERSION = 1
WRITTEN_BY = "`meshmark train`"


class Corpus(msgspec.Struct, frozen=True):
    """The text that was trained on."""

    name: str
    sha256: str
    tokens: Literal["bytes", "chars"]


class Model(msgspec.Struct, frozen=True):
    """Sizes of the model."""

    layers: Count
    embed: Count
    vocab: Count
    sequence: Count
    mlp: Count | None = None


class Training(msgspec.Struct, frozen=True):
    """How it was trained."""

    batch_size: Count
    learning_rate: Positive
    dtype: str = "float32"


class Facts(msgspec.Struct, frozen=True):
    """What was run: the first line of a log, and one more each time that it was resumed."""

    strategy: str
    mesh: str
    preset: str
    parameters: Count
    device_kind: str
    corpus: Corpus
    training: Training
    model: Model | None = None


class Loss(msgspec.Struct, frozen=True):
    """A line of a step or of an evaluation. The loss is None if it was not finite."""

    step: Whole
    loss: Number | None


LINES: dict[str, Any] = {"run": Facts, "step": Loss, "evaluation": Loss}
"""Kinds of lines."""


class TrainingRun(NamedTuple):
    """A training run: its log, what was run, and columns `step` and `loss` of its steps and of held-out text.

    `spread` has each strategy with its mesh that trained it; there are several if it was resumed under another one.
    """

    path: Path
    facts: Facts
    spread: tuple[str, ...]
    steps: pd.DataFrame
    evaluations: pd.DataFrame


def read_training(paths: Iterable[Path]) -> list[TrainingRun]:
    """Read logs whose losses can be compared."""
    runs = [_run_of(path, _lines(path)) for path in paths]
    for run in runs[1:]:
        for fact in ("sha256", "tokens"):
            if (first := getattr(runs[0].facts.corpus, fact)) != (other := getattr(run.facts.corpus, fact)):
                files = f"{shown(runs[0].path)} and {shown(run.path)}"
                problem = f"the losses of {files} do not compare: {fact} of the corpus is"
                raise RecordError(f"{problem} {first} and {other}; plot them apart")
    return runs


def _lines(path: Path) -> list[tuple[str, Any]]:
    """The kind and the values of each line of a log. A last line that was cut short, as by a full disk, is left out."""
    texts = read_bytes(path, f"pass a log of {WRITTEN_BY}").splitlines(keepends=True)
    found: list[tuple[str, Any]] = []
    for number, text in enumerate(texts, start=1):
        if text.endswith(b"\n"):
            where = f"{shown(path)}: line {number}"
            line = checked(decode_json(text, where), dict[str, Any], where)
            kind = line.get("kind")
            if number == 1 and kind != "run":
                break
            if number == 1:
                check_version(shown(path), line.get("schema_version"), SCHEMA_VERSION, WRITTEN_BY)
            if isinstance(kind, str) and kind in LINES:
                found.append((kind, checked(line, LINES[kind], where)))
    if not found:
        raise RecordError(f"{shown(path)} does not begin with what was run; pass a log of {WRITTEN_BY}")
    return found


def _run_of(path: Path, lines: list[tuple[str, Any]]) -> TrainingRun:
    of_kind = {kind: [line for each, line in lines if each == kind] for kind in LINES}
    spread = tuple(dict.fromkeys(f"{line.strategy} {line.mesh}" for line in of_kind["run"]))
    steps, evaluations = (
        pd.DataFrame([(line.step, line.loss) for line in of_kind[kind]], columns=["step", "loss"], dtype=float)
        for kind in ("step", "evaluation")
    )
    return TrainingRun(path, lines[0][1], spread, steps, evaluations)
