"""Predicts the seconds of published training runs, and says how far the predictions are off.

meshmark predict RUNS.csv --out PREDICTED.csv
"""

import argparse
import csv
import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from benchmarks.cli.accuracy import Errors, errors_of
from benchmarks.cli.ending import refusing
from benchmarks.cli.outputs import require_apart, require_file, same, short, write_then_print
from benchmarks.cli.tables import aligned
from benchmarks.simulate.intervals import interval, kind_of
from benchmarks.simulate.machine import Machine
from benchmarks.simulate.machines import machine, nearest_machine
from benchmarks.simulate.published import PublishedRun, run_of
from benchmarks.simulate.published_row import AXES, COLUMNS, Published, TableRow
from benchmarks.simulate.queues import Timeline
from benchmarks.simulate.step import bound_seconds, predict_seconds
from strategies.files import read_table
from strategies.schema import SchemaError

PARTS = (
    *("matmul", "attention", "memory", "launches", "layer collectives", "gathers", "head", "head collectives"),
    *("sends", "bubble", "gradients", "optimizer", "fixed"),
)
STEP_PARTS = {f"predicted.{part.replace(' ', '_')}_seconds": part for part in PARTS}
"""Columns of a table -> the part of a step, in the order of the step."""
ADDED = (
    *("measured_seconds", "predicted_seconds", "low_seconds", "high_seconds", "left_out_seconds", "kind"),
    *("bound_seconds", *STEP_PARTS, "machine.name", "machine.error", "machine.source"),
    *("machine.fitted", "machine.stack", "problem"),
)
"""Columns that a table of predictions has."""


class Prediction(NamedTuple):
    """A row of a table as it was read, its run, and the step that a machine predicts."""

    row: TableRow
    run: PublishedRun
    machine: Machine
    timeline: Timeline

    @property
    def interval_seconds(self) -> tuple[float, float]:
        """Seconds between which 80% of such steps are expected."""
        return interval(self.machine, self.run.cost.plan.config).around(self.timeline.step_seconds)


class Problem(NamedTuple):
    """A row that cannot be predicted, and why."""

    row: TableRow
    problem: str


def read_rows(*paths: Path) -> list[TableRow]:
    """Rows of CSV files."""
    for path, other in combinations(paths, 2):
        if same(path, other):
            raise ValueError(f"{short(path)} is given twice, and its rows would count twice; pass each table once")
    return [row for path in paths for row in read_table(path, COLUMNS)]


def seconds_on(run: PublishedRun, machine: Machine) -> float:
    """Predicted seconds of a run on a machine."""
    chosen = machine.with_precision(run.precision)
    return predict_seconds(run.cost, chosen, run.topology, run.losses).step_seconds


def predicted(row: TableRow, name: str = "") -> Prediction | Problem:
    """The prediction of a row, by the machine of this name or file, or by the one of its devices and stack."""
    try:
        run = run_of(row)
        chosen = machine(name, run.kind) if name else nearest_machine(run.kind, run.stack)
        if chosen.stack.name != run.stack:
            raise ValueError(f"machine {chosen.name} is of {chosen.stack.name}, and the row of {run.stack}")
        chosen = chosen.with_precision(run.precision)
    except ValueError as error:
        return Problem(row, str(error))
    return Prediction(row, run, chosen, predict_seconds(run.cost, chosen, run.topology, run.losses))


def as_csv(predictions: Sequence[Prediction | Problem]) -> str:
    """The rows with measured, predicted and least seconds, the parts of a step, machine, and problems."""
    given = dict.fromkeys(name for prediction in predictions for name in prediction.row if name not in ADDED)
    columns = given | {"microbatches": None}  # a table may leave out what follows from the batch
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [*columns, *ADDED], lineterminator="\n")
    writer.writeheader()
    writer.writerows({**one.row, **dict.fromkeys(ADDED), **_added(one)} for one in predictions)
    return stream.getvalue()


def _added(one: Prediction | Problem) -> dict[str, object]:
    """What a table adds to a row."""
    known: dict[str, object] = {"measured_seconds": ""}
    with suppress(SchemaError):  # of a row that cannot be read
        known = {"measured_seconds": Published.of(one.row).measured_seconds or ""}
    if isinstance(one, Problem):
        return known | {"problem": one.problem}
    run, machine, timeline, plan = one.run, one.machine, one.timeline, one.run.cost.plan
    low, high = one.interval_seconds
    numbers = {
        **{column: timeline.parts.get(part, 0.0) for column, part in STEP_PARTS.items()},
        **{"predicted_seconds": timeline.step_seconds, "low_seconds": low, "high_seconds": high},
        "bound_seconds": bound_seconds(run.cost, machine, run.topology),
        "left_out_seconds": seconds_on(run, machine.leaving_out(run.source)),
    }
    return {
        **known,
        **{name: f"{value:.6g}" for name, value in numbers.items()},
        **{f"machine.{fact}": getattr(machine, fact) for fact in ("name", "error", "source")},
        **{"machine.fitted": str(run.source in machine.without).lower(), "machine.stack": run.stack},
        **{"kind": kind_of(plan.config), "microbatches": plan.train.microbatches, "problem": ""},
    }


