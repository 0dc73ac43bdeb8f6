"""Text as tokens, one for each byte or each character, with a tail that is held out for validation.

Which tokens a step trains on depends only on the seed and on the number of the step. So every strategy, and every run
that is resumed, sees the same ones, and the number of the step is the whole position in the data.

Dims: N tokens of a text, B sequences in a batch, S tokens of a sequence and its last target (`sequence` + 1).
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Int

from benchmarks.run.corpus import BYTE_VALUES, Sequences, corpus_bytes

Tokens = Literal["bytes", "chars"]
HELD_OUT = 0.1
"""The part of a text that is held out for validation, at its end."""


@dataclass(frozen=True)
class Text:
    """A text as tokens.

    Attributes:
        tokens_N: the whole text.
        kind: what a token is: a byte or a character.
        characters: by token; empty for bytes.
        name: of the file, for messages.
        sha256: of the text's bytes, which identifies it.
    """

    tokens_N: Int[np.ndarray, " N"]
    kind: Tokens
    characters: str
    name: str
    sha256: str

    @classmethod
    def read(cls, path: Path | None, kind: Tokens) -> "Text":
        """Read a file; without one, Python's syntax documentation."""
        name = str(path or "pydoc_data.topics")
        bytes_N = corpus_bytes(path)
        if not len(bytes_N):
            raise ValueError(f"the corpus {name} is empty; name a text file")
        digest = hashlib.sha256(bytes_N.data).hexdigest()
        if kind == "bytes":
            return cls(bytes_N, kind, "", name, digest)
        try:
            text = bytes_N.tobytes().decode()
        except UnicodeDecodeError as error:
            problem = f"byte {error.start:,} of the corpus {name} is not UTF-8"
            raise ValueError(f"{problem}, so it has no characters; use --tokenizer bytes") from error
        points, tokens_N = np.unique(np.frombuffer(text.encode("utf-32-le"), np.uint32), return_inverse=True)
        return cls(tokens_N.astype(np.int32), kind, "".join(map(chr, points)), name, digest)

    @property
    def vocab(self) -> int:
        """How many different tokens there can be."""
        return len(self.characters) or BYTE_VALUES

    @property
    def training_N(self) -> Int[np.ndarray, " n"]:
        """All but the tail that is held out."""
        return self.tokens_N[: round((1 - HELD_OUT) * len(self.tokens_N))]

    @property
    def validation_N(self) -> Int[np.ndarray, " n"]:
        """The tail that is held out."""
        return self.tokens_N[len(self.training_N) :]

    def require_sequences(self, sequence: int) -> None:
        """Check that both parts have a sequence and its last target."""
        if len(self.validation_N) <= sequence:
            held = f"the corpus {self.name} holds out {len(self.validation_N):,} of {len(self.tokens_N):,} tokens"
            raise ValueError(f"{held}; sequence={sequence} needs {sequence + 1:,} or more")

    def encode(self, text: str) -> list[int]:
        """The tokens of a text. Characters that the corpus does not have are left out."""
        if self.kind == "bytes":
            return list(text.encode())
        return [self.characters.index(letter) for letter in text if letter in self.characters]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens. Bytes that are not UTF-8 become replacement characters."""
        if self.kind == "bytes":
            return bytes(tokens).decode(errors="replace")
        return "".join(self.characters[token] for token in tokens)


def drawn(tokens_N: Int[np.ndarray, " N"], seed: int, index: int, batch_size: int, sequence: int) -> Sequences:
    """Batch `index` of a training run: sequences that begin anywhere in the text.

    The generator is counter-based (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") and keyed by seed
    and index, so no batch depends on those before it. Its raw numbers are the same in all versions of numpy.
    """
    numbers_B = np.random.Philox(key=np.array([seed, index], np.uint64)).random_raw(batch_size)
    return Sequences(tokens_N, (numbers_B % np.uint64(len(tokens_N) - sequence)).astype(np.int64), sequence)


def spread_evenly(tokens_N: Int[np.ndarray, " N"], batches: int, batch_size: int, sequence: int) -> Iterator[Sequences]:
    """Batches of sequences at equal distances from the first to the last token, the same for every evaluation."""
    starts = np.linspace(0, len(tokens_N) - sequence - 1, batches * batch_size).astype(np.int64)
    for starts_B in starts.reshape(batches, batch_size):
        yield Sequences(tokens_N, starts_B, sequence)
