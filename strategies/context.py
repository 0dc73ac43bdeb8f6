"""Context parallel: each device holds all weights, and a shard of the tokens of every sequence.

    dW[D,F] -all_reduce(context)-> dW[D,F], each weight, once a step, in `reduce_dtype`

Only attention needs the tokens of other devices. With `context_attention="ring"`, the default, keys and values travel
around a ring of devices, and in the backward pass their gradients travel with them (model/ring_attention.py):

    k, v[B,T_context,D] -permute(context)-> the next device, n-1 times a layer forward, and n-1 times again backward
    dk, dv[B,T_context,D] -permute(context)-> the next device, n times a layer backward; the last hop ends at the owner

With `context_attention="ulysses"` attention is split over its heads instead of over tokens (Jacobs et al. 2023,
"DeepSpeed Ulysses", section 3):

    q, k, v[B,T_context,D] -all_to_all(context)-> q, k, v[B,T,D_context], once a layer forward
    mixed[B,T,D_context] -all_to_all(context)-> mixed[B,T_context,D], once a layer forward
    each is the transpose of the other: once and once a layer backward

For P parameters and L layers on n devices a device sends 2 P (n-1)/n elements of gradients a step, and the loss. In the
compute dtype it sends (3n-2) 2 L B T D / n elements with a ring, or 8 L B T D (n-1)/n^2 elements with Ulysses. With
`remat="full"` the ring has n-2 more hops of k and v, and Ulysses sends half of the 8 L again. The ring computes
(2n+1)/4n of the full square of attention scores, for it skips blocks that causality masks out. Ulysses computes as many
scores as one device.
"""

import dataclasses
from functools import partial

from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from strategies.config import GPTConfig, Infeasible, TrainConfig, legal, require_divides
from strategies.mesh import Devices, MeshSpec
from strategies.model.causal_attention import causal_attention
from strategies.model.hooks import ONE_DEVICE, Hooks
from strategies.model.remat import KEPT
from strategies.model.ring_attention import ring_attention, zigzag
from strategies.sharding.layout import Layout
from strategies.step import Implementation, Step, Strategy
from strategies.training.train_step import assemble

AXES = ("context",)
LAYOUT = Layout(tokens=AXES)


def contiguous(x: Array, dim: int) -> Array:
    """This device's contiguous shard of an array of whole sequences. Dim `dim` is that of the tokens."""
    size = x.shape[dim] // lax.axis_size("context")
    return lax.dynamic_slice_in_dim(x, lax.axis_index("context") * size, size, dim)


def ulysses_attention(qkv_BTCA: Float[Array, "B t 3 A"], head_dim: int, kind: str) -> Float[Array, "B t A"]:
    """Causal attention of this device's contiguous shard of the tokens to all tokens before them.

    Each device computes some of the heads for all tokens. The results of both all-to-alls are kept for the backward
    pass: recomputing them would communicate again. Arguments are those of `causal_attention`; t is T_context.
    """
    all_to_all = partial(lax.all_to_all, axis_name="context", tiled=True)
    qkv_BTCA = checkpoint_name(all_to_all(qkv_BTCA, split_axis=3, concat_axis=1), KEPT)
    mixed_BTA = causal_attention(qkv_BTCA, head_dim, kind)
    return checkpoint_name(all_to_all(mixed_BTA, split_axis=1, concat_axis=2), KEPT)


def resolve_context_attention(train: TrainConfig, stages: int) -> TrainConfig:
    """Resolve `context_attention="auto"`: a ring, or Ulysses where there are pipeline stages.

    Raises:
        Infeasible: a ring with several pipeline stages. XLA's permutes wait for all devices of the mesh, but stages run
            their layers at different times.
    """
    if train.context_attention == "auto":
        return dataclasses.replace(train, context_attention="ring" if stages == 1 else "ulysses")
    if train.context_attention == "ring" and stages > 1:
        raise Infeasible(f"pipeline={stages} stages have no ring, which all must enter; use context_attention=ulysses")
    return train


def hooks(train: TrainConfig, size: int, others: Hooks = ONE_DEVICE) -> Hooks:
    """Add the hooks of a context axis to those of other axes.

    Args:
        train: with `context_attention` resolved; "auto" is a ring.
        size: of the context axis. With size one the hooks are unchanged.
        others: hooks of other axes, which may split heads or tokens further, after the context axis.
    """
    if size == 1:
        return others
    if train.context_attention == "ulysses":
        return dataclasses.replace(others, own_context=contiguous, attend=ulysses_attention)
    return dataclasses.replace(others, own_context=zigzag, attend=ring_attention)


def require_fit(config: GPTConfig, train: TrainConfig, size: int, tensors: int = 1) -> None:
    """Check that the context axis divides the tokens and, with Ulysses, the heads.

    Args:
        config: the model.
        train: with `context_attention` resolved; "auto" is a ring.
        size: of the context axis.
        tensors: size of the tensor axis, which splits the heads first.

    Raises:
        Infeasible: it does not divide them (the message names the numbers and the legal sizes), or the attention kernel
            has no ring.
    """
    if train.context_attention == "ulysses":
        heads = "heads" if tensors == 1 else "heads/tensor"
        require_divides("context", size, **{"sequence": config.sequence, heads: config.heads // tensors})
    elif size > 1:
        if train.attention == "cudnn":
            raise Infeasible("attention=cudnn has no ring; use auto or xla, or context_attention=ulysses")
        if config.sequence % (2 * size):
            sizes = legal(config.sequence // 2 if config.sequence % 2 == 0 else 1, "context")
            raise Infeasible(f"2 x context={size} chunks do not divide sequence={config.sequence}; {sizes}")


def build(config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Devices | None = None) -> Step:
    """Build the step. Arguments and errors are those of `Strategy.build`."""
    device_mesh = mesh.over(AXES, devices)
    require_fit(config, train, mesh.size)
    return assemble(config, device_mesh, train, LAYOUT, Implementation(hooks=hooks(train, mesh.size)))


OPTIONS = ("context_attention", "reduce_dtype")
CONTEXT = Strategy("context", AXES, build, OPTIONS, LAYOUT)
