"""Text as tokens: what a step trains on depends on the seed and its number alone."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.training.text import Text, Tokens, drawn, spread_evenly

TEXT = "Wörter, words, 言葉;\nand 🙂 more words.\n" * 20


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text with characters of one to four bytes."""
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(TEXT)
    return path


def test_characters_are_numbered_in_their_order(path: Path) -> None:
    """Tokens are indices into the sorted characters of the whole corpus, and decode to the text."""
    text = Text.read(path, "chars")
    assert text.codec.decode(range(text.codec.vocab)) == "".join(sorted(set(TEXT)))
    assert text.codec.vocab == len(set(TEXT))
    assert text.codec.decode(text.tokens_N.tolist()) == TEXT
    assert text.codec.encode(TEXT) == text.tokens_N.tolist()
    assert text.codec.encode("w€w") == text.codec.encode("ww"), "a character that the corpus lacks is left out"


def test_bytes_are_their_values(path: Path) -> None:
    """Tokens are the bytes of the file, and decode to the text."""
    text = Text.read(path, "bytes")
    assert bytes(text.tokens_N) == TEXT.encode()
    assert (text.codec.vocab, text.codec.decode(text.codec.encode(TEXT))) == (256, TEXT)
    assert text.sha256 == Text.read(path, "chars").sha256


def test_the_tail_is_held_out(path: Path) -> None:
    """Training and validation are the text without a gap, and the last tenth is for validation."""
    text = Text.read(path, "bytes")
    np.testing.assert_array_equal(np.concatenate([text.training_N, text.validation_N]), text.tokens_N)
    assert len(text.validation_N) == pytest.approx(0.1 * len(text.tokens_N), abs=1)


@given(st.integers(0, 2**32), st.integers(0, 10**9), st.integers(1, 4))
def test_every_process_sees_the_same_batch(seed: int, index: int, processes: int) -> None:
    """The rows that each of several processes reads are, together, the batch that one process reads."""
    tokens_N = np.arange(1000)
    whole = drawn(tokens_N, seed, index, 12, 16)[:, :]
    each = 12 // processes
    parts = [drawn(tokens_N, seed, index, 12, 16)[each * i : each * (i + 1), slice(None)] for i in range(processes)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert whole.shape == drawn(tokens_N, seed, index, 12, 16).shape == (12, 17)
    assert (np.diff(whole) == 1).all(), "a row is consecutive tokens"


def test_batches_are_drawn_anew_from_the_whole_text() -> None:
    """Other steps and other seeds have other batches, the same ones have the same, and every start occurs."""
    tokens_N, sizes = np.arange(40), (8, 16)
    batches = {
        (seed, index): drawn(tokens_N, seed, index, *sizes)[:, :].tobytes() for seed in (0, 1) for index in (0, 1)
    }
    assert len({*batches.values()}) == 4
    assert drawn(tokens_N, 1, 0, *sizes)[:, :].tobytes() == batches[1, 0]
    starts = {int(start) for index in range(100) for start in drawn(tokens_N, 0, index, *sizes)[:, 0:1].ravel()}
    assert starts == {*range(24)}, "the last sequence ends with the last token"


def test_the_numbers_are_those_of_philox() -> None:
    """The first batch is what it always was: a run that began with another version of numpy goes on with its data."""
    assert drawn(np.arange(10**6), 0, 0, 4, 64).starts_B.tolist() == [828059, 187826, 195705, 986844]


def test_evaluation_is_spread_over_what_is_held_out() -> None:
    """Its sequences lie at equal distances from the first token to the last one."""
    batches = list(spread_evenly(np.arange(1000), 4, 8, 16))
    starts = np.concatenate([batch.starts_B for batch in batches])
    assert (len(batches), starts[0], batches[-1][:, :].max()) == (4, 0, 999)
    assert {*np.diff(starts)} <= {31, 32}


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        (b"", "bytes", "words.txt is empty; name a text file"),
        (b"ab\xff", "chars", "byte 2 of the corpus .*words.txt is not UTF-8, .* use --tokenizer bytes"),
        (b"a" * 100, "bytes", "holds out 10 of 100 tokens; sequence=16 needs 17 or more"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, content: bytes, kind: Tokens, message: str) -> None:
    """An empty, too short or undecodable text raises an error that says what it lacks."""
    path = tmp_path / "words.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Text.read(path, kind).require_sequences(16)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """A missing file raises an error that names it."""
    with pytest.raises(ValueError, match=r"none.txt cannot be read: No such file or directory; name a text file"):
        Text.read(tmp_path / "none.txt", "chars")
