"""The published training runs nearest to a search: what others reached with such a model on such devices."""

import math
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from benchmarks.cli.tables import paragraph
from benchmarks.devices.placement import device_count
from benchmarks.search.candidates import SearchSpace
from benchmarks.search.rows import WHOLE, Column, table
from benchmarks.simulate.predict import mesh_of, read_rows
from benchmarks.simulate.published import config_of, precision_of
from benchmarks.simulate.published_row import Published, TableRow
from strategies.core.sizes import BYTES
from strategies.model.gpt import param_count

FARTHEST = math.log(4)
"""A run is not near if the model is more than four times as large or as small, or the sum of all factors is that."""
SHOWN = 5
FACTS = "stack", "model", "device", "devices", "sequence", "batch_size", "dtype"
COLUMNS = (
    Column("published", "stack"),
    Column("model", lambda run: f"{run['model']} {run['param_count'] / 1e9:.1f}B".strip()),
    Column("devices", lambda run: f"{run['devices']} {run['device']}"),
    *(Column("sequence", "sequence", WHOLE), Column("batch", "batch_size", WHOLE)),
    *(Column("dtype", "dtype"), Column("mesh", "mesh")),
    Column("tokens/s a device", "tokens_per_second_per_device", WHOLE),
)


def nearest(space: SearchSpace) -> list[dict[str, Any]]:
    """The nearest runs of such models on such devices, as JSON values, each of another stack, nearest first."""
    tables = sorted((Path(str(files("results"))) / "published").glob("*.csv"))
    runs = (run for row in read_rows(*tables) if (run := _run(row, space)) and run[0] <= FARTHEST)
    of_stack: dict[tuple[str, str], dict[str, Any]] = {}
    for _, run in sorted(runs, key=lambda run: (run[0], -run[1]["tokens_per_second_per_device"])):
        of_stack.setdefault((run["stack"], run["device"]), run)
    return [*of_stack.values()][:SHOWN]


def _run(row: TableRow, space: SearchSpace) -> tuple[float, dict[str, Any]] | None:
    """The distance of a row's run, and the run; None if it is of other devices or models, or has no speed.

    The distance is the sum of the logarithms of how many times larger or smaller the model, the number of devices, the
    sequence and the dtype are, all but the first halved.
    """
    try:
        published = Published.of(row)
        if published.kind.partition("_")[0] != space.topology.kind.partition("_")[0]:
            return None
        if bool(published.experts) != bool(space.config.experts) or not (seconds := published.measured_seconds):
            return None
        parameters, precision = param_count(config_of(published)), precision_of(published)
    except ValueError:
        return None
    ratios = (
        (parameters, param_count(space.config), 1.0),
        (published.devices, device_count(space.topology), 0.5),
        (published.sequence, space.config.sequence, 0.5),
        (precision.itemsize if precision else 2, BYTES[space.dtype], 0.5),
    )
    distance = sum(weight * abs(math.log(theirs / ours)) for theirs, ours, weight in ratios)
    rate = published.batch_size * published.sequence / seconds / published.devices
    facts = {name: getattr(published, name) for name in FACTS} | {"param_count": parameters}
    return distance, facts | {"tokens_per_second_per_device": rate, "source": row["source"], "mesh": mesh_of(row)}


def lines(runs: Sequence[dict[str, Any]]) -> list[str]:
    """The lines of the table of runs, and where they are published."""
    if not runs:
        return ["no published run is near: of such devices, with a model within four times the size"]
    numbers = {source: f"[{number}]" for number, source in enumerate(dict.fromkeys(run["source"] for run in runs), 1)}
    source = Column("source", lambda run: numbers[run["source"]])
    return [*table((*COLUMNS, source), runs), *paragraph(*(f"{sign} {source}" for source, sign in numbers.items()))]
