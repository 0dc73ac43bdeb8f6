"""`meshmark train --resume`: the plan of a run is that of the checkpoint. Nothing is built here."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cli.commands import COMMANDS
from benchmarks.training.plan import CHECKPOINTS, Plan, checkpoint_of
from strategies.checkpoints.info import INFO, CheckpointInfo, as_text
from tests.benchmarks.training.small_run import OFTEN, RECIPE, RUN, SMALL

MIXTURE = ("--preset=nano-moe", "--model=key_heads=2,balance_loss=0.1", "--microbatches=2")


def planned(out: Path, *options: str) -> Plan:
    """The plan of a run; one that is resumed continues what is in its folder."""
    plan = Plan.of(COMMANDS["train"].parser("train").parse_args([*options, f"--out={out}"]))
    if "--resume" in options:
        plan.require_continues(checkpoint_of(out))
    return plan


def written(plan: Plan, metadata: dict[str, Any]) -> None:
    """Write what a checkpoint of a run says of itself; no array is read here."""
    counts: dict[str, Any] = {"position": 4, "step": 4, "devices": 1, "compression": "none", "scalars": {"count": 4}}
    none: dict[str, Any] = {"arrays": {}, "array_checksums": {}, "chunk_checksums": {}}
    path = plan.out / CHECKPOINTS / "4" / INFO
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_text(CheckpointInfo(config=plan.case.config, metadata=metadata, **counts, **none)))


@pytest.fixture
def mixture(tmp_path: Path) -> Plan:
    """The plan of a run of experts with two microbatches, of which there is a checkpoint."""
    plan = planned(tmp_path / "run", *RUN, *MIXTURE)
    written(plan, {"recipe": plan.recipe, "preset": plan.case.preset})
    return plan


@pytest.mark.parametrize("where", ["single data=1", "pipeline pipeline=2", "expert expert=2"])
def test_a_run_is_resumed_with_the_model_that_was_saved(where: str, mixture: Plan) -> None:
    """Under any strategy, whatever its default preset and number of microbatches, with options of sizes or without."""
    strategy, mesh = where.split()
    how = (*OFTEN, *RECIPE, f"--strategy={strategy}", f"--mesh={mesh}", "--batch-size=8", "--resume")
    for sizes in ((), SMALL):
        plan = planned(mixture.out, *how, *sizes)
        assert (plan.case.config, plan.case.preset) == (mixture.case.config, mixture.case.preset)
        assert plan.train.microbatches == 2
    with pytest.raises(ValueError, match=r"experts=8, not None \(--model experts=...\); .*resume it with its own"):
        planned(mixture.out, *how, *SMALL, "--preset=nano")


def test_microbatches_decide_a_balance_loss(mixture: Plan) -> None:
    """Experts are balanced over each microbatch: another number is another run, as is one that nobody knows."""
    with pytest.raises(ValueError, match=r"has microbatches=2, not 4 \(--microbatches\); resume it with its"):
        planned(mixture.out, *RUN, "--microbatches=4", "--resume")
    before = {name: value for name, value in mixture.recipe.items() if name != "microbatches"}
    written(mixture, {"recipe": before})  # as earlier versions did
    with pytest.raises(ValueError, match=r"does not say its number of microbatches, .*; pass --microbatches"):
        planned(mixture.out, *RUN, "--resume")
    assert planned(mixture.out, *RUN, "--microbatches=2", "--resume").case.preset.startswith("the saved model")


def test_microbatches_of_other_models_may_change(tmp_path: Path) -> None:
    """Without a balance loss microbatches decide no loss: a resumed run has those of its options, or the default."""
    plan = planned(tmp_path / "run", *RUN, *MIXTURE, "--model=balance_loss=0")
    written(plan, {"recipe": plan.recipe, "preset": plan.case.preset})
    for options, expected in ((["--microbatches=4"], 4), ([], 1)):
        assert planned(plan.out, *RUN, *options, "--resume").train.microbatches == expected
    assert replace(plan.case, microbatches=1) == planned(plan.out, *RUN, "--resume").case
