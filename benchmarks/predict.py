"""Predicts the seconds of published training runs, and says how far the predictions are off.

python -m benchmarks.predict RUNS.csv --out PREDICTED.csv
"""

import argparse

from benchmarks.commandline.ending import BROKEN_INPUT, run
from benchmarks.commandline.main import WRONG_USAGE
from benchmarks.commandline.outputs import Unwritable, require_file, save_text
from benchmarks.parsers import predict_runs
from benchmarks.seconds.machines import UnknownMachine, machine
from benchmarks.seconds.tables import as_csv, predicted_rows, read_rows, report


def main(arguments: list[str] | None = None) -> None:
    """Predict the runs of a table and print the errors.

    Raises:
        SystemExit: the table cannot be read, or a machine is not known.
    """
    parser = predict_runs()
    asked: argparse.Namespace = parser.parse_args(arguments)
    try:
        if asked.out:
            require_file(asked.out)
        its = machine(asked.machine) if asked.machine else None
        rows = [row for path in asked.runs for row in read_rows(path)]
    except (Unwritable, UnknownMachine) as error:
        parser.exit(WRONG_USAGE, f"{parser.prog}: {error}\n")
    except (OSError, ValueError) as error:
        parser.exit(BROKEN_INPUT, f"{parser.prog}: {error}\n")
    predictions = predicted_rows(rows, its)
    if asked.out:
        save_text(asked.out, as_csv(predictions))
        print(f"wrote {asked.out}")
    print("\n".join(report(predictions)))


if __name__ == "__main__":
    run(main)
