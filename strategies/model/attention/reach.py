"""Sparse attention: which tokens a token attends to, and how many keys that computes.

A token always attends to itself and never to a later token. Dense attention reaches all earlier tokens. Otherwise, for
a query at position i and a key at position j <= i:

    window W             i - j < W: the token itself and the W - 1 tokens before it
    strided, stride L    a window, and every L-th token before: (i - j) mod L = 0. The window has L tokens by default.
    fixed, stride L      the tokens of i's own block of L tokens, and the last `summary` tokens of every earlier block

Strided and fixed are the patterns of Child et al. 2019, "Generating Long Sequences with Sparse Transformers", equations
of section 4.3. Each head attends to both of their index sets at once (the merged head of section 5.1). A window and
strided attention with W = L are the paper's A(1) and A(1) with A(2); `summary` is its c.

A `Reach` is computed as near keys, in blocks, and far keys, by stride (sparse.py). Keys that no query of a block
reaches are skipped. Keys that only some of its queries reach are masked, so the result is exact.
"""

import math
from dataclasses import dataclass
from typing import Any

from strategies.gpt_config import GPTConfig
from strategies.infeasible import divisors

MOST_BLOCKS_BEFORE = 8
"""Upper bound on the key blocks before a query's own block. Blocks of W/2 tokens have two, blocks of W/4 have four."""


@dataclass(frozen=True)
class Reach:
    """The tokens that a token attends to.

    Attributes:
        window: tokens of the window; with `summary`, of a block.
        stride: distance between far keys; None without far keys.
        summary: tokens at the end of each block that all later blocks attend to (fixed pattern); 0 if strided.
    """

    window: int
    stride: int | None = None
    summary: int = 0

    @classmethod
    def of(cls, config: GPTConfig) -> "Reach | None":
        """A model's reach; None if attention is dense, or if the window or stride covers all tokens."""
        window, stride, sequence = config.attention_window, config.attention_stride, config.sequence
        if stride is None:
            return None if window is None or window >= sequence else cls(window)
        if config.attention_pattern == "fixed":
            dense = stride == sequence or config.attention_summary == stride
            return None if dense else cls(stride, stride, config.attention_summary)
        window = window or stride
        return None if window >= sequence or stride == 1 else cls(window, stride if stride < sequence else None)

    def near(self, query: Any, key: Any) -> Any:
        """Whether keys at or before their queries are in the window, or in the block. Takes arrays of positions."""
        return query // self.window == key // self.window if self.summary else query - key < self.window

    def far(self, query: Any, key: Any) -> Any:
        """Whether keys before their queries are reached by the stride and are not near."""
        assert self.stride
        if self.summary:
            return (key // self.window < query // self.window) & (key % self.stride >= self.stride - self.summary)
        return (query - key >= self.window) & ((query - key) % self.stride == 0)

    def mask(self, query: Any, key: Any) -> Any:
        """Whether queries attend to keys. Takes arrays of positions."""
        reached = self.near(query, key)
        return (query >= key) & (reached if self.stride is None else reached | self.far(query, key))

    def block(self, tokens: int) -> tuple[int, int]:
        """Queries per block of near keys, and the number of key blocks before it that its queries reach.

        A window has blocks of about W/2 tokens, so a query computes 1.5 W keys. There are two blocks or more, of equal
        size.

        >>> Reach(8).block(64), Reach(8).block(50), Reach(4, 4, 1).block(64)
        ((4, 2), (2, 4), (4, 0))
        """
        if self.summary:
            return self.window, 0
        largest = max(1, min(tokens // 2, math.ceil(self.window / 2)))
        size = max(size for size in divisors(tokens) if size <= largest)
        return size, math.ceil((self.window - 1) / size)

    def earlier(self, tokens: int, devices: int) -> int:
        """Keys that a device needs from other devices if devices split a sequence into contiguous parts.

        >>> [Reach(window).earlier(64, devices=4) for window in (1, 8, 40, 60)]
        [0, 7, 39, 48]
        """
        return min(self.window - 1, tokens - tokens // devices)

    def computed_keys(self, tokens: int, devices: int = 1) -> int:
        """Keys computed per query, masked ones included, if `devices` split a sequence into contiguous parts."""
        far = 0 if self.stride is None else tokens // self.stride * max(1, self.summary)
        size, before = self.block(tokens // devices)
        return size * (before + 1) + far

    def skips(self, tokens: int) -> bool:
        """Whether this computes fewer keys than dense attention, which computes 3/4 of the sequence for a query.

        Otherwise dense attention with a mask is used; also if only small blocks divide the tokens.
        """
        return self.has_blocks(tokens) and self.computed_keys(tokens) < (tokens if tokens % 2 else tokens * 3 / 4)

    def has_blocks(self, tokens: int) -> bool:
        """Whether blocks of a useful size divide the tokens. The keys are copied once per earlier block in reach.

        >>> Reach(128).has_blocks(512), Reach(128).has_blocks(521)
        (True, False)
        """
        return self.block(tokens)[1] <= MOST_BLOCKS_BEFORE

    def most_keys(self, tokens: int) -> int:
        """Keys that the last token of a sequence attends to. Model FLOPs count this number for every token.

        >>> Reach(8).most_keys(64), Reach(8, 8).most_keys(64), Reach(8, 8, 2).most_keys(64)
        (8, 15, 22)
        """
        if self.stride is None:
            return self.window
        if self.summary:
            return self.window + self.summary * (tokens // self.stride - 1)
        return self.window + tokens // self.stride - math.ceil(self.window / self.stride)

    def pairs(self, tokens: int) -> int:
        """Number of attending (query, key) pairs in a sequence.

        >>> Reach(3).pairs(8), Reach(2, 2).pairs(8), Reach(4, 4, 1).pairs(8)
        (21, 27, 24)
        """
        if self.summary:
            blocks = tokens // self.window
            earlier_blocks = blocks * (blocks - 1) // 2
            return blocks * self.window * (self.window + 1) // 2 + earlier_blocks * self.window * self.summary
        near = tokens * self.window - self.window * (self.window - 1) // 2
        if self.stride is None:
            return near
        first, last = math.ceil(self.window / self.stride), (tokens - 1) // self.stride  # multiples beyond the window
        count = max(0, last - first + 1)
        return near + count * tokens - self.stride * count * (first + last) // 2


def strided(config: GPTConfig) -> bool:
    """Whether a token attends to some, but not all, tokens at any distance before it."""
    reach = Reach.of(config)
    return reach is not None and reach.stride is not None
