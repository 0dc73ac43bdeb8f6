"""Real text to train on, byte by byte: token i is the value of byte i.

Dims: N bytes of the corpus, B sequences in a batch, S tokens of a sequence and its last target (`sequence` + 1).
"""

from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from jaxtyping import Int32, UInt8

from strategies import GPTConfig

BYTE_VALUES = 256

Corpus = UInt8[np.ndarray, " N"]


def read_corpus(path: Path | None, config: GPTConfig) -> Corpus:
    """The bytes of a file; without one, the prose on Python's syntax that every CPython carries.

    Raises:
        ValueError: a file that cannot be read or is shorter than one sequence and its last target, or a vocabulary
            that does not hold every byte.
    """
    if config.vocab < BYTE_VALUES:
        raise ValueError(f"vocab={config.vocab} does not hold the {BYTE_VALUES} byte values of text; use 256 or more")
    try:
        text = path.read_bytes() if path else "\n".join(topics[name] for name in sorted(topics)).encode()
    except OSError as error:
        raise ValueError(f"the corpus {path} cannot be read: {error.strerror}; name a text file") from error
    if len(text) <= config.sequence:
        problem = f"the corpus {path or 'of pydoc_data.topics'} has {len(text)} bytes"
        raise ValueError(f"{problem}; sequence={config.sequence} needs {config.sequence + 1} or more")
    return np.frombuffer(text, np.uint8)


def tokens(corpus_N: Corpus, index: int, batch_size: int, sequence: int) -> Int32[np.ndarray, "B S"]:
    """Batch number `index`: the next sequences of the text, from the start again where it ends.

    It depends on nothing but its arguments, so that every strategy trains on the same tokens.
    """
    starts_B = (index * batch_size + np.arange(batch_size)) * sequence % (len(corpus_N) - sequence)
    return corpus_N[starts_B[:, None] + np.arange(sequence + 1)].astype(np.int32)
