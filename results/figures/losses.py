"""The loss curves of training runs over one another, and how far each of them is from that of one device."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from results.figures.canvas import parameters, wrapped
from results.figures.palette import GREY, strategy_looks
from results.figures.pictures import plain_ticks
from results.records.training import TrainingRun

REFERENCE = "single"
TOKENS = {"bytes": "bytes", "chars": "characters"}


def loss_curves(runs: Sequence[TrainingRun]) -> Figure:
    """Draw training and validation loss against steps; beside them, if `single` is among the runs, the differences."""
    names = list(strategy_looks(run.facts.strategy for run in runs))
    runs = sorted(runs, key=lambda run: names.index(run.facts.strategy))
    looks = _looks_of(runs)
    reference = next((run for run in runs if run.facts.strategy == REFERENCE), None)
    compared = reference is not None and len(runs) > 1
    figure = Figure(figsize=(12 if compared else 8, 5), layout="constrained")
    first, *others = figure.subplots(1, 2 if compared else 1, squeeze=False)[0]
    for run, look in zip(runs, looks, strict=True):
        _draw(first, run.steps, run.evaluations, look)
    first.set(xlabel="step", ylabel="loss (nats a token)", title="Loss")
    for axes in others:
        for run, look in zip(runs, looks, strict=True):
            if run is not reference and reference is not None:
                pairs = (run.steps, reference.steps), (run.evaluations, reference.evaluations)
                steps, evaluations = (_difference(*pair) for pair in pairs)
                _draw(axes, steps, evaluations, {**look, "linewidth": 1.5})
        axes.set_yscale("log")
        plain_ticks(axes.yaxis)
        axes.set(xlabel="step", ylabel="nats a token", title=f"Largest difference to {REFERENCE} so far")
    lines = [line for text in what_was_trained(runs) for line in wrapped(figure, text, 10)]
    figure.suptitle("\n".join(["Loss of training runs", *lines]), x=0.02, ha="left", fontsize="medium")
    _legend(figure, runs, looks)
    return figure


def what_was_trained(runs: Sequence[TrainingRun]) -> list[str]:
    """Say what all runs have in common."""

    def common(values: list[Any]) -> Any:
        return values[0] if len({*values}) == 1 else None

    facts = [run.facts for run in runs]
    name, count = common([each.preset for each in facts]), common([each.parameters for each in facts])
    batch = common([each.training.batch_size for each in facts])
    rate = common([each.training.learning_rate for each in facts])
    kind = common([each.device_kind for each in facts])
    corpus = facts[0].corpus
    parts = [
        name and f"{name} ({parameters(count)})",
        batch and f"{batch} sequences a step",
        rate and f"learning rate {rate:g}",
        f"{TOKENS[corpus.tokens]} of {Path(corpus.name).name}",
        kind and f"on {kind}",
    ]
    return [", ".join(part for part in parts if part)]


def _difference(losses: pd.DataFrame, reference: pd.DataFrame) -> pd.DataFrame:
    """The largest distance so far of losses from those of the reference at the same steps, from the first that differ.

    Of single steps it jumps: many losses are equal to the last bit.
    """
    both = losses.merge(reference, on="step", suffixes=("", "_reference"))
    furthest = (both["loss"] - both["loss_reference"]).abs().cummax()
    return both.assign(loss=furthest)[furthest > 0]


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
    style = {"linestyle": "", "markersize": size, "markeredgecolor": "white", "markeredgewidth": 0.5, "zorder": 3}
    axes.plot(evaluations["step"], evaluations["loss"], color=look["color"], marker=look["marker"], **style)


def _legend(figure: Figure, runs: Sequence[TrainingRun], looks: Sequence[dict[str, Any]]) -> None:
    """Name each run by strategy and mesh, and by its folder where several runs have the same."""
    names = [", then ".join(run.spread) for run in runs]
    labels = [
        f"{name} ({run.path.parent.name})" if names.count(name) > 1 else name
        for name, run in zip(names, runs, strict=True)
    ]
    handles = [
        Line2D([], [], label=label, **{**look, "linewidth": 1.5}) for label, look in zip(labels, looks, strict=True)
    ]
    kinds = [
        Line2D([], [], color=GREY, linewidth=1, label="training loss"),
        Line2D([], [], color=GREY, marker="o", linestyle="", label="validation loss"),
    ]
    figure.legend(handles=[*handles, *kinds], loc="outside right center", frameon=False)
