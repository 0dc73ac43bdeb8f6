"""Kernels of causal softmax attention, which the attention branch of a block calls (self_attention.py).

A kernel takes queries, keys and values as one value, `QKV`, with heads of their own number and size: with fewer heads
of keys than of queries, attention is grouped-query attention (Ainslie et al. 2023, "GQA").

    causal.py   chooses the kernel and runs it: attention over whole sequences
    dense.py    attention to all tokens before a token, in XLA's own operations
    sparse.py   attention to a window or a stride (reach.py), whose other keys are skipped
    cudnn.py    a fused kernel of NVIDIA GPUs; splash.py: one of TPUs
    ring.py     attention over sequences whose tokens are split over devices, chunk by chunk (chunk.py)
    blocks.py   the arithmetic that all but fused kernels share: attention over a block of keys, merged over blocks

The kernels know no weights, and nothing else of the model.
"""

from strategies.model.attention.causal import causal_attention, kernel_for
from strategies.model.attention.qkv import ATTENDED, QKV
from strategies.model.attention.reach import Reach, strided
from strategies.model.attention.ring import ring_attention, zigzag
from strategies.model.attention.sparse import attend_sparse

__all__ = [
    "ATTENDED",
    "QKV",
    "Reach",
    "attend_sparse",
    "causal_attention",
    "kernel_for",
    "ring_attention",
    "strided",
    "zigzag",
]
