"""Lists the strategies, with their mesh axes and options: `meshmark strategies`."""

from collections.abc import Sequence

from benchmarks.cli.parsers import strategies as strategies_parser
from benchmarks.commandline.ending import run
from strategies import STRATEGIES


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the name, mesh axes and options of each strategy, including those that `MESHMARK_STRATEGIES` adds."""
    strategies_parser().parse_args(arguments)
    for name, strategy in STRATEGIES.items():
        print(f"{name:12}{', '.join(strategy.axis_names):40}{', '.join(strategy.options)}".rstrip())


if __name__ == "__main__":
    run(main)
