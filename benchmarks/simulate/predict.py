"""Predicts the seconds of published training runs, and says how far the predictions are off.

meshmark predict RUNS.csv --out PREDICTED.csv
"""

import argparse
import csv
import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from benchmarks.cli.accuracy import Errors, errors_of
from benchmarks.cli.ending import refusing
from benchmarks.cli.outputs import require_apart, require_file, same, short, write_then_print
from benchmarks.cli.tables import aligned
from benchmarks.simulate.intervals import interval, kind_of
from benchmarks.simulate.machine import Machine
from benchmarks.simulate.machines import UnknownMachine, machine, machine_for
from benchmarks.simulate.published import PublishedRun, measured_seconds, run_of
from benchmarks.simulate.published_row import AXES, COLUMNS, TableRow
from benchmarks.simulate.queues import Timeline
from benchmarks.simulate.step import bound_seconds, predict_seconds
from strategies.files import read_table
from strategies.infeasible import Infeasible

PARTS = (
    *("matmul", "attention", "memory", "launches", "layer collectives", "gathers", "head", "head collectives"),
    *("sends", "bubble", "gradients", "optimizer", "fixed"),
)
STEP_PARTS = {f"predicted.{part.replace(' ', '_')}_seconds": part for part in PARTS}
"""Columns of a table -> the part of a step, in the order of the step."""
OF_MACHINE = "name", "error", "source"
"""What a table says of the machine that predicts a row."""
ADDED = (
    *(
        "measured_seconds",
        "predicted_seconds",
        "low_seconds",
        "high_seconds",
        "left_out_seconds",
        "kind",
        "bound_seconds",
        *STEP_PARTS,
    ),
    *(f"machine.{fact}" for fact in OF_MACHINE),
    *("machine.fitted", "machine.stack", "problem"),
)
"""Columns that a table of predictions has."""


@dataclass(frozen=True)
class PredictedRow:
    """A row and its prediction.

    Attributes:
        row: as it was read.
        run: the step; None if it cannot be expressed.
        timeline: predicted; None if it cannot be.
        bound_seconds: the least time, if all overlaps; None likewise.
        machine: by which it is predicted.
        problem: why it cannot be predicted; empty if it can.
    """

    row: TableRow
    run: PublishedRun | None = None
    timeline: Timeline | None = None
    bound_seconds: float | None = None
    machine: Machine | None = None
    problem: str = ""

    @property
    def step_seconds(self) -> float | None:
        """Predicted seconds."""
        return self.timeline and self.timeline.step_seconds

    @property
    def interval_seconds(self) -> tuple[float, float]:
        """Seconds between which 80% of such steps are expected."""
        assert self.run
        assert self.machine
        assert self.step_seconds
        expected = interval(self.machine, self.run.cost.plan.config)
        return self.step_seconds * expected.low, self.step_seconds * expected.high

    @property
    def is_inside(self) -> bool:
        """Whether the measured seconds of a measured row lie in the interval."""
        low, high = self.interval_seconds
        return bool(self.run and low <= (self.run.step_seconds or 0) <= high)


def read_rows(path: Path) -> list[TableRow]:
    """Rows of a CSV file.

    Raises:
        SchemaError: it cannot be read, has no rows, or lacks columns.
    """
    return list(read_table(path, COLUMNS))


def read_tables(paths: Sequence[Path]) -> list[TableRow]:
    """Rows of several CSV files.

    Raises:
        SchemaError: as for `read_rows`.
        ValueError: a file is given twice, so each of its rows would count twice.
    """
    for path, other in combinations(paths, 2):
        if same(path, other):
            raise ValueError(f"{short(path)} is given twice, and its rows would count twice; give each table once")
    return [row for path in paths for row in read_rows(path)]


def seconds_on(run: PublishedRun, machine: Machine) -> float:
    """Predicted seconds of a run on a machine."""
    chosen = machine.with_precision(run.precision)
    return predict_seconds(run.cost, chosen, run.topology, run.losses).step_seconds


def predicted_rows(rows: Iterable[TableRow], name: str = "") -> list[PredictedRow]:
    """Predictions of all rows, by the machine of this name or file, or by the one of the devices and stack of each."""
    return [_predicted(row, name) for row in rows]


def _predicted(row: TableRow, name: str) -> PredictedRow:
    try:
        run = run_of(row)
        chosen = machine(name, run.kind) if name else machine_for(run.kind, run.stack)
        if chosen.stack.name != run.stack:
            raise UnknownMachine(f"machine {chosen.name} is of {chosen.stack.name}, and the row of {run.stack}")
        chosen = chosen.with_precision(run.precision)
    except (Infeasible, UnknownMachine, ValueError) as error:
        return PredictedRow(row, problem=str(error))
    timeline = predict_seconds(run.cost, chosen, run.topology, run.losses)
    return PredictedRow(row, run, timeline, bound_seconds(run.cost, chosen, run.topology), chosen)


def as_csv(predictions: Sequence[PredictedRow]) -> str:
    """The rows with measured, predicted and least seconds, the parts of a step, memory, machine, and problems."""
    given = dict.fromkeys(name for prediction in predictions for name in prediction.row if name not in ADDED)
    columns = given | {"microbatches": None}  # a table may leave out what follows from the batch
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [*columns, *ADDED], lineterminator="\n")
    writer.writeheader()
    writer.writerows({**one.row, **dict.fromkeys(ADDED), **_added(one)} for one in predictions)
    return stream.getvalue()


