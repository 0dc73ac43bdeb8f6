"""Context parallel: each device holds all weights, and a shard of the tokens of every sequence.

    dW[D,F] -all_reduce(context)-> dW[D,F], each weight, once a step, in `reduce_dtype`: after all
        microbatches, or with `reduce="layer"` each layer's in the backward loop (training/layer_reduction.py)

Only attention needs the tokens of other devices. With `context_attention="ring"` keys and values travel
around a ring of devices, and in the backward pass their gradients travel with them (model/attention/ring.py):

    k, v[B,T_context,A] -permute(context)-> the next device, n-1 times a layer forward, and n-1 times again backward
    dk, dv[B,T_context,A] -permute(context)-> the next device, n times a layer backward; the last hop ends at the owner

With `context_attention="ulysses"` attention is split over its heads instead of over tokens (Jacobs et al. 2023,
"DeepSpeed Ulysses", section 3):

    q, k, v[B,T_context,A] -all_to_all(context)-> q, k, v[B,T,A_context], once a layer forward
    mixed[B,T,A_context] -all_to_all(context)-> mixed[B,T_context,A], once a layer forward
    each is the transpose of the other: once and once a layer backward

For P parameters, L layers and A features of all heads on n devices a device sends 2 P (n-1)/n elements of gradients a
step, and the loss. In the compute dtype it sends (3n-2) 2 L B T A / n elements with a ring, or 8 L B T A (n-1)/n^2
elements with Ulysses. With `remat="full"` the ring has n-2 more hops of k and v, and Ulysses sends half of the 8 L
again. The ring computes (2n+1)/4n of the full square of attention scores, for it skips blocks that causality masks out.
Ulysses computes as many scores as one device.

With `attention_window=W` a ring sends only the keys and values that the window reaches. Shards are contiguous, so these
are the last W-1 tokens before a device's own, or all tokens before them if they are fewer:

    k, v[B,W-1,A] -permute(context)-> the next device: in one hop if W-1 <= T/n, otherwise in ceil((W-1) n/T) hops, each
        of which passes on what the next device needs of the hop before; once a layer forward
    dk, dv[B,W-1,A] -permute(context)-> the previous device, the transpose: once a layer backward

A device then sends 4 L B (W-1) A elements a step instead of (3n-2) 2 L B T A / n; with `remat="full"` half of it again.
Ulysses sends as much as without a window. A stride (`attention_stride`) reaches tokens of every device, which a ring
would have to send: there is no ring for it, and "auto" is Ulysses.
"""

import dataclasses
from functools import partial

import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from strategies.config import GPTConfig, Infeasible, TrainConfig, legal, require_divides
from strategies.mesh import GPUS, Devices, MeshSpec, platform_of
from strategies.model.attention import (
    QKV,
    Reach,
    attend_sparse,
    causal_attention,
    kernel_for,
    ring_attention,
    strided,
    zigzag,
)
from strategies.model.attention.ring import AXIS
from strategies.model.hooks import ONE_DEVICE, Hooks
from strategies.model.remat import KEPT
from strategies.sharding.layout import Layout
from strategies.step import Implementation, Step
from strategies.strategy import Strategy
from strategies.training.train_step import assemble

AXES = ("context",)
LAYOUT = Layout(tokens=AXES)


def contiguous(x: Array, dim: int) -> Array:
    """This device's contiguous shard of an array of whole sequences. Dim `dim` is that of the tokens."""
    size = x.shape[dim] // lax.axis_size("context")
    return lax.dynamic_slice_in_dim(x, lax.axis_index("context") * size, size, dim)


def window_attention(qkv: QKV, kind: str, reach: Reach) -> Float[Array, "B t A"]:
    """Attention with a window of this device's contiguous shard of the tokens. It needs at least two devices.

    Arguments are those of `causal_attention`; t is T_context. `kind` is "xla", for a window has no fused kernel here.
    """
    return attend_sparse(qkv, received_before(qkv.qkv_BTCE[:, :, -2:], reach), reach, AXIS)


def received_before(kv_BTCE: Array, reach: Reach) -> Array | None:
    """Keys and values of the tokens before this device's that its window reaches; None if the window is one token.

    They are kept for the backward pass: receiving them again would communicate again. The first devices of the axis
    receive zeros in place of tokens before the first one.
    """
    devices, size = lax.axis_size(AXIS), kv_BTCE.shape[1]
    left, arrived, parts = reach.earlier(devices * size, devices), kv_BTCE, []
    while left:
        to_next = [(device, device + 1) for device in range(devices - 1)]
        arrived = checkpoint_name(lax.ppermute(arrived[:, -min(left, size) :], AXIS, to_next), KEPT)
        parts.insert(0, arrived)
        left -= arrived.shape[1]
    return jnp.concatenate(parts, 1) if parts else None


