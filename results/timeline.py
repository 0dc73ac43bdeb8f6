"""Draws a pipeline schedule: a bar for each stage, a cell for each tick.

python -m strategies schedule zb-h1 --stages 4 --microbatches 8 --json | python -m results.timeline zb-h1.png
"""

import json
import reprlib
import sys
from collections.abc import Sequence
from typing import Any, TypeGuard

import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from benchmarks.commandline.ending import BROKEN_INPUT
from benchmarks.commandline.ending import run as run_command
from benchmarks.commandline.outputs import Unwritable, require_picture, save
from results import parsers
from results.figures.pictures import FORMATS, draw
from results.records.reading import RecordError

NAMES = {"F": "forward", "B": "backward", "W": "gradients of weights"}
MOST = 1400
"""Stages or ticks that a picture may have: matplotlib draws at most 2^16 pixels each way."""
WRITTEN_BY = "print one with `python -m strategies schedule NAME --stages S --microbatches M --json`"


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


def read(text: str) -> dict[str, Any]:
    """A schedule as it is printed.

    Raises:
        RecordError: it is no whole schedule; the message says what is wrong with it.
    """
    try:
        schedule = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"stdin is no schedule ({error}); {WRITTEN_BY}") from error
    if not isinstance(schedule, dict) or not isinstance(schedule.get("schedule"), str):
        raise RecordError(f"stdin is JSON but no schedule with a name; {WRITTEN_BY}")
    chunks, stages = schedule.get("chunks"), schedule.get("stages")
    if not is_whole(chunks) or chunks < 1:
        raise RecordError(f"stdin: `chunks` is {reprlib.repr(chunks)}, not a whole number of at least 1; {WRITTEN_BY}")
    if not isinstance(stages, list) or not stages or not all(isinstance(row, list) and row for row in stages):
        raise RecordError(f"stdin: `stages` is no list of rows, one for each stage; {WRITTEN_BY}")
    if len(lengths := {len(row) for row in stages}) > 1:
        raise RecordError(f"stdin: stages have {min(lengths)} to {max(lengths)} ticks, not the same number")
    if max(len(stages), *lengths) > MOST:
        raise RecordError(f"{len(stages)} stages of {max(lengths)} ticks cannot be drawn; {MOST} of each at most")
    operations = [op for row in stages for op in row if op is not None]
    if strange := [op for op in operations if not is_operation(op, chunks)]:
        raise RecordError(f"stdin: {reprlib.repr(strange[0])} is no operation of {chunks} chunks; {WRITTEN_BY}")
    if not operations:
        raise RecordError("stdin is a schedule in which nothing is done; give it a stage and a microbatch")
    return schedule


def is_operation(op: Any, chunks: int) -> bool:
    """Whether it is what a stage does in a tick."""
    if not isinstance(op, dict) or op.get("kind") not in tuple(NAMES):
        return False
    microbatch, chunk = op.get("microbatch"), op.get("chunk")
    return is_whole(microbatch) and is_whole(chunk) and microbatch >= 0 and 0 <= chunk < chunks


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether it is a whole number."""
    return type(value) is int


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = parsers.timeline()
    out = parser.parse_args(arguments).out
    try:
        require_picture(out, FORMATS)
        figure = timeline(read(sys.stdin.read()))
        save(out, lambda path: draw(figure, path, dpi=144))
    except UnicodeDecodeError as error:
        parser.exit(BROKEN_INPUT, f"stdin is no text ({error}); {WRITTEN_BY}\n")
    except (RecordError, Unwritable) as error:
        parser.exit(BROKEN_INPUT, f"{error}\n")


if __name__ == "__main__":
    run_command(main)
