"""The kinds of files that `meshmark plot` draws: how each is recognised, its pictures and its options."""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cli.ending import Refused
from benchmarks.cli.outputs import is_picture, safe_name
from results.figures import losses, predicted_scaling, search, tokens
from results.figures.frame import Drawing, Style
from results.figures.lanes import lanes
from results.figures.predictions import predicted_figure
from results.figures.run import BY_NAME, CURVES, chosen, drawings_of_run
from results.figures.shards import shards
from results.figures.timeline import timeline
from results.records import rows, traces
from results.records.documents import is_search, read_search
from results.records.predictions import judged, without_own_source
from results.records.predictions import read as read_predictions
from results.records.printed import read_overviews, read_schedule
from results.records.reading import RecordError, as_run
from results.records.rows import METRICS
from results.records.training import SUFFIX, read_training
from strategies.files import shown

STDIN = Path("-")
OPTIONS = {
    "strategy": "--strategy chooses among measured cases",
    "devices": "--devices chooses among measured cases",
    "batch_size": "--batch-size chooses among measured cases",
    "metric": "--metric is of measured cases",
    "weak": "--weak compares measured cases",
    "between": "--between is a part of a trace",
}
"""Options that only some kinds of files have, and what they do."""


class Inputs(NamedTuple):
    """Files of one kind, their paths and contents, and how they are drawn."""

    paths: Sequence[Path]
    contents: Sequence[Any]
    options: argparse.Namespace
    style: Style

    @property
    def where(self) -> str:
        """The first file, for messages."""
        return "stdin" if self.paths[0] == STDIN else shown(self.paths[0])


class FileKind(NamedTuple):
    """A kind of files: whether a file with a content is of it, and its pictures.

    It has some of `OPTIONS`. Several files of it may be drawn `together`, and the default output may be a folder.
    """

    recognised: Callable[[Path, Any], bool]
    drawings: Callable[[Inputs], list[Drawing]]
    options: Sequence[str] = ()
    together: bool = False
    folder: bool = False


def has(key: str) -> Callable[[Path, Any], bool]:
    """Return a test of whether a document has a key."""
    return lambda path, content: isinstance(content, dict) and key in content


def are_overviews(path: Path, content: Any) -> bool:
    """Return whether a document is a list of overviews; on stdin it may be empty, and is refused as such."""
    return isinstance(content, list) and (path == STDIN or (bool(content) and isinstance(content[0], dict)))


def draw_run(inputs: Inputs) -> list[Drawing]:
    """Return the figures of runs: those of a folder, or the one of a file."""
    options = inputs.options
    runs = ((path, as_run(path, content)) for path, content in zip(inputs.paths, inputs.contents, strict=True))
    table = chosen(rows.table_of(runs), options.strategy, options.devices)
    return drawings_of_run(table, inputs.style, options.batch_size, names_of(options), first=is_file(options.out))


def names_of(options: argparse.Namespace) -> list[str]:
    """Return the names of the figures that options ask for; none for all."""
    if options.metric is None:
        return [CURVES["throughput", "weak"].name] if options.weak else []
    if options.metric in METRICS:
        return [CURVES[options.metric, "weak" if options.weak else "strong"].name]
    if options.metric not in BY_NAME:
        raise Refused(f"--metric {options.metric} is unknown; it can be {', '.join([*METRICS, *BY_NAME])}")
    return [options.metric]


def draw_search(inputs: Inputs) -> list[Drawing]:
    """Return the figure of one search, or of several with different batches."""
    found = [read_search(path, content) for path, content in zip(inputs.paths, inputs.contents, strict=True)]
    if len(found) > 1:
        return [Drawing("predicted_time_vs_tokens", partial(tokens.predicted, found, inputs.style))]
    facts, candidates = found[0]
    module = predicted_scaling if candidates["scaling"].notna().any() else search
    return [Drawing(inputs.paths[0].stem, partial(module.figure_of, facts, candidates, inputs.style))]


def draw_trace(inputs: Inputs) -> list[Drawing]:
    """Return the figure of a trace."""
    trace = traces.read(inputs.paths[0], inputs.contents[0])
    return [Drawing(inputs.paths[0].stem, partial(lanes, trace, inputs.options.between, inputs.style))]


def draw_schedule(inputs: Inputs) -> list[Drawing]:
    """Return the figure of a schedule."""
    schedule = read_schedule(inputs.contents[0], inputs.where)
    return [Drawing(safe_name(schedule.schedule), partial(timeline, schedule, inputs.style))]


def draw_overviews(inputs: Inputs) -> list[Drawing]:
    """Return the figure of each overview."""
    found = read_overviews(inputs.contents[0], inputs.where)
    return [Drawing(safe_name(each.strategy), partial(shards, each, inputs.style)) for each in found]


def draw_predictions(inputs: Inputs) -> list[Drawing]:
    """Return the figure of predicted and measured seconds."""
    rows = judged(read_predictions(inputs.paths[0]))
    if rows.empty:
        raise RecordError(f"{inputs.where} has no row that is both predicted and measured")
    figure = partial(predicted_figure, without_own_source(rows), inputs.style)
    return [Drawing(inputs.paths[0].stem, figure)]


def draw_training(inputs: Inputs) -> list[Drawing]:
    """Return the loss curves of training runs."""
    return [Drawing("loss_curves", partial(losses.loss_curves, read_training(inputs.paths), inputs.style))]


KINDS: Mapping[str, FileKind] = {
    "training": FileKind(lambda path, content: path.suffix == SUFFIX, draw_training, together=True, folder=True),
    "predictions": FileKind(lambda path, content: path.suffix == ".csv", draw_predictions),
    "overviews": FileKind(are_overviews, draw_overviews),
    "trace": FileKind(has("otherData"), draw_trace, ["between"]),
    "schedule": FileKind(has("schedule"), draw_schedule),
    "search": FileKind(lambda path, content: is_search(content), draw_search, together=True),
    "run": FileKind(lambda path, content: path != STDIN, draw_run, [*OPTIONS][:-1], together=True, folder=True),
}
"""The kinds by name; a file is of the first that recognises it."""


def is_folder(out: Path) -> bool:
    """Return whether an output is a folder: it has no suffix, or is one that exists without the suffix of a picture."""
    return not out.suffix or (os.path.isdir(out) and not is_picture(out))  # noqa: PTH112 (a long name has no Path.is_dir)


def is_file(out: Path | None) -> bool:
    """Return whether an output is one picture: its suffix is the format of one, and it is not an existing folder."""
    return bool(out and is_picture(out) and not os.path.isdir(out))  # noqa: PTH112 (a long name has no Path.is_dir)
