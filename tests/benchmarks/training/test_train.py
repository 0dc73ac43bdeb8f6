"""`meshmark train`: a run that is interrupted and resumed, also elsewhere, is the run that was not."""

import errno
import json
import math
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from benchmarks.training.log import as_line, read_lines
from benchmarks.training.plan import CHECKPOINTS, LOG
from strategies.checkpoints.info import CHECKSUM, INFO, checksum, positions
from tests.benchmarks.training.small_run import DATA, FSDP, RUN, SMALL, STEPS, lines, losses
from tests.commands import command
from tests.processes import LIMIT_SECONDS, ROOT, environment, finish_together, free_port, start_together
from tests.strategies.equality import ROUNDING

main = command("train")

STEP = {"kind": "step", "step": 1, "loss": 2.0, "grad_norm": 1.0, "learning_rate": 1e-3, "tokens_per_second": 9.0}

pytestmark = pytest.mark.usefixtures("_built_once")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never interrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert main([*FSDP, *RUN, f"--steps={STEPS}", f"--out={out}"]) == 0
    return out


@pytest.fixture
def half(whole: Path, tmp_path: Path) -> Path:
    """The same run as a machine that failed has left it: a checkpoint, and a log that is further on."""
    out = tmp_path / "half"
    shutil.copytree(whole, out)
    for position in positions(out / CHECKPOINTS)[1:]:
        shutil.rmtree(out / CHECKPOINTS / str(position))
    with (out / LOG).open("a") as log:
        log.write('{"kind": "step", "st')
    return out


def test_a_log_has_what_was_run_and_every_loss(whole: Path) -> None:
    """The first line says what was run; losses fall from that of a uniform guess; the rate follows its schedule."""
    first, *others = lines(whole)
    assert (first["kind"], first["strategy"], first["mesh"], first["model"]["embed"]) == ("run", "fsdp", "fsdp=2", 32)
    assert [key for key in losses(whole) if key[0] == "step"] == [("step", step) for step in range(1, STEPS + 1)]
    assert [key for key in losses(whole) if key[0] == "evaluation"] == [("evaluation", at) for at in (0, 4, 8, 12)]
    assert losses(whole)["evaluation", 0] == pytest.approx(math.log(256), rel=0.02)
    assert losses(whole)["evaluation", 12] < losses(whole)["evaluation", 0] - 0.05
    rates = [line["learning_rate"] for line in others if line["kind"] == "step"]
    assert rates[:4] == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3])
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert all(line["tokens_per_second"] > 0 for line in others if line["kind"] == "step")
    assert positions(whole / CHECKPOINTS) == [4, 8, 12]


def test_resumed_under_the_same_strategy_it_is_the_same_run(whole: Path, half: Path) -> None:
    """Every loss after the checkpoint equals that of the uninterrupted run bit for bit, and the log has each once."""
    assert main([*FSDP, *RUN, f"--steps={STEPS}", f"--out={half}", "--resume"]) == 0
    assert losses(half) == losses(whole)
    assert main([*FSDP, *RUN, f"--steps={STEPS}", f"--out={half}", "--resume"]) == 0, "nothing is left to do"
    assert losses(half) == losses(whole)
    assert [line["resumed_after"] for line in lines(half) if line["kind"] == "run"] == [0, 4, 12]


