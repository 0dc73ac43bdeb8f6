"""Predicts the seconds of published training runs, and says how far the predictions are off.

meshmark predict RUNS.csv --out PREDICTED.csv
"""

import argparse

from benchmarks.cli.ending import refusing
from benchmarks.cli.outputs import require_apart, require_file, save_text
from benchmarks.simulate.machines import machine
from benchmarks.simulate.tables import as_csv, predicted_rows, read_rows, report


def main(args: argparse.Namespace) -> None:
    """Predict the runs of a table and print the errors.

    Raises:
        SystemExit: the table cannot be read, a machine is not known, or the output cannot be written.
    """
    with refusing():
        if args.out:
            require_apart({"--out": args.out}, args.runs)
            require_file(args.out)
        chosen = machine(args.machine) if args.machine else None
        rows = [row for path in args.runs for row in read_rows(path)]
    predictions = predicted_rows(rows, chosen)
    if args.out:
        save_text(args.out, as_csv(predictions))
        print(f"wrote {args.out}")
    print("\n".join(report(predictions)))
