"""A small training run for tests, and how they read its log."""

import json
from pathlib import Path
from typing import Any

from benchmarks.training.plan import LOG

FSDP = ("--strategy=fsdp", "--mesh=fsdp=2")
DATA = ("--strategy=data", "--mesh=data=2")
SMALL = ("--model=layers=2,embed=32,heads=2,sequence=16", "--batch-size=8")
OFTEN = ("--log-every=1", "--evaluate-every=4", "--evaluation-batches=2", "--checkpoint-every=4")
RECIPE = ("--warmup-steps=3", "--decay-steps=12")
RUN = (*SMALL, *OFTEN, *RECIPE)
STEPS = 12


def lines(out: Path) -> list[dict[str, Any]]:
    """The lines of a run's log."""
    return [json.loads(line) for line in (out / LOG).read_text().splitlines()]


def losses(out: Path) -> dict[tuple[str, int], float]:
    """Every logged loss by kind and step, in the order of the log; each is there once."""
    found = [((line["kind"], line["step"]), line["loss"]) for line in lines(out) if line["kind"] != "run"]
    assert len(dict(found)) == len(found)
    return dict(found)
