"""Kernels of causal softmax attention, called by the attention branch of a block (self_attention.py).

A kernel takes queries, keys and values as one value, `QKV`, or with latents in place of keys and values (latent.py).
With fewer KV heads than query heads, attention is grouped-query attention (Ainslie et al. 2023, "GQA").

    causal.py   chooses the kernel and runs it on whole sequences
    dense.py    dense attention in XLA operations, and what all but fused kernels share: one block of keys
    sparse.py   attention to a window or a stride (reach.py); skips keys outside it
    cudnn.py    a fused kernel for NVIDIA GPUs; splash.py: one for TPUs
    ring.py     attention over sequences sharded by token, chunk by chunk (chunk.py)

The kernels know nothing else about the model.
"""

from strategies.model.attention.causal import causal_attention, kernel_for
from strategies.model.attention.latent import Attended, HeadsQKV, LatentQKV
from strategies.model.attention.qkv import ATTENDED, QKV
from strategies.model.attention.reach import Reach, strided
from strategies.model.attention.ring import ring_attention, zigzag
from strategies.model.attention.sparse import attend_sparse

__all__ = [
    "ATTENDED",
    "QKV",
    "Attended",
    "HeadsQKV",
    "LatentQKV",
    "Reach",
    "attend_sparse",
    "causal_attention",
    "kernel_for",
    "ring_attention",
    "strided",
    "zigzag",
]
