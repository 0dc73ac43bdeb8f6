"""Prints what each device holds, what it sends in a step, and the options of strategies. It runs no step.

meshmark show fsdp --mesh fsdp=4,tensor=2 --png shards.png
"""

import argparse
import json
import sys
from collections.abc import Iterable
from functools import partial
from typing import Any

from benchmarks.cases.selection import values_of
from benchmarks.cli.ending import refusing
from benchmarks.cli.outputs import present
from benchmarks.cli.tables import aligned
from strategies import STRATEGIES, Infeasible, MeshSpec
from strategies.costs.overview import Overview, asked_overview


def main(option: argparse.Namespace) -> None:
    """Print what each device holds and sends, for each strategy that is named, as text or as JSON.

    For a mesh or a topology that is given, the text has each array by itself, too.
    """
    with refusing():
        if option.json and str(option.json) in STRATEGIES:
            raise Infeasible(f"--json {option.json} names a file; put the strategy before --json")
        option.option = one_of_each(option.option)
        if option.png and len(option.names or STRATEGIES) > 1:
            raise Infeasible(f"--png draws one strategy, and {len(option.names or STRATEGIES)} are named; name one")
        found = named(option) if option.names else possible(option)
    texts = [text_of(overview, option) for overview in found]
    present(option, json.dumps([overview.as_dict() for overview in found]), "\n\n".join(texts))


def text_of(overview: Overview, option: argparse.Namespace) -> str:
    """An overview as text; of a mesh with each array by itself, and in a list of all strategies with the options."""
    table = partial(aligned, indent="  ")
    parts = [overview.text(table)]
    if option.mesh or option.topology:
        parts.append(overview.array_table(table))
    if not option.names and (options := STRATEGIES[overview.strategy].options):
        parts.append(f"options: {', '.join(options)}")
    return "\n\n".join(parts)


def of_strategy(name: str, option: argparse.Namespace) -> Overview:
    """The overview of a strategy with the options of the command."""
    topology = option.topology and str(option.topology)
    return asked_overview(
        name, option.preset, option.mesh, topology, option.batch_size, sizes=dict(option.model), **option.option
    )


def one_of_each(given: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The options of a strategy, each with one value."""
    found = values_of(given)
    if several := [name for name, values in found if len(values) > 1]:
        raise Infeasible(f"--option {several[0]} has several values, and one step is shown; remove the others")
    return {name: value for name, (value,) in found}


def named(option: argparse.Namespace) -> list[Overview]:
    """The overview of each strategy that is named. A line says where another one has the axes of the mesh."""
    found = [of_strategy(name, option) for name in option.names]
    for name, overview in zip(option.names, found, strict=True):
        if overview.strategy != name:
            also = f"{overview.strategy}, which does the same along the axes of {name}"
            print(f"{name} lacks an axis of {option.mesh}; this is {also}", file=sys.stderr)
    return found


def possible(option: argparse.Namespace) -> list[Overview]:
    """The overview of each strategy that the mesh, the devices and the batch allow. A line names each of the others."""
    found, refused = list[Overview](), dict[str, Infeasible]()
    for name in STRATEGIES:
        try:
            overview = of_strategy(name, option)
        except Infeasible as error:
            refused[name] = error
        else:
            found += [overview] if overview.strategy == name else []  # the others are shown by their own name
    if not found:
        axes = MeshSpec.of(option.mesh).sizes.keys() if option.mesh else ()
        raise next((refused[name] for name in refused if {*axes} <= {*STRATEGIES[name].axis_names}), refused["single"])
    for name, error in refused.items():
        print(f"without {name}: {error}", file=sys.stderr)
    return found