def model_of(row: TableRow) -> str:
    """Name of a row's model by its sizes."""
    return f"{row['layers']} x {row['embed']}"


def mesh_of(row: TableRow) -> str:
    """A row's mesh, as its cells have it: axes of size one are left out. Experts may split other axes, too.

    >>> mesh_of({"data": "8", "fsdp": "", "pipeline": "1", "tensor": "many"})
    'data=8,tensor=many'
    """
    sizes = {axis: row.get(axis) or "1" for axis in (*AXES, "expert")}
    return ",".join(f"{axis}={size}" for axis, size in sizes.items() if size != "1") or "data=1"


def work_of(row: TableRow) -> str:
    """Name of the work of a row's step: runs of the same work differ in how it is spread."""
    tokens, cluster = f"{row['batch_size']} x {row['sequence']} tokens", f"{row['devices']} x {row['device']}"
    return f"{model_of(row)}, {tokens}, {cluster}"


def error_report(predictions: Sequence[Prediction | Problem]) -> list[str]:
    """Lines of the errors by source and work, of intervals, and of the rows that cannot be predicted."""
    judged, lines = _judged(predictions), list[str]()
    for title, key in (("source", lambda row: row.get("source", "")), ("work", work_of)):
        groups: dict[str, list[Prediction]] = defaultdict(list)
        for prediction in judged:
            groups[key(prediction.row)].append(prediction)
        table = [(title, "runs", "mean error", "median", "bias", "rank correlation", "regret")]
        table += [(name, *error_cells(errors(group))) for name, group in sorted(groups.items())]
        lines += [*aligned(table, ["<", *">" * 6]), ""]
    used = Counter((one.machine.name, one.machine.source) for one in predictions if isinstance(one, Prediction))
    lines += [f"{count} rows by machine {name}: {source}" for (name, source), count in used.most_common()]
    lines += _without(predictions)
    ends = ((one.run.step_seconds or 0.0, *one.interval_seconds) for one in judged)
    inside = sum(low <= seconds <= high for seconds, low, high in ends)
    count = f"{len(judged)} of {len(predictions)} rows are predicted and measured"
    return [*lines, f"{count}, {inside} of them inside of their 80% interval" if judged else count]


def _without(predictions: Sequence[Prediction | Problem]) -> list[str]:
    """Lines of the rows that cannot be predicted, by the reason. Rows are numbered from 1, all tables together."""
    rows: dict[str, list[str]] = defaultdict(list)
    for number, one in enumerate(predictions, 1):
        if isinstance(one, Problem):
            rows[one.problem].append(f"    row {number}: {model_of(one.row)}, {mesh_of(one.row)}")
    frequent = sorted(rows.items(), key=lambda item: -len(item[1]))
    return [line for problem, of in frequent for line in (f"{len(of)} rows cannot be predicted: {problem}", *of)]


def _judged(predictions: Iterable[Prediction | Problem]) -> list[Prediction]:
    """The predictions of measured rows."""
    return [one for one in predictions if isinstance(one, Prediction) and one.run.step_seconds]


def errors(predictions: Iterable[Prediction | Problem]) -> Errors:
    """Errors of predictions of measured rows."""
    judged = _judged(predictions)
    return errors_of([one.timeline.step_seconds for one in judged], [one.run.step_seconds or 0.0 for one in judged])


def error_cells(found: Errors) -> tuple[str, ...]:
    """Cells of a table: runs, mean error, median, bias, rank correlation and regret."""
    shares = f"{found.mean:.1%}", f"{found.median:.1%}", f"{found.bias:+.1%}"
    return str(found.runs), *shares, found.rank_text, f"{found.regret:.1%}"


def main(args: argparse.Namespace) -> None:
    """Predict the runs of a table and print the errors."""
    with refusing():
        if args.out:
            require_apart({"--out": args.out}, args.runs)
            require_file(args.out, "csv")
        if args.machine:
            machine(args.machine)  # one that is not known is an error of the command, not of each row
        rows = read_rows(*args.runs)
    predictions = [predicted(row, args.machine) for row in rows]
    files = {args.out: as_csv(predictions)} if args.out else {}
    write_then_print(files, "\n".join(error_report(predictions)), named=True)
