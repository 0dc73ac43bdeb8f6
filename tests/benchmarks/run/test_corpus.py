"""The training text: the bytes of a file, split into sequences without gaps or repetition, as tokens."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.run.corpus import batch, read_corpus, spread
from strategies import PRESETS, GPTConfig

CONFIG = GPTConfig(layers=1, embed=8, heads=1, vocab=256, sequence=16)


def test_default_is_prose() -> None:
    """The default text is English prose of more than 100,000 bytes."""
    text = read_corpus(None, CONFIG).tobytes().decode()
    assert len(text) > 100_000
    assert "Assert statements are a convenient way" in text


def test_the_text_is_the_bytes_of_the_file(tmp_path: Path) -> None:
    """Whatever the bytes."""
    path = tmp_path / "corpus.txt"
    path.write_bytes(bytes(range(256)))
    assert read_corpus(path, CONFIG).tolist() == list(range(256))


@given(length=st.integers(17, 200), index=st.integers(0, 50), batch_size=st.integers(1, 8))
def test_sequences_are_stretches_of_the_text(length: int, index: int, batch_size: int) -> None:
    """A sequence is one contiguous stretch of the text, including its last target, also where the text wraps around."""
    corpus_N = (np.arange(length) % 256).astype(np.uint8)
    batch_BS = batch(corpus_N, index, batch_size, CONFIG)[:, :]
    assert batch_BS.shape == (batch_size, 17)
    assert batch_BS.dtype == np.int32
    assert (np.diff(bytes_of(batch_BS)) % 256 == 1).all()


def bytes_of(tokens: np.ndarray) -> np.ndarray:
    """The bytes whose tokens these are."""
    return np.argsort(spread(CONFIG.vocab))[tokens]


@given(vocab=st.integers(256, 200_000))
def test_bytes_have_tokens_of_their_own(vocab: int) -> None:
    """Each byte has another token of the vocabulary."""
    assert len({*spread(vocab).tolist()} & {*range(vocab)}) == 256


@pytest.mark.parametrize("vocab", [256, 2048, 50_304, 128_256, 201_088])
def test_every_shard_of_the_vocabulary_is_looked_up(vocab: int) -> None:
    """By the first batch of the default text, on 16 devices that split a vocabulary; ASCII is below 128."""
    config = dataclasses.replace(PRESETS["nano"], vocab=vocab)
    tokens = batch(read_corpus(None, config), 0, 16, config)[:, :]
    assert {*(tokens * 16 // vocab).flat} == {*range(16)}


def test_text_is_read_on() -> None:
    """A sequence begins where the one before it ends, so no text repeats before all of it was used."""
    corpus_N = np.arange(100, dtype=np.uint8)
    first, second = (bytes_of(batch(corpus_N, index, 2, CONFIG)[:, :]) for index in (0, 1))
    assert [*first[:, 0], *second[:, 0]] == [0, 16, 32, 48]


@pytest.mark.parametrize(
    ("vocab", "text", "problem"),
    [
        (255, b"", "vocab=255 does not hold the 256 byte values of text; use 256 or more"),
        (256, None, r"text\.txt cannot be read: No such file"),
        (256, b"", r"text\.txt has 0 bytes; sequence=16 needs 17 or more"),
        (256, b"a" * 16, r"text\.txt has 16 bytes; sequence=16 needs 17 or more"),
    ],
)
def test_a_text_without_a_sequence_is_refused(tmp_path: Path, vocab: int, text: bytes | None, problem: str) -> None:
    """A vocabulary that is too small, a missing file, or a text without one sequence and its last target."""
    path = tmp_path / "text.txt"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(ValueError, match=problem):
        read_corpus(path, dataclasses.replace(CONFIG, vocab=vocab))


def test_a_text_shorter_than_a_batch_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A text that repeats within a batch, whose loss falls too fast, prints a warning with both lengths."""
    path = tmp_path / "short.txt"
    path.write_bytes(bytes(1000))
    config = PRESETS["nano"]
    message = "has 1,000 bytes and a batch of 16 sequences of 64 tokens takes 1,025: its text repeats within a batch"
    assert len(read_corpus(path, config, 15)) == 1000
    assert capsys.readouterr().err == ""
    assert len(read_corpus(path, config, 16)) == 1000
    assert message in capsys.readouterr().err
