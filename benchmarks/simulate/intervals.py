"""80% intervals of predictions, from errors on sources of published runs that had no part in the constants.

Split conformal prediction: a quantile of the sizes of errors on data that nothing was fitted to (Lei et al. 2018,
"Distribution-Free Predictive Inference for Regression", section 2.2). Errors are logarithms of ratios of seconds.

python -m benchmarks.simulate.intervals PREDICTED.csv
"""

import json
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from benchmarks.cli.accuracy import quantile
from benchmarks.simulate.machine import Machine
from strategies.files import read_json, read_table
from strategies.gpt_config import GPTConfig
from strategies.schema import Amount, checked

COVERAGE, ASSUMED_COVERAGE = 0.8, 0.9
"""Shares of errors that an interval covers: usually, and where no source has measured the devices."""
FILE = Path(__file__).parent.parent / "devices" / "intervals.json"
LONG = 16_384
"""Tokens from which a sequence is long."""
ModelKind = Literal["dense", "dense, long sequences", "experts"]
WORK = "source", "layers", "embed", "devices", "device", "batch_size", "sequence", "dtype"
"""Columns that two runs share which differ in how the same step is spread."""


class Widths(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Half widths of intervals by the kind of step, as natural logarithms of factors of seconds.

    Those that are assumed, where no source has measured, would cover 90% on other devices; `pair` is that of the ratio
    of two predictions of the same step, spread in two ways.
    """

    known: dict[ModelKind, Amount]
    assumed: dict[ModelKind, Amount]
    pair: Amount


class Interval(NamedTuple):
    """Factors of predicted seconds, between which 80% of measured seconds are expected."""

    low: float
    high: float

    def around(self, seconds: float) -> tuple[float, float]:
        """The ends of the interval of these predicted seconds."""
        return self.low * seconds, self.high * seconds


def kind_of(config: GPTConfig) -> ModelKind:
    """The kind of a step, on which errors depend."""
    if config.experts:
        return "experts"
    return "dense" if config.sequence < LONG else "dense, long sequences"


@cache
def widths() -> Widths:
    """Those of the package."""
    return checked(read_json(FILE, "`python -m benchmarks.simulate.intervals` writes it"), Widths, str(FILE))


def interval(machine: Machine, config: GPTConfig) -> Interval:
    """The interval of a prediction for a model on a machine."""
    found = widths()
    width = (found.assumed if machine.assumed else found.known)[kind_of(config)]
    return Interval(math.exp(-width), math.exp(width))


def widths_of(rows: Sequence[Mapping[str, str]]) -> Widths:
    """Widths from rows of a table that `meshmark predict --out` wrote; those count that were measured and predicted."""
    errors: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    works: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in rows:
        if row["measured_seconds"] and row["left_out_seconds"]:
            error = math.log(float(row["left_out_seconds"]) / float(row["measured_seconds"]))
            errors[row["kind"]][row["source"]].append(abs(error))
            works[tuple(row[name] for name in WORK)].append(error)
    pairs: dict[str, list[float]] = defaultdict(list)
    for (source, *_), each in works.items():
        if len(each) > 1:
            pairs[source] += [abs(one - other) for one, other in combinations(each, 2)]

    coverages, kinds = {"known": COVERAGE, "assumed": ASSUMED_COVERAGE}, sorted(errors)
    found = {name: {kind: round(quantile(errors[kind], of), 3) for kind in kinds} for name, of in coverages.items()}
    return checked({**found, "pair": round(quantile(pairs, COVERAGE), 3)}, Widths, "widths")


if __name__ == "__main__":
    written = widths_of(read_table(Path(sys.argv[1]), ("measured_seconds", "left_out_seconds", "kind", *WORK)))
    FILE.write_text(json.dumps(msgspec.to_builtins(written), indent=2) + "\n")
    print(FILE.read_text())