def ulysses_attention(qkv: QKV, kind: str, reach: Reach | None = None) -> Float[Array, "B t A"]:
    """Causal attention of this device's contiguous shard of the tokens to all tokens before them.

    Each device computes some of the heads for all tokens: with n devices H/n heads of queries, and the J/n heads of
    keys and values to which they attend. The results of both all-to-alls are kept for the backward pass: recomputing
    them would communicate again. Arguments are those of `causal_attention`; t is T_context.

    Raises:
        Infeasible: the devices do not divide the heads of keys.
    """
    all_to_all = partial(lax.all_to_all, axis_name=AXIS, tiled=True)
    require_divides(AXIS, lax.axis_size(AXIS), **{"heads of keys": qkv.key_heads})
    qkv_BTCE = checkpoint_name(all_to_all(qkv.qkv_BTCE, split_axis=3, concat_axis=1), KEPT)
    mixed_BTA = causal_attention(QKV(qkv_BTCE, qkv.head_dim), kind, reach)
    return checkpoint_name(all_to_all(mixed_BTA, split_axis=1, concat_axis=2), KEPT)


def resolve_context_attention(
    config: GPTConfig, train: TrainConfig, size: int, *, tensors: int = 1, stages: int = 1, platform: str | None = None
) -> TrainConfig:
    """Resolve `context_attention="auto"`: a ring, or Ulysses.

    Ulysses is taken where there are pipeline stages or attention has a stride, and on GPUs where cuDNN's attention can
    be, if the devices divide the heads: it sends less than a ring. With a window a ring sends little, and stays.

    Args:
        config: the model.
        train: with any `context_attention`; it stays as it is where the context axis has size one.
        size: of the context axis.
        tensors: size of the tensor axis, which splits the heads first.
        stages: of the pipeline.
        platform: of the devices, as `platform_of` names it.

    Raises:
        Infeasible: a ring with several pipeline stages. XLA's permutes wait for all devices of the mesh, but stages run
            their layers at different times.
    """
    if size == 1:
        return train
    if train.context_attention == "auto":
        fused = platform in GPUS and not Reach.of(config) and kernel_for(platform, config, train) == "cudnn"
        ring = stages == 1 and not strided(config) and not (fused and config.heads // tensors % size == 0)
        return dataclasses.replace(train, context_attention="ring" if ring else "ulysses")
    if train.context_attention == "ring" and stages > 1:
        raise Infeasible(f"pipeline={stages} stages have no ring, which all must enter; use context_attention=ulysses")
    return train


def hooks(config: GPTConfig, train: TrainConfig, size: int, others: Hooks = ONE_DEVICE) -> Hooks:
    """Add the hooks of a context axis to those of other axes.

    Args:
        config: the model.
        train: with `context_attention` resolved; "auto" is a ring.
        size: of the context axis. With size one the hooks are unchanged.
        others: hooks of other axes, which may split heads or tokens further, after the context axis.
    """
    if size == 1:
        return others
    if train.context_attention == "ulysses":
        return dataclasses.replace(others, own_context=contiguous, attend=ulysses_attention)
    if Reach.of(config):
        return dataclasses.replace(others, own_context=contiguous, attend=window_attention)
    return dataclasses.replace(others, own_context=zigzag, attend=ring_attention)


def require_fit(config: GPTConfig, train: TrainConfig, size: int, tensors: int = 1) -> None:
    """Check that the context axis divides the tokens and, with Ulysses, the heads.

    Args:
        config: the model.
        train: with `context_attention` resolved; "auto" is a ring.
        size: of the context axis.
        tensors: size of the tensor axis, which splits the heads first.

    Raises:
        Infeasible: it does not divide them (the message names the numbers and the legal sizes), or the attention's
            stride has no ring.
    """
    if train.context_attention == "ulysses":
        heads = "heads" if tensors == 1 else "heads/tensor"
        require_divides("context", size, **{"sequence": config.sequence, heads: config.heads // tensors})
    elif size > 1:
        if strided(config):
            problem = f"attention_stride={config.attention_stride} reaches tokens of all context={size} devices"
            raise Infeasible(f"{problem}, and has no ring; use context_attention=ulysses")
        if reach := Reach.of(config):
            require_divides("context", size, sequence=config.sequence)
            if not reach.has_blocks(tokens := config.sequence // size):
                problem = f"no blocks of useful size for attention_window={reach.window} divide the {tokens} tokens"
                raise Infeasible(f"{problem} of a device; take a sequence with more divisors, or a smaller window")
        elif config.sequence % (2 * size):
            sizes = legal(config.sequence // 2 if config.sequence % 2 == 0 else 1, "context")
            raise Infeasible(f"2 x context={size} chunks do not divide sequence={config.sequence}; {sizes}")


def build(config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Devices | None = None) -> Step:
    """Build the step. Arguments and errors are those of `Strategy.build`."""
    device_mesh = mesh.over(AXES, devices)
    platform = platform_of(device_mesh.devices.flat[0])
    resolved = resolve_context_attention(config, train, mesh.size, platform=platform)
    require_fit(config, resolved, mesh.size)
    return assemble(config, device_mesh, resolved, LAYOUT, Implementation(hooks=hooks(config, resolved, mesh.size)))


OPTIONS = ("context_attention", "reduce", "reduce_dtype")
CONTEXT = Strategy("context", AXES, build, OPTIONS, LAYOUT)
