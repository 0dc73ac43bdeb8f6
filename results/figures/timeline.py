"""The figure of a pipeline schedule: a row for each stage, and a cell for each operation at its tick."""

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
    ticks = len(stages[0])
    figure, (axes,) = opened(style, size=(max(6, 0.32 * ticks), 1.6 + 0.4 * len(stages)))
    axes.grid(visible=False)
    done = [(tick, stage, op) for stage, row in enumerate(stages) for tick, op in enumerate(row) if op]
    for tick, stage, op in done:
        colour, alpha = PASS_COLOURS[op.kind], 1 - 0.55 * op.chunk / chunks
        axes.add_patch(Rectangle((tick, stage), 1, 1, facecolor=colour, edgecolor=WHITE, alpha=alpha))
        axes.text(tick + 0.5, stage + 0.5, str(op.microbatch), ha="center", va="center", fontsize="x-small")
    axes.set(xlim=(0, ticks), ylim=(len(stages), 0), xlabel="tick", ylabel="stage")
    axes.set_yticks([stage + 0.5 for stage in range(len(stages))], [str(stage) for stage in range(len(stages))])
    kinds = {op.kind for *_, op in done}
    microbatches = 1 + max(op.microbatch for *_, op in done)
    title = [f"{schedule.schedule}: {microbatches} microbatches through {len(stages)} stages"]
    if chunks > 1:
        title.append(f"{chunks} chunks each (the later, the paler)")
    legend(
        figure,
        [Patch(color=PASS_COLOURS[kind], label=name) for kind, name in PASSES.items() if kind in kinds],
        below=True,
    )
    return described(figure, style, title, [])
