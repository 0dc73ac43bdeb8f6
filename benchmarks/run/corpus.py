"""Training text as byte-level tokens: one for each byte, spread over the vocabulary.

Dims: N bytes of the corpus, B sequences in a batch, S tokens of a sequence and its last target (`sequence` + 1).
"""

import sys
from dataclasses import dataclass
from itertools import count
from math import gcd
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
from jaxtyping import Int, Int32, UInt8

from strategies import GPTConfig

BYTE_VALUES = 256

Corpus = UInt8[np.ndarray, " N"]
EMPTY_CORPUS: Corpus = np.empty(0, np.uint8)
"""For steps that are compiled and not run."""


def read_corpus(path: Path | None, config: GPTConfig, batch_size: int = 1) -> Corpus:
    """The bytes of a file, mapped into memory; without a file, Python's syntax documentation, which every CPython
    includes.

    If the text is shorter than the largest batch, a line on stderr warns that it repeats within a batch.
    """
    if config.vocab < BYTE_VALUES:
        raise ValueError(f"vocab={config.vocab} does not hold the {BYTE_VALUES} byte values of text; use 256 or more")
    corpus_N = corpus_bytes(path)
    if len(corpus_N) <= config.sequence:
        problem = f"the corpus {path or 'of pydoc_data.topics'} has {len(corpus_N)} bytes"
        raise ValueError(f"{problem}; sequence={config.sequence} needs {config.sequence + 1} or more")
    if len(corpus_N) <= (needed := batch_size * config.sequence):
        problem = f"the corpus {path or 'of pydoc_data.topics'} has {len(corpus_N):,} bytes"
        work = f"a batch of {batch_size} sequences of {config.sequence} tokens takes {needed + 1:,}"
        print(f"{problem} and {work}: its text repeats within a batch; name a longer --corpus", file=sys.stderr)
    return corpus_N


def corpus_bytes(path: Path | None) -> Corpus:
    """The bytes of a file, mapped into memory; without a file, Python's syntax documentation (`pydoc_data.topics`)."""
    try:
        if path:
            return map_file(path)
    except OSError as error:
        raise ValueError(f"the corpus {path} cannot be read: {error.strerror}; name a text file") from error
    return np.frombuffer("\n".join(topics[name] for name in sorted(topics)).encode(), np.uint8)


def map_file(path: Path) -> Corpus:
    """The bytes of a file, mapped into memory if possible. Pipes and empty files cannot be mapped and are read."""
    if path.is_file() and path.stat().st_size:
        return np.asarray(np.memmap(path, np.uint8, mode="r"))
    return np.frombuffer(path.read_bytes(), np.uint8)


def corpus_source(corpus_N: Corpus) -> Path | Corpus:
    """What to send to another process for the same corpus: the path of a memory-mapped file, or else the bytes."""
    mapped = corpus_N.base
    return Path(mapped.filename) if isinstance(mapped, np.memmap) and mapped.filename else corpus_N


@dataclass(frozen=True)
class Sequences:
    """A batch of sequences. Indexing, which is how `Step.place` takes shards, reads the indexed rows and no others."""

    tokens_N: Int[np.ndarray, " N"]
    starts_B: Int[np.ndarray, " B"]
    sequence: int  # their length, without the last target
    token_of: Int32[np.ndarray, " 256"] | None = None  # of each byte, if the text is bytes

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the whole batch: (batch_size, sequence + 1)."""
        return len(self.starts_B), self.sequence + 1

    def __getitem__(self, part: Any) -> Int32[np.ndarray, "b s"]:
        rows, columns = part
        tokens_bs = self.tokens_N[self.starts_B[rows, None] + np.arange(self.sequence + 1)[columns]]
        return tokens_bs.astype(np.int32) if self.token_of is None else self.token_of[tokens_bs]


def batch(corpus_N: Corpus, index: int, batch_size: int, config: GPTConfig) -> Sequences:
    """Batch `index` of the corpus: the next sequences of the text, wrapping around at its end.

    The result depends only on the arguments, so every strategy trains on the same tokens.
    """
    starts_B = (index * batch_size + np.arange(batch_size)) * config.sequence % (len(corpus_N) - config.sequence)
    return Sequences(corpus_N, starts_B, config.sequence, spread(config.vocab))


def spread(vocab: int) -> Int32[np.ndarray, " 256"]:
    """A token for each byte, such that those of any text lie in all parts of the vocabulary.

    A vocabulary is sharded, and only shards whose rows are looked up can show that they are wrong. Multiples of the
    golden ratio, modulo 1, are spread evenly however few of them there are.

    >>> spread(1000)[:6].tolist()
    [0, 619, 238, 857, 476, 95]
    """
    stride = next(n for n in count(round(vocab * (5**0.5 - 1) / 2)) if gcd(n, vocab) == 1)
    return (np.arange(BYTE_VALUES) * stride % vocab).astype(np.int32)