def _added(one: PredictedRow) -> dict[str, object]:
    """What a table adds to a row."""
    known: dict[str, object] = {"measured_seconds": measured_seconds(one.row) or "", "problem": one.problem}
    if not (one.run and one.timeline and one.machine):
        return known
    parts = one.timeline.parts
    numbers = {column: parts.get(part, 0.0) for column, part in STEP_PARTS.items()}
    numbers |= {"predicted_seconds": one.timeline.step_seconds, "bound_seconds": one.bound_seconds}
    numbers |= dict(zip(("low_seconds", "high_seconds"), one.interval_seconds, strict=True))
    numbers["left_out_seconds"] = seconds_on(one.run, one.machine.leaving_out(one.run.source))
    known |= {name: f"{value:.6g}" for name, value in numbers.items()}
    known |= {f"machine.{fact}": getattr(one.machine, fact) for fact in OF_MACHINE}
    known["machine.fitted"] = str(one.run.source in one.machine.without).lower()
    known |= {"machine.stack": one.run.stack, "kind": kind_of(one.run.cost.plan.config)}
    return {**known, "microbatches": one.run.cost.plan.train.microbatches}


def model_of(row: TableRow) -> str:
    """Name of a row's model by its sizes."""
    return f"{row['layers']} x {row['embed']}"


def mesh_of(row: TableRow) -> str:
    """A row's mesh, as its cells have it: axes of size one are left out.

    >>> mesh_of({"data": "8", "fsdp": "", "pipeline": "1", "tensor": "many"})
    'data=8,tensor=many'
    """
    return ",".join(f"{axis}={row[axis]}" for axis in AXES if row.get(axis, "") not in ("", "1")) or "one device"


def work_of(row: TableRow) -> str:
    """Name of the work of a row's step: runs of the same work differ in how it is spread."""
    return f"{model_of(row)}, {row['batch_size']} x {row['sequence']} tokens, {cluster_of(row)}"


def cluster_of(row: TableRow) -> str:
    """Name of a row's cluster by its devices."""
    return f"{row['devices']} x {row['device']}"


def error_report(predictions: Sequence[PredictedRow]) -> list[str]:
    """Lines of the errors by source and work, of intervals, and of the rows that cannot be predicted."""
    judged = [one for one in predictions if one.step_seconds and one.run and one.run.step_seconds]
    lines: list[str] = []
    for title, key in (("source", lambda row: row.get("source", "")), ("work", work_of)):
        groups: dict[str, list[PredictedRow]] = defaultdict(list)
        for prediction in judged:
            groups[key(prediction.row)].append(prediction)
        table = [(title, "runs", "mean error", "median", "bias", "rank correlation", "regret")]
        table += [(name, *error_cells(errors(group))) for name, group in sorted(groups.items())]
        lines += [*aligned(table, ["<", *">" * 6]), ""]
    used = Counter((one.machine.name, one.machine.source) for one in predictions if one.machine)
    lines += [f"{count} rows by machine {name}: {source}" for (name, source), count in used.most_common()]
    lines += _without(predictions)
    inside = sum(one.is_inside for one in judged)
    count = f"{len(judged)} of {len(predictions)} rows are predicted and measured"
    return [*lines, f"{count}, {inside} of them inside of their 80% interval" if judged else count]


def _without(predictions: Sequence[PredictedRow]) -> list[str]:
    """Lines of the rows that cannot be predicted, by the reason. Rows are numbered from 1, all tables together."""
    rows: dict[str, list[str]] = defaultdict(list)
    for number, prediction in enumerate(predictions, 1):
        if prediction.problem:
            rows[prediction.problem].append(f"    row {number}: {model_of(prediction.row)}, {mesh_of(prediction.row)}")
    frequent = sorted(rows.items(), key=lambda item: -len(item[1]))
    return [line for problem, of in frequent for line in (f"{len(of)} rows cannot be predicted: {problem}", *of)]


def errors(predictions: Sequence[PredictedRow]) -> Errors:
    """Errors of predictions of measured rows."""
    pairs = [(one.step_seconds, one.run.step_seconds) for one in predictions if one.run and one.timeline]
    guesses, truths = zip(*pairs, strict=True)
    return errors_of(guesses, truths)


def error_cells(found: Errors) -> tuple[str, ...]:
    """Cells of a table: runs, mean error, median, bias, rank correlation and regret."""
    shares = f"{found.mean:.1%}", f"{found.median:.1%}", f"{found.bias:+.1%}"
    return str(found.runs), *shares, found.rank_text, f"{found.regret:.1%}"


def main(args: argparse.Namespace) -> None:
    """Predict the runs of a table and print the errors.

    Raises:
        SystemExit: the table cannot be read, a machine is not known, or the output cannot be written.
    """
    with refusing():
        if args.out:
            require_apart({"--out": args.out}, args.runs)
            require_file(args.out)
        if args.machine:
            machine(args.machine)  # one that is not known is an error of the command, not of each row
        rows = read_tables(args.runs)
    predictions = predicted_rows(rows, args.machine)
    files = {args.out: as_csv(predictions)} if args.out else {}
    write_then_print(files, "\n".join(error_report(predictions)), named=True)
