"""Reads the logs of training runs, which `python -m benchmarks.train` writes as JSON Lines."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from results.records.reading import RecordError, check_kinds, is_number, is_positive, is_text

SUFFIX = ".jsonl"
"""How the names of logs end. Files of `pytest benchmarks` end otherwise."""
SCHEMA_VERSION = 1
WRITTEN_BY = "a log that `python -m benchmarks.train` wrote"
FACTS = {"strategy": is_text, "mesh": is_text, "preset": is_text, "parameters": is_positive, "device_kind": is_text}
TRAINING = {"batch_size": is_positive, "learning_rate": is_positive}
STEP = {"step": is_positive, "loss": is_number}
EVALUATION = {"step": is_number, "loss": is_number}


class TrainingRun(NamedTuple):
    """A training run.

    Attributes:
        path: its log.
        facts: what was run, the first line of the log.
        spread: each strategy with its mesh that trained it, one after another if it was resumed under another one.
        steps: columns `step` and `loss`, of batches that it trained on.
        evaluations: columns `step` and `loss`, of text that was held out.
    """

    path: Path
    facts: Mapping[str, Any]
    spread: tuple[str, ...]
    steps: pd.DataFrame
    evaluations: pd.DataFrame


def read_training(paths: Iterable[Path]) -> list[TrainingRun]:
    """Read logs whose losses can be compared.

    Raises:
        RecordError: a file is not a log, or two runs have trained on different tokens.
    """
    runs = [_run_of(path, _lines(path)) for path in paths]
    for run in runs[1:]:
        for fact in ("sha256", "tokens"):
            if (first := runs[0].facts["corpus"].get(fact)) != (other := run.facts["corpus"].get(fact)):
                problem = f"the losses of {runs[0].path} and {run.path} do not compare: {fact} of the corpus is"
                raise RecordError(f"{problem} {first} and {other}; plot them apart")
    return runs


def _lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a log. A last line that was cut short, as by a full disk, is left out."""
    if not path.is_file():
        raise RecordError(f"{path} does not exist; pass {WRITTEN_BY}")
    try:
        texts = path.read_text(encoding="utf-8").splitlines(keepends=True)
        lines = [json.loads(text) for text in texts if text.endswith("\n")]
    except (OSError, ValueError, RecursionError) as error:
        raise RecordError(f"{path} is not JSON Lines ({error}); pass {WRITTEN_BY}") from error
    if not lines or not all(isinstance(line, dict) for line in lines) or lines[0].get("kind") != "run":
        raise RecordError(f"{path} does not begin with what was run; pass {WRITTEN_BY}")
    return lines


def _run_of(path: Path, lines: list[dict[str, Any]]) -> TrainingRun:
    facts = lines[0]
    if facts.get("schema_version") != SCHEMA_VERSION:
        raise RecordError(f"{path} has schema {facts.get('schema_version')}, not {SCHEMA_VERSION}; train again")
    if not isinstance(facts.get("corpus"), dict) or not isinstance(facts.get("training"), dict):
        raise RecordError(f"{path} does not say on what was trained; pass {WRITTEN_BY}")
    parts = {kind: [line for line in lines if line.get("kind") == kind] for kind in ("run", "step", "evaluation")}
    for kind, keys in (("run", FACTS), ("step", STEP), ("evaluation", EVALUATION)):
        for line in parts[kind]:
            check_kinds(f"{path}: a line of kind {kind}", line, keys)
    check_kinds(f"{path}: training", facts["training"], TRAINING)
    spread = tuple(dict.fromkeys(f"{line['strategy']} {line['mesh']}" for line in parts["run"]))
    tables = (pd.DataFrame(parts[kind], columns=["step", "loss"], dtype=float) for kind in ("step", "evaluation"))
    return TrainingRun(path, facts, spread, *tables)
