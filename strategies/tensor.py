"""Tensor parallel: every layer is split over the devices (Shoeybi et al. 2019, "Megatron-LM", section 3).

Column parallel, then row parallel: the query, key, value and up matmuls are split along their outputs (heads, mlp), and
the output and down matmuls along their inputs, so that one sum completes each branch. Embedding and loss are split over
the vocabulary: no device holds the full logits. Between the matmuls each device holds the residual stream of its shard
of the tokens, and normalises only those (sequence parallel; Korthikanti et al. 2022, "Reducing Activation
Recomputation", section 4.2.2):

    x[B,T_tensor,D] -all_gather(tensor)-> x[B,T,D], two a layer forward, before attention and before the MLP; and two
        again backward, because the gathered x is not kept
    x[B,T,D] partial sums -reduce_scatter(tensor)-> x[B,T_tensor,D], two a layer forward, after attention and the MLP
    each is the transpose of the other: two and two a layer backward, with dx
    one reduce-scatter for the embedding, one gather for the head, and the transpose of each
    for the loss, an all-reduce of three numbers a token: largest logit, sum of exponentials, target's logit
    dW[D] -all_reduce(tensor)-> dW[D], once a step, in `reduce_dtype`: norms, positions and biases, which are replicated

With `sequence_parallel=False` the residual stream is replicated:

    x[B,T,D] partial sums -all_reduce(tensor)-> x[B,T,D], two a layer forward (after attention, after the MLP)
    dx[B,T,D] partial sums -all_reduce(tensor)-> dx[B,T,D], two a layer backward, where x enters the split matmuls
    once more for the embedding forward, and once more for the head backward

With `halves="on"` (model/halves.py) each of these, in the layers, is two collectives of half the sequences.

For L layers on n devices a device sends (10 L + 4) B T D (n-1)/n elements a step in the compute dtype, or without
sequence parallelism (4 L + 2) 2 B T D (n-1)/n. With `remat="full"` the backward pass repeats the sums of attention.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

from jax import lax
from jaxtyping import Array

from strategies.config import GPTConfig, Infeasible, TrainConfig, legal, require_divides
from strategies.mesh import Devices, MeshSpec, mark_varying
from strategies.model.gpt import map_weights
from strategies.model.hooks import Hooks
from strategies.model.weights import Weights
from strategies.sharding.collectives import all_gather, reduce_scatter
from strategies.sharding.layout import Layout
from strategies.step import Implementation, Step
from strategies.strategy import Strategy
from strategies.training.train_step import assemble

AXES = ("tensor",)
LAYOUT = Layout(dims={"head_features": AXES, "mlp": AXES, "vocab": AXES})


def vocab_hooks(axes: Sequence[str]) -> Hooks:
    """Hooks for an embedding and a loss whose vocabulary is split over these axes."""
    axes = tuple(axes)
    return Hooks(
        embed_sum=partial(lax.psum, axis_name=axes),
        vocab_start=lambda rows: rows * lax.axis_index(axes),
        vocab_sum=partial(lax.psum, axis_name=axes),
        vocab_max=partial(lax.pmax, axis_name=axes),
    )


def hooks(vocab_axes: Sequence[str], sequence_parallel: bool) -> Hooks:
    """Hooks for layers split over `tensor`, and an embedding and a loss whose vocabulary is split over `vocab_axes`."""
    vocab = vocab_hooks(vocab_axes)
    if not sequence_parallel:
        return dataclasses.replace(vocab, sum=partial(lax.psum, axis_name="tensor"))

    def own_tokens(x_TD: Array) -> Array:
        count = x_TD.shape[0] // lax.axis_size("tensor")
        return lax.dynamic_slice_in_dim(x_TD, lax.axis_index("tensor") * count, count)

    scatter = partial(reduce_scatter, axes="tensor", dim=1)
    other_axes = tuple(axis for axis in vocab_axes if axis != "tensor")
    return dataclasses.replace(
        vocab,
        sum=scatter,
        all_tokens=partial(all_gather, axes="tensor", dim=1),
        own_tokens=own_tokens,
        embed_sum=lambda x_BTD: lax.psum(scatter(x_BTD), other_axes),
    )


def mark_replicated_varying(weights: Weights, config: GPTConfig) -> Weights:
    """Mark replicated weights as varying over `tensor`, so that autodiff does not sum their gradients in each layer."""
    return _map_replicated(partial(mark_varying, axes="tensor"), weights, config)


def all_reduce(grads: Weights, config: GPTConfig, dtype: str) -> Weights:
    """Sum the gradients of replicated weights over `tensor` in `dtype`. The result is float32. Called once a step."""
    return _map_replicated(lambda dw: lax.psum(dw.astype(dtype), "tensor").astype("float32"), grads, config)


def _map_replicated(function: Callable[[Array], Array], weights: Weights, config: GPTConfig) -> Weights:
    """Apply a function to the weights that `tensor` does not split. The others stay as they are."""
    return map_weights(lambda w, spec: w if LAYOUT.dims.keys() & set(spec.dims) else function(w), config, weights)


def require_fit(config: GPTConfig, train: TrainConfig, size: int, contexts: int = 1) -> None:
    """Check that the tensor axis divides the heads, the hidden features and, with sequence parallelism, the tokens.

    Args:
        config: the model.
        train: whether there is sequence parallelism.
        size: of the tensor axis.
        contexts: size of the context axis, which splits the tokens first.

    Raises:
        Infeasible: it does not divide one of them; the message names the numbers and the legal sizes.
    """
    require_divides("tensor", size, heads=config.heads, mlp=config.mlp_dim)
    tokens, name = config.sequence // contexts, "sequence" if contexts == 1 else "sequence/context"
    if train.sequence_parallel and tokens % size:
        problem = f"tensor={size} does not divide {name}={tokens}"
        raise Infeasible(f"{problem}; {legal(tokens, 'tensor')}, or any with sequence_parallel=False")


def build(config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Devices | None = None) -> Step:
    """Build the step. Arguments and errors are those of `Strategy.build`."""
    device_mesh = mesh.over(AXES, devices)
    require_fit(config, train, mesh.size)

    def reduce(loss: Array, grads: Weights) -> tuple[Array, Weights]:
        return loss, all_reduce(grads, config, train.reduce_dtype)

    implementation = Implementation(hooks=hooks(AXES, train.sequence_parallel))
    if train.sequence_parallel:
        prepare_params = partial(mark_replicated_varying, config=config)
        implementation = dataclasses.replace(implementation, prepare_params=prepare_params, reduce=reduce)
    return assemble(config, device_mesh, train, LAYOUT, implementation)


OPTIONS = ("sequence_parallel", "halves", "reduce_dtype")
TENSOR = Strategy("tensor", AXES, build, OPTIONS, LAYOUT)
