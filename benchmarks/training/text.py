"""Text as tokens: bytes, characters, or those of a tokenizer.json. A tail is held out for validation.

Which tokens a step trains on depends only on the seed and on the number of the step. So every strategy, and every run
that is resumed, sees the same ones, and the number of the step is the whole position in the data.

Dims: N tokens of a text, B sequences in a batch, S tokens of a sequence and its last target (`sequence` + 1).
"""

import hashlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Int

from benchmarks.run.corpus import BYTE_VALUES, Sequences, corpus_bytes
from strategies.files import read_bytes

Tokens = Literal["bytes", "chars", "init"]
TOKENIZER = "tokenizer.json"
"""The file of a Hugging Face folder that says what its tokens are."""
HELD_OUT = 0.1
"""The part of a text that is held out for validation, at its end."""


class Codec(NamedTuple):
    """How text becomes tokens, and tokens text.

    Attributes:
        vocab: number of different tokens.
        encode: tokens of a text. Characters that the corpus does not have are left out.
        decode: text of tokens. Bytes that are not UTF-8 become replacement characters.
        sha256: of the tokenizer.json; empty without one.
    """

    vocab: int
    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    sha256: str = ""


BYTES = Codec(BYTE_VALUES, lambda text: list(text.encode()), lambda tokens: bytes(tokens).decode(errors="replace"))


def of_characters(characters: str) -> Codec:
    """Tokens are indices into these characters."""
    numbers = {letter: number for number, letter in enumerate(characters)}
    return Codec(
        len(characters),
        lambda text: [numbers[letter] for letter in text if letter in numbers],
        lambda tokens: "".join(characters[token] for token in tokens),
    )


def of_file(path: Path) -> Codec:
    """The tokens of a tokenizer.json, without those that mark the begin and the end of a text."""
    try:
        package: Any = importlib.import_module("tokenizers")
    except ImportError:
        install = "in the checkout, pip install -e '.[text]'; elsewhere, pip install 'meshmark[text]'"
        raise ValueError(f"{path} needs the package tokenizers: {install}; or pass --tokenizer bytes") from None
    content = read_bytes(path)
    try:
        tokenizer = package.Tokenizer.from_buffer(content)
    except Exception as error:  # the package raises no other type
        raise ValueError(f"{path} is not a tokenizer: {error}; correct it, or pass --tokenizer bytes") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return Codec(
        max(tokenizer.get_vocab().values()) + 1,
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        lambda tokens: tokenizer.decode(list(tokens), skip_special_tokens=False),
        hashlib.sha256(content).hexdigest(),
    )


@dataclass(frozen=True)
class Text:
    """Tokens of a text: bytes, characters, or those of the tokenizer.json of --init, by its kind.

    It has the name of its file, for messages, and the SHA-256 of its bytes, which identifies it.
    """

    tokens_N: Int[np.ndarray, " N"]
    kind: Tokens
    codec: Codec
    name: str
    sha256: str

    @classmethod
    def read(cls, path: Path | None, kind: Tokens, tokenizer: Path | None = None) -> "Text":
        """Read a file; without one, Python's syntax documentation. `tokenizer` is a tokenizer.json."""
        name = str(path or "pydoc_data.topics")
        bytes_N = corpus_bytes(path)
        if not len(bytes_N):
            raise ValueError(f"the corpus {name} is empty; name a text file")
        digest = hashlib.sha256(bytes_N.data).hexdigest()
        if kind == "bytes":
            return cls(bytes_N, kind, BYTES, name, digest)
        try:
            text = bytes_N.tobytes().decode()
        except UnicodeDecodeError as error:
            problem = f"byte {error.start:,} of the corpus {name} is not UTF-8"
            raise ValueError(f"{problem}, so it has no characters; use --tokenizer bytes") from error
        if tokenizer:
            codec = of_file(tokenizer)
            return cls(np.array(codec.encode(text), np.int32), kind, codec, name, digest)
        points, tokens_N = np.unique(np.frombuffer(text.encode("utf-32-le"), np.uint32), return_inverse=True)
        return cls(tokens_N.astype(np.int32), kind, of_characters("".join(map(chr, points))), name, digest)

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
            needed = f"sequence={sequence} needs {sequence + 1:,} or more"
            raise ValueError(f"{held}; {needed}: name a longer --corpus, or a smaller --model sequence=")


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
