"""The loss curve of training runs, and how far each of them is from that of one device."""

import math
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from results.figures.frame import PLAIN, Style, described, opened
from results.figures.marks import plain_ticks
from results.figures.palette import GREY, INK, WHITE, strategy_looks
from results.records.training import Facts, TrainingRun
from results.words import parameters

REFERENCE = "single"
TOKENS = {"bytes": "bytes", "chars": "characters"}


def loss_curves(runs: Sequence[TrainingRun], style: Style = PLAIN) -> Figure:
    """Draw training and validation loss against steps.

    With `single` among the runs, only its losses are drawn, because the others lie on them. Beside them, each other run
    has the largest difference to it.
    """
    names = list(strategy_looks(run.facts.strategy for run in runs))
    runs = sorted(runs, key=lambda run: names.index(run.facts.strategy))
    named = list(zip(labels_of(runs), runs, strict=True))
    reference = next((each for each in named if len(named) > 1 and each[1].facts.strategy == REFERENCE), None)
    drawn = [reference] if reference else named
    size = (13.0 if reference else 8.0, 5.0)
    figure, axes = opened(style, 2 if reference else 1, size, sharex=False, sharey=False)
    looks = _looks_of([run for _, run in drawn])
    for (_, run), look in zip(drawn, looks, strict=True):
        _draw(axes[0], run.steps, run.evaluations, look)
    axes[0].set(xlabel="step", ylabel="loss (nats a token)", title="Loss")
    lines = (look | {"linewidth": 1.5, "label": name} for look, (name, _) in zip(looks, drawn, strict=True))
    kinds = [
        Line2D([], [], color=GREY, linewidth=1, label="training loss"),
        Line2D([], [], color=GREY, marker="o", linestyle="", label="validation loss"),
    ]
    axes[0].legend(handles=[*(Line2D([], [], **line) for line in lines), *kinds], frameon=False)
    if reference:
        _draw_differences(axes[1], reference[1], [each for each in named if each is not reference])
    return described(figure, style, ["Loss of training runs", *what_was_trained(runs)], [])


def _draw_differences(axes: Axes, reference: TrainingRun, named: Sequence[tuple[str, TrainingRun]]) -> None:
    """Draw the largest difference of each run's losses, and what rounding explains of it, a line each."""
    looks = strategy_looks(run.facts.strategy for _, run in named)
    style: dict[str, Any] = {"linestyle": "", "markersize": 8}
    hollow: dict[str, Any] = {"markerfacecolor": WHITE}
    tick: dict[str, Any] = {"marker": "|", "markersize": 12}
    for place, (_, run) in enumerate(named):
        colour, marker = looks[run.facts.strategy]
        training = largest_difference(run.steps, reference.steps)
        validation = largest_difference(run.evaluations, reference.evaluations)
        axes.plot(training.apart, place, color=colour, marker=marker, **style)
        axes.plot(validation.apart, place, color=colour, marker=marker, **style | hollow)
        if bound := rounding_bound(run.facts):
            axes.plot(training.step * bound * training.loss, place, color=INK, **style | tick)
    axes.set_yticks(range(len(named)), [name for name, _ in named], size="small")
    axes.set(xscale="log", xlabel="nats a token", ylim=(len(named) - 0.5, -0.5))
    axes.set_title(f"Largest difference to {REFERENCE} at any step")
    plain_ticks(axes.xaxis)
    handles = [
        Line2D([], [], color=GREY, marker="o", label="training loss", **style),
        Line2D([], [], color=GREY, marker="o", label="validation loss", **style | hollow),
        Line2D([], [], color=INK, label="what rounding explains at that step", **style | tick),
    ]
    axes.legend(handles=handles, loc="upper right", bbox_to_anchor=(1.02, -0.13), ncols=3, frameon=False)


class Difference(NamedTuple):
    """The largest difference of a run's losses to those of the reference: the step, its loss, and how far apart."""

    step: float
    loss: float
    apart: float


def largest_difference(losses: pd.DataFrame, reference: pd.DataFrame) -> Difference:
    """Return the largest difference to the reference at the same steps; NaN if there are none or all are equal."""
    both = losses.merge(reference, on="step", suffixes=("", "_reference")).dropna()
    apart = (both["loss"] - both["loss_reference"]).abs()
    if both.empty or not apart.max() > 0:
        return Difference(math.nan, math.nan, math.nan)
    row = both.iloc[int(apart.to_numpy().argmax())]
    return Difference(row["step"], row["loss_reference"], float(apart.max()))


def rounding_bound(facts: Facts) -> float | None:
    """Return the relative difference that another order of summation explains in one step; it adds up over steps.

    The formula is that of `strategies.checking.bounds.rounding_bound`, with which steps are checked. None if the log
    does not have the sizes of the model.
    """
    model, training = facts.model, facts.training
    if model is None or training.dtype != "float32":
        return None
    longest = max(training.batch_size * model.sequence, model.mlp or 4 * model.embed, model.vocab)
    return math.sqrt(longest * 2 * (4 * model.layers + 2)) * 2**-24


def what_was_trained(runs: Sequence[TrainingRun]) -> list[str]:
    """Say what all runs have in common."""

    def common(path: str) -> Any:
        values = [operator.attrgetter(path)(run.facts) for run in runs]
        return values[0] if len({*values}) == 1 else None

    name, count, kind = map(common, ("preset", "parameters", "device_kind"))
    batch, rate = map(common, ("training.batch_size", "training.learning_rate"))
    corpus = runs[0].facts.corpus
    parts = [
        name and f"{name} ({parameters(count)})",
        batch and f"{batch} sequences a step",
        rate and f"learning rate {rate:g}",
        f"{TOKENS[corpus.tokens]} of {Path(corpus.name).name}",
        kind and f"on {kind}",
    ]
    return [part for part in parts if part]


def _looks_of(runs: Sequence[TrainingRun]) -> list[dict[str, Any]]:
    """How each run is drawn: in the colour of its strategy, and dashed if another run of it is drawn before.

    Curves that lie over one another stay visible, because each is thinner than the one before.
    """
    looks = strategy_looks(run.facts.strategy for run in runs)
    found: list[dict[str, Any]] = []
    styles = "-", "--", "-.", ":"
    for run in runs:
        look = looks[run.facts.strategy]
        before = sum(each["color"] == look.colour and each["marker"] == look.marker for each in found)
        width = 1 + 0.5 * (len(runs) - 1 - len(found))
        found.append(
            {"color": look.colour, "marker": look.marker, "linestyle": styles[before % len(styles)], "linewidth": width}
        )
    return found


def _draw(axes: Axes, steps: pd.DataFrame, evaluations: pd.DataFrame, look: dict[str, Any]) -> None:
    """Draw training losses as a line and validation losses as markers."""
    axes.plot(steps["step"], steps["loss"], **{**look, "marker": ""})
    size = 4 + 1.5 * look["linewidth"]
    style = {"linestyle": "", "markersize": size, "markeredgecolor": WHITE, "markeredgewidth": 0.5, "zorder": 3}
    axes.plot(evaluations["step"], evaluations["loss"], color=look["color"], marker=look["marker"], **style)


def labels_of(runs: Sequence[TrainingRun]) -> list[str]:
    """Name each run by strategy and mesh, and by its folder where several runs have the same."""
    names = [", then ".join(run.spread) for run in runs]
    return [
        f"{name} ({run.path.parent.name})" if names.count(name) > 1 else name
        for name, run in zip(names, runs, strict=True)
    ]
