"""Draws what each device of a strategy holds, and which devices exchange what.

meshmark show --json | meshmark diagram --out docs/strategies
"""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.commandline.ending import run as run_command
from benchmarks.commandline.outputs import require_folder, safe_name, save_text
from benchmarks.commandline.parser import Parser
from results.cli.ending import read_stdin, refusing
from results.records.overviews import WRITTEN_BY, read


def make_parser() -> Parser:
    """Return the parser of `meshmark diagram`."""
    parser = Parser(
        prog="meshmark diagram",
        description="Draw what each device holds and sends, from overviews on stdin: "
        "meshmark show --json | meshmark diagram --out DIR",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the pictures, STRATEGY.svg")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = make_parser()
    out = parser.parse_args(arguments).out
    from results.figures.communication import communication  # imports Matplotlib, which `--help` does not need

    with refusing(parser, WRITTEN_BY):
        overviews = read(read_stdin())
        require_folder(out)
        for overview in overviews:
            path = out / f"{safe_name(overview.strategy)}.svg"
            save_text(path, communication(overview))
            print(path)


if __name__ == "__main__":
    run_command(main)
