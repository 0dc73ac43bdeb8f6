"""Draws a pipeline schedule: a bar for each stage, a cell for each tick.

python -m strategies schedule zb-h1 --stages 4 --microbatches 8 --json | python -m results.timeline zb-h1.png
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

NAMES = {"F": "forward", "B": "backward", "W": "gradients of weights"}


def timeline(schedule: dict[str, Any]) -> Figure:
    """Draw what `python -m strategies schedule --json` prints; a chunk is paler the later it is in the model."""
    stages, chunks = schedule["stages"], schedule["chunks"]
    colours = dict(zip(NAMES, sns.color_palette("colorblind"), strict=False))
    ticks = len(stages[0])
    figure = Figure(figsize=(max(6, 0.32 * ticks), 1.6 + 0.4 * len(stages)), layout="constrained")
    axes = figure.subplots()
    done = [(tick, stage, op) for stage, row in enumerate(stages) for tick, op in enumerate(row) if op]
    for tick, stage, op in done:
        colour, alpha = colours[op["kind"]], 1 - 0.55 * op["chunk"] / chunks
        axes.add_patch(Rectangle((tick, stage), 1, 1, facecolor=colour, edgecolor="white", alpha=alpha))
        axes.text(tick + 0.5, stage + 0.5, op["microbatch"], ha="center", va="center", fontsize="x-small")
    axes.set(xlim=(0, ticks), ylim=(len(stages), 0), xlabel="tick", ylabel="stage")
    axes.set_yticks([stage + 0.5 for stage in range(len(stages))], [str(stage) for stage in range(len(stages))])
    kinds = {op["kind"] for *_, op in done}
    microbatches = 1 + max(op["microbatch"] for *_, op in done)
    figure.suptitle(
        f"{schedule['schedule']}: {microbatches} microbatches through {len(stages)} stages", fontsize="medium"
    )
    handles = [Patch(color=colours[kind], label=name) for kind, name in NAMES.items() if kind in kinds]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m results.timeline", description="Draw a pipeline schedule.")
    parser.add_argument("out", type=Path, metavar="FILE", help="the picture; its ending says which kind")
    out = parser.parse_args(arguments).out
    try:
        schedule = json.load(sys.stdin)
    except ValueError as error:
        parser.error(f"stdin is no schedule ({error}); print one with `python -m strategies schedule --json`")
    out.parent.mkdir(parents=True, exist_ok=True)
    timeline(schedule).savefig(out, dpi=144)


if __name__ == "__main__":
    main()
