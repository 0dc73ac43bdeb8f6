"""`meshmark export --to-huggingface` and `meshmark train --init`: weights of a run, with which another one begins."""

import importlib
import json
import math
import sys
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest

from benchmarks.training.plan import CHECKPOINTS
from benchmarks.training.text import TOKENIZER
from strategies.huggingface import safetensors
from strategies.huggingface.folder import CONFIG, FILE
from tests.benchmarks.training.small_run import OFTEN, SMALL, lines, losses
from tests.commands import command
from tests.strategies.equality import ROUNDING

train, export = command("train"), command("export")


def test_an_exported_run_goes_on_with_its_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under another strategy, without options of the model: the first validation loss is the last one of the run.

    A weight that is not finite is named, and nothing is trained.
    """
    first, second, folder = tmp_path / "first", tmp_path / "second", tmp_path / "folder"
    begin = [*OFTEN, "--steps=1", "--batch-size=8"]
    assert train(["--preset=nano-llama", "--model=key_heads=2", *SMALL, *begin, f"--out={first}"]) == 0
    assert export([str(first / CHECKPOINTS), f"--to-huggingface={folder}"]) == 0
    others = [*begin, f"--init={folder}", f"--out={second}"]
    assert train(["--strategy=pipeline", "--mesh=pipeline=2", *others]) == 0
    assert losses(second)["evaluation", 0] == pytest.approx(losses(first)["evaluation", 1], rel=ROUNDING["float32"])
    name = [*safetensors.opened(folder / FILE)][-1]
    for wrong in ("nan", "-inf"):
        content = (folder / FILE).read_bytes()
        (folder / FILE).write_bytes(content[:-4] + np.float32(wrong).tobytes())
        assert train([*begin, f"--init={folder}", f"--out={tmp_path / wrong}"]) == 5
        assert f"folder: {name} has {wrong} among its weights; name a folder" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        train([*others, "--model=layers=3"])
    assert "config.json has layers=2, which cannot be layers=3" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        export([str(first / CHECKPOINTS), f"--to-huggingface={folder}", "--format=csv"])
    assert "--format is of a run, and --to-huggingface of checkpoints" in capsys.readouterr().err


def changed(folder: Path, **facts: Any) -> Path:
    """The folder with other fields in its config.json."""
    path = folder / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with random weights, which knows 512 tokens and 4,096 positions."""
    where = tmp_path_factory.mktemp("folder")
    out = where / "run"
    model = "--model=layers=2,embed=32,heads=2,key_heads=2,sequence=16,vocab=512"
    assert train(["--preset=nano-llama", model, *OFTEN, "--steps=1", "--batch-size=8", f"--out={out}"]) == 0
    assert export([str(out / CHECKPOINTS), f"--to-huggingface={where / 'llama'}"]) == 0
    return changed(where / "llama", bos_token_id=1, eos_token_id=[2, 3], max_position_embeddings=4096)


def test_special_tokens_and_the_longest_sequence_survive_a_run(folder: Path, tmp_path: Path) -> None:
    """The folder of a run has those of the folder that it began with, also if the run was resumed without it."""
    begin = [*OFTEN, "--batch-size=8", "--decay-steps=2", "--warmup-steps=0", f"--out={tmp_path / 'run'}"]
    assert train([*begin, f"--init={folder}", "--model=sequence=16", "--steps=1"]) == 0
    assert train([*begin, "--steps=2", "--resume"]) == 0
    assert export([str(tmp_path / "run" / CHECKPOINTS), f"--to-huggingface={tmp_path / 'out'}"]) == 0
    assert json.loads((tmp_path / "out" / CONFIG).read_text()) == json.loads((folder / CONFIG).read_text())


@pytest.mark.tokenizers
def test_a_folder_is_trained_on_its_own_tokens(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tokenizer.json says what tokens are: the loss goes on where another run of the folder's tokens ended."""
    package: Any = importlib.import_module("tokenizers")
    corpus, first, second = tmp_path / "text", tmp_path / "first", tmp_path / "second"
    corpus.write_text("".join(topics.values())[:60_000])
    tokenizer = package.Tokenizer(package.models.BPE())
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = package.decoders.ByteLevel()
    trainer = package.trainers.BpeTrainer(
        vocab_size=512, special_tokens=["<s>"], initial_alphabet=package.pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train([str(corpus)], trainer)
    tokenizer.save(str(folder / TOKENIZER))
    begin = [*OFTEN, "--batch-size=8", f"--corpus={corpus}", "--model=sequence=16"]
    assert (
        train([*begin, f"--init={folder}", "--steps=40", "--learning-rate=1e-2", f"--out={first}", "--sample=9"]) == 0
    )
    assert export([str(first / CHECKPOINTS), f"--to-huggingface={tmp_path / 'exported'}"]) == 0
    tokenizer.save(str(tmp_path / "exported" / TOKENIZER))
    assert train([*begin, f"--init={tmp_path / 'exported'}", "--steps=1", f"--out={second}"]) == 0
    assert lines(first)[0]["corpus"]["tokens"] == "init"
    assert lines(first)[0]["training_tokens"] < 30_000, "a token is several bytes"
    before, after = losses(first)["evaluation", 0], losses(first)["evaluation", 40]
    assert before == pytest.approx(math.log(512), abs=0.3)
    assert after < before - 0.9
    assert losses(second)["evaluation", 0] == pytest.approx(after, rel=ROUNDING["float32"])
    assert losses(second)["step", 1] == pytest.approx(after, abs=0.5)
    with pytest.raises(SystemExit, match="2"):
        train([*begin, f"--out={first}", "--resume", "--steps=41"])
    assert "--tokenizer" in capsys.readouterr().err


def test_a_tokenizer_that_cannot_be_read_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the package, the message says how to install it; bytes need neither."""
    begin = [f"--init={folder}", "--model=sequence=16", "--steps=1", *OFTEN, f"--out={tmp_path / 'run'}"]
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    (folder / TOKENIZER).write_text("{}")
    with pytest.raises(SystemExit, match="2"):
        train(begin)
    assert "tokenizer.json needs the package tokenizers: in the checkout, pip install" in capsys.readouterr().err
    assert train([*begin, "--tokenizer=bytes"]) == 0
    (folder / TOKENIZER).unlink()
    with pytest.raises(SystemExit, match="2"):
        train([*begin, "--tokenizer=init"])
    assert "tokenizer.json does not exist; use bytes or chars" in capsys.readouterr().err
