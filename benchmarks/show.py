"""Prints what each device holds, and what it sends in a step. It runs no step.

meshmark show fsdp --mesh fsdp=4,tensor=2 --png shards.png
"""

import json
import subprocess
import sys
from collections.abc import Sequence

from benchmarks.cli.parsers import show as show_parser
from benchmarks.cli.refusing import refusing
from benchmarks.commandline.ending import run
from strategies import STRATEGIES, Infeasible
from strategies.costs.overview import asked_overview


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what each device holds and sends, for each strategy asked for, as text or as JSON.

    For a mesh or a topology that is given, the text has each array by itself, too.
    """
    parser = show_parser()
    option = parser.parse_args(arguments)
    with refusing(parser):
        names = option.names or list(STRATEGIES)
        if option.png and len(names) > 1:
            raise Infeasible(f"--png draws one strategy, and {len(names)} are asked for; name one")
        found = [asked_overview(n, option.preset, option.mesh, option.topology, option.batch_size) for n in names]
    for name, each in zip(names, found, strict=True):
        if each.strategy != name:
            also = f"{each.strategy}, which does the same along the axes of {name}"
            print(f"{name} lacks an axis of {option.mesh}; this is {also}", file=sys.stderr)
    written = json.dumps([each.as_dict() for each in found])
    detailed = option.mesh or option.topology
    texts = [f"{each}\n\n{each.array_table()}" if detailed else str(each) for each in found]
    print(written if option.json else "\n\n".join(texts))
    if option.png:
        draw(written, option.png)


def draw(overview: str, picture: str) -> None:
    """Pass an overview to the command that draws it: `show --json | meshmark shards FILE`."""
    # The package that draws needs no JAX, and this one no matplotlib: they share nothing but this text.
    drawn = subprocess.run([sys.executable, "-m", "results.shards", picture], input=overview, text=True, check=False)
    if drawn.returncode:
        sys.exit(drawn.returncode)


if __name__ == "__main__":
    run(main)
