"""The figure of a replayed step as lanes: compute, memory traffic and waits of a device, and what its links send."""

from collections.abc import Iterator, Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from results.figures.frame import PLAIN, Style, described, legend, opened
from results.figures.palette import LANE_COLOURS
from results.records.traces import FORWARD, PASSES, Span, Trace

DEVICE = {
    "compute": "compute",
    "memory": "memory",
    "exposed": "exposed communication",
    "idle": "pipeline bubble",
    "host": "waits for the host",
}
"""Lanes of the device's own queue, in the trace and in the legend; the others are links."""
HIDDEN = "hidden communication"
COMPUTE_FORWARD = "compute, forward"
"""The part of a predicted step's compute that is in its forward passes."""

LaneBars = list[tuple[str, Sequence[Span]]]
"""What a row shows, by the names of the legend."""


def lanes(trace: Trace, between_ms: tuple[float, float] | None = None, style: Style = PLAIN) -> Figure:
    """Draw the step, or a part of it. What a link sends while the device waits is exposed, the rest is hidden."""
    processes = trace.processes
    rows = by_process(processes) if len(processes) > 1 else by_lane(next(iter(processes.values())))
    total = mean_ms(processes)
    step_ms = sum(total.values())
    figure, (axes,) = opened(style, size=(12.0, 1.7 + 0.45 * len(rows)))
    axes.grid(visible=False, axis="y")
    for at, row in enumerate(rows.values()):
        for what, drawn in row:
            bars = [(span.begin_ms, span.ms) for span in drawn]
            axes.broken_barh(bars, (at + 0.1, 0.8), facecolor=LANE_COLOURS[what], linewidth=0, snap=False)
    axes.set(xlim=between_ms or (0, step_ms), ylim=(len(rows), 0), xlabel="ms")
    axes.set_yticks([at + 0.5 for at in range(len(rows))], list(rows))
    names = {"compute": "compute, backward"} if COMPUTE_FORWARD in total else {}
    handles = [
        Patch(color=LANE_COLOURS[text], label=f"{names.get(text, text)}: {ms:,.1f} ms")
        for text, ms in total.items()
        if ms
    ]
    if any(what == HIDDEN for row in rows.values() for what, _ in row):
        handles.append(Patch(color=LANE_COLOURS[HIDDEN], label=HIDDEN))
    legend(figure, handles, below=True)
    return described(figure, style, [f"A step of {step_ms:,.1f} ms, {trace.kind}", trace.title], [])


def mean_ms(processes: Mapping[str, Mapping[str, list[Span]]]) -> dict[str, float]:
    """Milliseconds that a device spends in each of its lanes, the mean of all devices; forward compute is apart."""
    total = {
        text: sum(span.ms for own in processes.values() for span in own.get(name, [])) / len(processes)
        for name, text in DEVICE.items()
    }
    forward_ms = sum(span.ms for own in processes.values() for span in forward(own)) / len(processes)
    if not forward_ms:
        return total
    return {COMPUTE_FORWARD: forward_ms, **total, "compute": total["compute"] - forward_ms}


def by_lane(own: Mapping[str, list[Span]]) -> dict[str, LaneBars]:
    """A row for each lane of a device that has spans."""
    rows: dict[str, LaneBars] = {}
    for name, spans in own.items():
        if name in DEVICE and spans:
            rows[name] = [(DEVICE[name], spans), *([(COMPUTE_FORWARD, forward(own))] if name == "compute" else [])]
        elif spans and name not in (PASSES, FORWARD):
            rows[name] = [(HIDDEN, spans), (DEVICE["exposed"], list(common(spans, own.get("exposed", []))))]
    return rows


def by_process(processes: Mapping[str, Mapping[str, list[Span]]]) -> dict[str, LaneBars]:
    """A row for each stage, with all that its device does."""
    return {
        process: [*((text, own[name]) for name, text in DEVICE.items() if name in own), (COMPUTE_FORWARD, forward(own))]
        for process, own in processes.items()
    }


def forward(own: Mapping[str, Sequence[Span]]) -> list[Span]:
    """Return the compute of a device that is in forward passes; a replay does not name its passes."""
    return list(common(own.get("compute", []), own.get(FORWARD, [])))


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
