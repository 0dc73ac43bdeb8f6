"""Loss curves of training runs, and their differences: every run is there, and only what compares is compared."""

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

from benchmarks.training.log import SCHEMA_VERSION as WRITTEN
from results.figures.losses import labels_of, largest_difference, loss_curves, rounding_bound, what_was_trained
from results.records.training import SCHEMA_VERSION, read_training
from strategies import PRESETS
from strategies.checking.bounds import rounding_bound as checked_bound
from tests.processes import ROOT
from tests.results.documents import STEPS, log

EXAMPLES = ROOT / "docs" / "examples" / "training"
SHAKESPEARE = ROOT / "docs" / "examples" / "shakespeare"


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    """Logs of three strategies, the reference last."""
    return [log(tmp_path, "fsdp", "fsdp=8", 1e-3), log(tmp_path, "data", "data=8", 1e-4), log(tmp_path)]


def test_readers_and_writers_agree_on_the_schema() -> None:
    """`results` must not import what writes the logs, so the number stands in two places."""
    assert SCHEMA_VERSION == WRITTEN


def texts(axes: Axes) -> list[str]:
    """The texts of the legend of a panel."""
    legend = axes.get_legend()
    return [text.get_text() for text in legend.get_texts()] if legend else []


def test_one_curve_stands_for_all_that_lie_on_it(logs: list[Path]) -> None:
    """With `single` among the runs both of its losses are drawn, and those of no other; without it, those of each."""
    first, second = loss_curves(read_training(logs)).axes
    assert texts(first) == ["single data=1", "training loss", "validation loss"]
    drawn = [np.asarray(line.get_xydata()) for line in first.get_lines()]
    assert [len(points) for points in drawn] == [5, 1]
    np.testing.assert_allclose(drawn[0][:, 1], 5 / np.sqrt(STEPS))
    assert [label.get_text() for label in second.get_yticklabels()] == ["data data=8", "fsdp fsdp=8"]
    (alone,) = loss_curves(read_training(logs[:2])).axes
    assert texts(alone) == ["data data=8", "fsdp fsdp=8", "training loss", "validation loss"]
    drawn = [np.asarray(line.get_xydata()) for line in alone.get_lines()]
    assert [len(points) for points in drawn] == [5, 1] * 2
    np.testing.assert_allclose(drawn[2][:, 1], 5 / np.sqrt(STEPS) + 1e-3 * (STEPS // 10 % 2))


def test_differences_are_the_largest_of_all_steps(logs: list[Path]) -> None:
    """On the line of each run but `single`: of the training loss, and of the validation loss."""
    axes = loss_curves(read_training(logs)).axes[1]
    points = [np.asarray(line.get_xydata())[0].tolist() for line in axes.get_lines()]
    assert points == [pytest.approx(point, rel=1e-6) for point in ([1e-4, 0], [1e-4, 0], [1e-3, 1], [1e-3, 1])]


def test_what_rounding_explains_is_what_the_benchmarks_accept(tmp_path: Path) -> None:
    """The bound with which each case is checked, times steps and loss; without sizes of the model there is none."""
    sizes = {"layers": 8, "embed": 128, "vocab": 256, "sequence": 64, "mlp": None}
    fast, single = log(tmp_path, "data", "data=8", 1e-4, model=sizes), log(tmp_path, model=sizes)
    runs = read_training([fast, single])
    bound = checked_bound(PRESETS["nano"], 16, "float32")
    assert rounding_bound(runs[0].facts) == pytest.approx(bound)
    *_, tick = loss_curves(runs).axes[1].get_lines()
    at = largest_difference(runs[0].steps, runs[1].steps)
    assert np.asarray(tick.get_xdata())[0] == pytest.approx(at.step * bound * at.loss)
    assert rounding_bound(read_training([log(tmp_path / "old")])[0].facts) is None
    half = log(tmp_path / "half", model=sizes, training={"batch_size": 16, "learning_rate": 1e-3, "dtype": "bfloat16"})
    assert rounding_bound(read_training([half])[0].facts) is None


def test_the_title_says_what_the_runs_share(tmp_path: Path) -> None:
    """What differs between the runs is not in the title, and the corpus is named without its folder."""
    training = {"batch_size": 16, "learning_rate": 2e-3}
    runs = read_training([log(tmp_path), log(tmp_path, "data", "data=8", training=training)])
    title = what_was_trained(runs)
    assert title == ["nano (1.6M parameters)", "16 sequences a step", "characters of words.txt", "on cpu"]


def test_a_run_that_moved_is_named_by_all_its_strategies(tmp_path: Path) -> None:
    """A run that was resumed under another strategy is named by both; two of the same name by their folders."""
    path = log(tmp_path, "fsdp", "fsdp=8")
    first = json.loads(path.read_text().splitlines()[0])
    with path.open("a") as file:
        file.write(json.dumps(first | {"strategy": "tensor", "mesh": "tensor=8"}) + "\n" + '{"kind": "ste')
    (axes,) = loss_curves(read_training([path])).axes
    assert texts(axes)[0] == "fsdp fsdp=8, then tensor tensor=8"
    twins = read_training([log(tmp_path / "a"), log(tmp_path / "b").rename(tmp_path / "b" / "log.jsonl")])
    assert labels_of(twins) == ["single data=1 (single-data=1)", "single data=1 (b)"]


def test_a_loss_may_be_unknown(tmp_path: Path) -> None:
    """It is null in the log of a run that failed."""
    path = log(tmp_path)
    path.write_text(path.read_text() + '{"kind": "step", "step": 60, "loss": null}\n')
    assert len(read_training([path])[0].steps) == 6


def test_the_examples_train_alike() -> None:
    """The committed logs have all strategies; each stays within 0.001 of `single` in training and validation loss."""
    runs = {run.facts.strategy: run for run in read_training(sorted(EXAMPLES.glob("*/log.jsonl")))}
    assert len(runs) == 11
    for run in runs.values():
        for losses, expected in ((run.steps, runs["single"].steps), (run.evaluations, runs["single"].evaluations)):
            assert losses["step"].tolist() == expected["step"].tolist()
            assert losses["step"].max() == 300
            np.testing.assert_allclose(losses["loss"], expected["loss"], atol=1e-3)


def test_the_recipe_of_nanogpt_ends_where_it_should() -> None:
    """The committed logs are of that recipe. Strategies end within 0.01 of `single`, and it within 0.02 of nanoGPT.

    1.891 is what nanoGPT's own model and loop reach on this text (docs/experiments).
    """
    runs = {run.facts.strategy: run for run in read_training(sorted(SHAKESPEARE.glob("*/log.jsonl")))}
    assert runs.keys() == {"single", "fsdp", "pipeline", "three_d"}
    sizes = {"layers": 4, "heads": 4, "embed": 128, "sequence": 64}
    recipe = {"batch_size": 12, "learning_rate": 1e-3, "final_learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.99}
    losses = {}
    for name, run in runs.items():
        facts = json.loads(run.path.read_text().partition("\n")[0])
        assert {**facts["model"], **sizes} == facts["model"]
        assert {**facts["training"], **recipe} == facts["training"]
        assert run.facts.corpus.tokens == "chars"
        (losses[name],) = run.evaluations.loc[run.evaluations["step"] == 2000, "loss"]
    assert losses["single"] <= 1.891 + 0.02
    assert max(abs(loss - losses["single"]) for loss in losses.values()) < 0.01
