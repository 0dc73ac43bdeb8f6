"""Draws a replayed step as lanes: compute, memory traffic and waits of a device, and what its links send.

python -m benchmarks.compile --topology h100:16x8 --strategy fsdp --preset gpt3-6.7b --dtype bfloat16 --trace step.json
python -m results.lanes step.json
"""

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from benchmarks.commandline.ending import run as run_command
from results import parsers
from results.figures.palette import LANE_COLOURS
from results.figures.pictures import draw, draw_file
from results.records.traces import Span, Trace, read

DEVICE = {"compute": "compute", "memory": "memory", "exposed": "exposed communication", "idle": "pipeline bubble"}
"""Lanes of the device's own queue, in the trace and in the legend; the others are links."""
HIDDEN = "hidden communication"


def lanes(trace: Trace, between_ms: tuple[float, float] | None = None) -> Figure:
    """Draw the step, or a part of it. What a link sends while the device waits is exposed, the rest is hidden."""
    used = {name: spans for name, spans in trace.lanes.items() if spans}
    waits = used.get("exposed", [])
    step_ms = sum(span.ms for name in DEVICE for span in used.get(name, []))
    figure = Figure(figsize=(12, 1.7 + 0.45 * len(used)), layout="constrained")
    axes = figure.subplots()
    for row, (name, spans) in enumerate(used.items()):
        parts = [(DEVICE.get(name, HIDDEN), spans)]
        if name not in DEVICE:
            parts.append((DEVICE["exposed"], list(common(spans, waits))))
        for what, drawn in parts:
            bars = [(span.begin_ms, span.ms) for span in drawn]
            axes.broken_barh(bars, (row + 0.1, 0.8), facecolor=LANE_COLOURS[what], linewidth=0, snap=False)
    axes.set(xlim=between_ms or (0, step_ms), ylim=(len(used), 0), xlabel="ms")
    axes.set_yticks([row + 0.5 for row in range(len(used))], list(used))
    total = {text: sum(span.ms for span in used[name]) for name, text in DEVICE.items() if name in used}
    links = [name for name in used if name not in DEVICE]
    handles = [Patch(color=LANE_COLOURS[text], label=f"{text}: {ms:,.1f} ms") for text, ms in total.items()]
    handles += [Patch(color=LANE_COLOURS[HIDDEN], label=HIDDEN)] if links else []
    figure.suptitle(f"{trace.title}: a step of {step_ms:,.1f} ms, as replayed", fontsize="medium")
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    return figure


def common(spans: Sequence[Span], others: Sequence[Span]) -> Iterator[Span]:
    """The times that are in both of two ordered lists of spans.

    >>> list(common([Span(0, 4), Span(6, 2)], [Span(1, 2), Span(3.5, 3)]))
    [Span(begin_ms=1, ms=2), Span(begin_ms=3.5, ms=0.5), Span(begin_ms=6, ms=0.5)]
    """
    at = 0
    for span in spans:
        while at < len(others) and others[at].end_ms <= span.begin_ms:
            at += 1
        for other in others[at:]:
            if other.begin_ms >= span.end_ms:
                break
            begin_ms = max(span.begin_ms, other.begin_ms)
            yield Span(begin_ms, min(span.end_ms, other.end_ms) - begin_ms)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = parsers.lanes()
    options = parser.parse_args(arguments)
    draw_file(parser, options, read, lambda trace, path: draw(lanes(trace, options.between), path))


if __name__ == "__main__":
    run_command(main)