def test_a_run_goes_on_when_its_output_is_lost(
    half: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run whose stdout is a full disk, or a pipe that is closed, trains to its end, saves, and says so on stderr."""
    for steps, lost, status in ((5, OSError(errno.ENOSPC, "disk full"), 5), (6, BrokenPipeError(32, "no reader"), 141)):
        with monkeypatch.context() as full:
            full.setattr("sys.stdout.flush", Mock(side_effect=lost))
            assert main([*FSDP, *RUN, f"--steps={steps}", f"--out={half}", "--resume"]) == status
        assert capsys.readouterr().err.count(f"stdout cannot be written: {lost.strerror}; training goes on") == 1
        assert positions(half / CHECKPOINTS)[-1] == steps
        assert max(step for _, step in losses(half)) == steps


@pytest.mark.factorisations  # every day checkpoints/test_checkpoints.py goes on under others
def test_resumed_under_another_strategy_it_is_the_same_run_to_rounding(whole: Path, half: Path) -> None:
    """Every loss after the checkpoint equals that of the uninterrupted run to float32 rounding, on another mesh."""
    others = ("--strategy=pipeline", "--mesh=pipeline=2", "--keep=2")
    assert main([*others, *RUN, f"--steps={STEPS}", f"--out={half}", "--resume"]) == 0
    assert [*losses(half)] == [*losses(whole)]

    np.testing.assert_allclose([*losses(half).values()], [*losses(whole).values()], rtol=ROUNDING["float32"])
    assert positions(half / CHECKPOINTS) == [8, 12]


@pytest.mark.usefixtures("_interruptible")
def test_ctrl_c_saves_first(whole: Path, tmp_path: Path) -> None:
    """Ctrl-C saves the state after the step that runs and ends with 130; resumed, the run ends as the whole one did."""
    out = tmp_path / "stopped"
    command = [sys.executable, "-m", "benchmarks", "train", *FSDP, *RUN, f"--out={out}", "--checkpoint-every=1000"]
    with subprocess.Popen(
        [*command, "--steps=100000"], cwd=ROOT, env=environment(), stdout=-1, stderr=-1, text=True
    ) as process:
        assert process.stdout
        while not process.stdout.readline().startswith("step 2/"):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 130, errors
    assert "saving a checkpoint first" in errors
    assert "Traceback" not in errors
    (stopped,) = positions(out / CHECKPOINTS)
    assert said.endswith(f"stopped after step {stopped}; continue with --resume\n")
    assert max(step for _, step in losses(out)) == stopped
    for key in losses(out).keys() & losses(whole).keys():
        assert losses(out)[key] == pytest.approx(losses(whole)[key], rel=ROUNDING["float32"])
    assert main([*FSDP, *RUN, f"--steps={stopped + 1}", f"--out={out}", "--resume"]) == 0
    assert max(step for _, step in losses(out)) == stopped + 1


def test_a_signal_to_any_process_stops_all(whole: Path, tmp_path: Path) -> None:
    """SIGTERM to the second of two processes ends both with 130, after a checkpoint of the same step.

    Until then, two processes with a device each have the losses of one process with two; the first prints and logs.
    """
    out = tmp_path / "run"
    join = (f"--coordinator=127.0.0.1:{free_port()}", "--processes=2", "--process-id={}")
    command = ("-m", "benchmarks", "train", *FSDP, *RUN, *join, f"--out={out}", "--checkpoint-every=100000")
    started = start_together(2, 1, *command, "--steps=100000")
    assert started[0].stdout
    while not (line := started[0].stdout.readline()).startswith(f"step {STEPS}/"):
        assert line, finish_together(started)[0].stderr
    started[1].send_signal(signal.SIGTERM)
    first, second = finish_together(started)
    assert (first.returncode, second.returncode) == (130, 130), first.stderr + second.stderr
    assert "step" not in second.stdout
    (stopped,) = positions(out / CHECKPOINTS)
    assert first.stdout.endswith(f"stopped after step {stopped}; continue with --resume\n")
    found = losses(out)
    assert [*found][: len(losses(whole))] == [*losses(whole)]
    for key, expected in losses(whole).items():
        assert found[key] == pytest.approx(expected, rel=ROUNDING["float32"])


@pytest.mark.processes
def test_two_processes_are_one_run(whole: Path, tmp_path: Path) -> None:
    """Two processes with a device each have the losses of one process with two, and draw a sample."""
    join = (f"--coordinator=127.0.0.1:{free_port()}", "--processes=2", "--process-id={}")
    command = ("-m", "benchmarks", "train", *FSDP, *RUN, *join, f"--steps={STEPS}", f"--out={tmp_path / 'run'}")
    first, second = finish_together(start_together(2, 1, *command, "--sample=5"))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "step 12/12: validation loss" in first.stdout
    assert "step" not in second.stdout
    assert [*losses(tmp_path / "run")] == [*losses(whole)]
    np.testing.assert_allclose(
        [*losses(tmp_path / "run").values()], [*losses(whole).values()], rtol=ROUNDING["float32"]
    )


def write_anew(path: Path, facts: dict[str, Any]) -> None:
    """Write other metadata of a checkpoint, with their checksum."""
    others = {name: value for name, value in facts.items() if name != CHECKSUM}
    path.write_text(json.dumps({**others, CHECKSUM: checksum(others)}))


def test_a_field_younger_than_the_checkpoint_has_its_default(half: Path) -> None:
    """A checkpoint that was written before the model had an option is resumed without it, and refused with it."""
    path = half / CHECKPOINTS / "4" / INFO
    facts = json.loads(path.read_text())
    del facts["config"]["attention_window"], facts["metadata"]["recipe"]["attention_window"]
    write_anew(path, facts)
    with pytest.raises(SystemExit, match="2"):
        main([*FSDP, *RUN, f"--steps={STEPS}", f"--out={half}", "--resume", "--attention-window=8"])
    assert main([*FSDP, *RUN, "--steps=4", f"--out={half}", "--resume"]) == 0


def test_only_a_strategy_without_an_option_may_drop_it(half: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run with compressed gradients goes on under a strategy that has no compression, and not under one that has."""
    path = half / CHECKPOINTS / "4" / INFO
    facts = json.loads(path.read_text())
    facts["metadata"]["recipe"] |= {"compression": "onebit", "compression_warmup": 7}
    write_anew(path, facts)
    run = (*RUN, "--steps=4", f"--out={half}", "--resume")
    with pytest.raises(SystemExit, match="2"):
        main([*DATA, *run])
    assert "has compression=onebit, not none (--option compression=...); resume it" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([*DATA, *run, "--option=compression=onebit", "--option=compression_warmup=8"])
    assert "has compression_warmup=7, not 8 (--option compression_warmup=...); resume it" in capsys.readouterr().err
    assert main([*FSDP, *run]) == 0


def test_a_checkpoint_without_a_recipe_is_not_resumed(half: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A checkpoint that no training run has saved does not say on what it was trained."""
    path = half / CHECKPOINTS / "4" / INFO
    write_anew(path, json.loads(path.read_text()) | {"metadata": {}})
    with pytest.raises(SystemExit, match="2"):
        main([*FSDP, *RUN, f"--steps={STEPS}", f"--out={half}", "--resume"])
    assert "has no recipe of a training run; train into another --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"log.jsonl is a folder, not a file"),
        (b"{}\n\xff", r"line 1 of the log .*log.jsonl lacks kind"),
        (b"\xff\n", r"line 1 of the log .*log.jsonl is cut short or not JSON"),
        (b'{"kind": "evaluation", "step": 0, "loss": 1}\nnull\n', r"line 2 of the log .*log.jsonl is None; it must be"),
        (b'{"kind": "evaluation", "step": -1, "loss": 1}\n', r"line 1 .*log.jsonl: step is -1; it must be a whole"),
        (as_line(STEP | {"z_loss": "a"}).encode(), r"line 1 .*log.jsonl: z_loss is 'a'; it must be a number"),
    ],
    ids=["a folder", "no kind", "not UTF-8", "null", "a step below 0", "a string"],
)
def test_a_log_that_cannot_be_read_is_named(
    half: Path, content: bytes | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A resumed run ends with 5 and a line that says what is wrong with its log, which stays as it is."""
    log = half / LOG
    log.unlink()
    if content is None:
        log.mkdir()
    else:
        log.write_bytes(content)
    assert main([*FSDP, *RUN, f"--steps={STEPS}", f"--out={half}", "--resume"]) == 5
    assert re.search(message, capsys.readouterr().err)
    assert content is None or log.read_bytes() == content


def test_what_layers_add_to_the_loss_is_read(tmp_path: Path) -> None:
    """The log of a mixture, whose steps have the losses of its routers by name, is one that can be continued."""
    (tmp_path / LOG).write_text(as_line(STEP | {"balance_loss": 1.0, "z_loss": math.nan}))
    assert read_lines(tmp_path / LOG) == [STEP | {"balance_loss": 1.0, "z_loss": None}]


def test_a_sample_of_bytes_has_bytes_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a vocabulary beyond the byte values, a sample is drawn from the tokens that a text has.

    One device draws it, also after training with an option that only several devices have.
    """
    master = ("--strategy=zero1", "--mesh=data=2", "--dtype=bfloat16", "--option=master=float32")
    assert main([*SMALL, *master, "--model=vocab=512", "--steps=1", "--sample=40", f"--out={tmp_path / 'run'}"]) == 0
    assert "step 1/1: validation loss" in capsys.readouterr().out


def test_characters_are_learnt_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a text that repeats, a greedy sample repeats it, from the characters of the corpus alone.

    Trained with compressed gradients, whose quantisation errors one device has no use for.
    """
    corpus, out = tmp_path / "corpus.txt", tmp_path / "run"
    corpus.write_text("abcdefg\n" * 500)
    text = (f"--corpus={corpus}", "--tokenizer=chars", "--sample=24", "--temperature=0")
    often = ("--log-every=60", "--evaluate-every=60", "--evaluation-batches=2")
    compressed = ("--strategy=data", "--mesh=data=2", "--option=compression=int8")
    assert main([*SMALL, *compressed, *often, *text, "--steps=60", "--learning-rate=1e-2", f"--out={out}"]) == 0
    assert capsys.readouterr().out.endswith("abcdefg\nabcdefg\nabcdefg\n\n")
    assert lines(out)[0]["model"]["vocab"] == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--resume", "--seed=1"], "has seed=0, not 1 (--seed); resume it with its own options, or train into another"),
        (["--resume", "--learning-rate=1"], "has learning_rate=0.001, not 1.0"),
        (["--resume", "--steps=7"], "is at step 12; --steps must be at least 12"),
        (["--resume", "--model=layers=3"], "has layers=2, not 3"),
        (["--resume", "--dtype=bfloat16"], "has dtype=float32, not bfloat16"),
        (["--resume", "--option=reduce_dtype=bfloat16"], "has reduce_dtype=float32, not bfloat16"),
        (["--resume", *DATA, "--option=compression=int8"], "has compression=none, not int8"),
        (["--resume", "--evaluation-batches=3"], "has evaluation_batches=2, not 3"),
        ([], "has a run already; continue it by --resume, or name another --out"),
    ],
)
def test_a_run_is_resumed_as_it_was_begun(
    whole: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What decides the losses may not change; nor is a run overwritten. The log stays as it was."""
    before = (whole / LOG).read_text()
    with pytest.raises(SystemExit, match="2"):
        main([*FSDP, *RUN, f"--steps={STEPS}", f"--out={whole}", *options])
    assert message in capsys.readouterr().err
    assert (whole / LOG).read_text() == before
