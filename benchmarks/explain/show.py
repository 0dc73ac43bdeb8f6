"""Prints what each device holds, and what it sends in a step. It runs no step.

meshmark show fsdp --mesh fsdp=4,tensor=2 --png shards.png
"""

import argparse
import json
import sys

from benchmarks.cli.ending import refusing
from benchmarks.cli.outputs import present
from strategies import STRATEGIES, Infeasible
from strategies.costs.overview import asked_overview


def main(option: argparse.Namespace) -> None:
    """Print what each device holds and sends, for each strategy that is named, as text or as JSON.

    For a mesh or a topology that is given, the text has each array by itself, too.
    """
    topology = option.topology and str(option.topology)
    with refusing():
        if option.json and str(option.json) in STRATEGIES:
            raise Infeasible(f"--json {option.json} names a file; give the strategy before --json")
        names = option.names or list(STRATEGIES)
        if option.png and len(names) > 1:
            raise Infeasible(f"--png draws one strategy, and {len(names)} are named; name one")
        found = [asked_overview(n, option.preset, option.mesh, topology, option.batch_size) for n in names]
    for name, overview in zip(names, found, strict=True):
        if overview.strategy != name:
            also = f"{overview.strategy}, which does the same along the axes of {name}"
            print(f"{name} lacks an axis of {option.mesh}; this is {also}", file=sys.stderr)
    texts = [
        f"{overview}\n\n{overview.array_table()}" if option.mesh or topology else str(overview) for overview in found
    ]
    present(option, json.dumps([overview.as_dict() for overview in found]), "\n\n".join(texts))
