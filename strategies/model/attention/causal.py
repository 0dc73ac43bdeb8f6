"""Causal self-attention over whole sequences, by a fused, dense or sparse kernel.

Dims: B batch, T tokens, H query heads, K head dim, A = H x K.
"""

import jax
from jaxtyping import Array, Float

from strategies.backends.backend import Backend
from strategies.config import TrainConfig
from strategies.gpt_config import GPTConfig
from strategies.infeasible import Infeasible
from strategies.model.attention.chunk import attend_fused
from strategies.model.attention.cudnn import available
from strategies.model.attention.dense import attend
from strategies.model.attention.latent import Attended
from strategies.model.attention.qkv import QKV
from strategies.model.attention.reach import Reach
from strategies.model.attention.sparse import attend_sparse
from strategies.model.attention.splash import BLOCKS, block_tokens

FUSED = {"cudnn": ("NVIDIA GPUs", "float16"), "splash": ("TPUs", "float32")}
"""By fused kernel: a description of its devices, and the dtype that it takes in addition to bfloat16."""


def causal_attention(qkv: Attended, kind: str, reach: Reach | None = None) -> Float[Array, "B T A"]:
    """Attention of each token to itself and the earlier tokens in `reach` (None: all), by a kernel of `kernel_for`."""
    if kind == "cudnn" and isinstance(qkv, QKV) and qkv.sink_H is None:
        return _fused(qkv, reach)
    if kind == "cudnn" and not available():
        what = "attention sinks" if isinstance(qkv, QKV) else "latent attention"
        raise Infeasible(f"attention=cudnn takes no {what} with this version of JAX; use attention=xla")
    if kind in FUSED:
        return attend_fused(qkv, kind, reach)
    if reach is None or not reach.skips(qkv.tokens):
        return attend(qkv, reach)
    return attend_sparse(qkv, None, reach)


def kernel_for(
    backend: Backend, config: GPTConfig, train: TrainConfig, *, partitioned: bool = False, ring: int = 1
) -> str:
    """Resolve `TrainConfig.attention` to a kernel. "auto" is the devices' fused kernel if it runs this model, otherwise
    "xla".

    Args:
        backend: of the devices. It has no fused kernel for formulas without devices.
        partitioned: whether the compiler partitions the step. It can partition cuDNN's kernels, but not Pallas ones.
        ring: devices in an attention ring; 1 without a ring. A kernel then computes two chunks of each device's tokens
            (ring.py), and no window.
    """
    problems = _misfits(config, train, backend)
    if ring > 1:
        problems = _misfits_of_ring(config, ring) | problems
    if partitioned:
        problems.setdefault("splash", "has no kernel that the compiler partitions")
    if train.attention == "auto":
        return next((kind for kind in FUSED if backend.platform and kind not in problems), "xla")
    if train.attention in problems:
        raise Infeasible(f"attention={train.attention} {problems[train.attention]}; use auto or xla")
    return train.attention


def _misfits(config: GPTConfig, train: TrainConfig, backend: Backend) -> dict[str, str]:
    """Why a fused kernel cannot run the model on these devices, by kernel."""
    stride, reach = config.attention_stride, Reach.of(config)
    problems: dict[str, str] = {}
    for kind, (name, other) in FUSED.items():
        runs = backend.fused_attention == kind or backend.platform is None
        if stride is not None:
            problems[kind] = f"has no kernel for attention_stride={stride}"
        elif not runs or train.dtype not in ("bfloat16", other):
            problems[kind] = f"takes bfloat16 and {other} on {name}, not {train.dtype} on {backend.platform or name}"
    if "splash" not in problems and block_tokens(config.sequence, reach) is None:
        problems["splash"] = f"needs a multiple of {BLOCKS[-1]} tokens, not sequence={config.sequence}"
    return problems


def _misfits_of_ring(config: GPTConfig, ring: int) -> dict[str, str]:
    """Why a fused kernel cannot run chunks of a ring, by kernel."""
    if reach := Reach.of(config):
        return dict.fromkeys(FUSED, f"has no ring for attention_window={reach.window}")
    problems = {} if available() else {"cudnn": "has no ring with this version of JAX"}
    if block_tokens(config.sequence // (2 * ring), None) is None:
        chunks = f"chunks of a multiple of {BLOCKS[-1]} tokens, not 2 x context={ring} of sequence={config.sequence}"
        problems["splash"] = f"takes {chunks}"
    return problems


def _fused(qkv: QKV, reach: Reach | None) -> Array:
    before = None if reach is None else (reach.window - 1, 0)
    mixed_BTHK = jax.nn.dot_product_attention(
        *qkv.apart, is_causal=True, local_window_size=before, implementation="cudnn"
    )
    return mixed_BTHK.reshape(*mixed_BTHK.shape[:2], -1)
