"""Options of `meshmark train` that cannot work are refused before anything is compiled or written."""

from pathlib import Path

import pytest

from benchmarks.training.plan import LOG
from tests.benchmarks.training.small_run import SMALL
from tests.commands import assert_refused

pytestmark = pytest.mark.usefixtures("_built_once")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--strategy=three_d --devices=8", r"three_d on 8 devices has \d+ meshes; choose"),
        (
            "--strategy=fsdp --devices=1",
            r"for --devices 1 \(fsdp uses fsdp\); name one by --mesh, or another number by --devices",
        ),
        ("--strategy=fsdp --mesh=fsdp=3", "fsdp=3"),
        ("--strategy=fsdp --devices=2 --mesh=fsdp=2", "--mesh says how many devices it takes"),
        ("--strategy=fsdp --devices=2 --option=schedule=gpipe", "--option schedule changes none of the selected steps"),
        ("--attention-window=4,8", r"--attention-window \[4, 8\] has several values, and a run trains with one"),
        ("--init=here --preset=nano", "--preset nano and --init here both name a model; remove one of them"),
        ("--init=/dev/null", "/dev/null/config.json"),
        ("--model=experts=2 --routing=one,balanced", r"--routing \['one', 'balanced'\] has several values"),
        ("--routing=one", "routing='one' is for a model with experts; set experts"),
        ("--model=vocab=100", "vocab=100 does not hold the 256 byte values"),
        ("--tokenizer=chars --model=vocab=7", r"--model vocab=7, and the corpus pydoc_data.topics has \d+ characters"),
        ("--decay-steps=5 --warmup-steps=9", "decay_steps=5 ends before warmup_steps=9"),
        ("--temperature=-1", "--temperature -1.0; it must be at least 0"),
        ("--temperature=nan", "--temperature nan; it must be at least 0"),
        ("--learning-rate=nan", "learning_rate=nan; it must be a number of at least 0"),
        ("--clip-norm=nan", "clip_norm=nan; it must be a number above 0"),
        ("--seed=18446744073709551616", "is too large; use at most 9,223,372,036,854,775,807"),
        ("--seed=-1", "'-1' is not a number; use a whole number of at least 0"),
        ("--resume", "--resume: no checkpoint: .* has none, because it does not exist; name the folder of"),
        ("--strategy=fsdp --devices=2 --coordinator=host:1", "go together; --processes, --process-id missing"),
    ],
)
def test_options_that_cannot_work_are_refused(options: str, message: str, tmp_path: Path) -> None:
    """Invalid usage ends with 2 and a line that names the way out, before anything is compiled or written."""
    assert_refused(["train", *SMALL, *options.split(), f"--out={tmp_path / 'run'}"], 2, message)
    assert not (tmp_path / "run" / LOG).exists()
