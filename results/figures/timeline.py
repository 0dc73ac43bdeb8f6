"""The figure of a pipeline schedule: a row for each stage, and a cell for each operation at its tick.

Two operations of a tick have half a cell each.
"""

from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from results.figures.frame import PLAIN, Style, described, legend, opened
from results.figures.palette import PASS_COLOURS, WHITE
from results.records.printed import PASSES, Schedule


def timeline(schedule: Schedule, style: Style = PLAIN) -> Figure:
    """Draw a pipeline schedule in the format of `meshmark schedule --json`.

    Each cell shows the number of its microbatch. If a stage has several chunks of layers, later chunks are paler.
    """
    stages, chunks = schedule.stages, schedule.chunks
    ticks, widest = len(stages[0]), max(len(cell) for row in stages for cell in row)
    figure, (axes,) = opened(style, size=(max(6, 0.32 * ticks * widest), 1.6 + 0.4 * len(stages)))
    axes.grid(visible=False)
    cells = [(tick, stage, cell) for stage, row in enumerate(stages) for tick, cell in enumerate(row)]
    done = [(tick, stage, op, i, 1 / len(cell)) for tick, stage, cell in cells for i, op in enumerate(cell)]
    for tick, stage, op, i, width in done:
        colour, alpha, begin = PASS_COLOURS[op.kind], 1 - 0.55 * op.chunk / chunks, tick + i * width
        axes.add_patch(Rectangle((begin, stage), width, 1, facecolor=colour, edgecolor=WHITE, alpha=alpha))
        axes.text(begin + width / 2, stage + 0.5, str(op.microbatch), ha="center", va="center", fontsize="x-small")
    axes.set(xlim=(0, ticks), ylim=(len(stages), 0), xlabel="tick", ylabel="stage")
    axes.set_yticks([stage + 0.5 for stage in range(len(stages))], [str(stage) for stage in range(len(stages))])
    kinds = {op.kind for _, _, op, *_ in done}
    microbatches = 1 + max(op.microbatch for _, _, op, *_ in done)
    title = [f"{schedule.schedule}: {microbatches} microbatches through {len(stages)} stages"]
    if chunks > 1:
        title.append(f"{chunks} chunks each (the later, the paler)")
    legend(
        figure,
        [Patch(color=PASS_COLOURS[kind], label=name) for kind, name in PASSES.items() if kind in kinds],
        below=True,
    )
    return described(figure, style, title, [])
