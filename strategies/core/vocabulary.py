"""Embedding and loss with a vocabulary split along a tensor axis, over pipeline stages, or both.

Each device has some rows of the token table. It looks up the tokens in these rows and computes their logits.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from jax import lax
from jaxtyping import Array

from strategies.core.collectives import reduce_scatter
from strategies.core.plan import Plan
from strategies.core.traffic import Traffic, traffic


def hooks_of(plan: Plan) -> Mapping[str, Callable[..., Any]]:
    """The hooks of the model (`Hooks`) by name; none if no axis splits the vocabulary."""
    axes = plan.vocab_axes
    if not axes:
        return {}
    tensors = plan.axes_of("head_features")
    others = tuple(axis for axis in axes if axis not in tensors)

    def scattered(x_BTD: Array) -> Array:
        return lax.psum(reduce_scatter(x_BTD, tensors, 1), others)

    return {
        "embed_sum": scattered if plan.sequence_parallel else partial(lax.psum, axis_name=axes),
        "vocab_start": lambda rows: rows * lax.axis_index(axes),
        "vocab_sum": partial(lax.psum, axis_name=axes),
        "vocab_max": partial(lax.pmax, axis_name=axes),
    }


def traffic_of(plan: Plan) -> Iterator[Traffic]:
    """Sums of embedding and loss over the split vocabulary; recomputed leading dense layers embed again."""
    axes, dtype, times = plan.vocab_axes, plan.train.dtype, 2 if plan.recomputed_prefix_layers else 1
    if plan.sequence_parallel:
        tensors = plan.axes_of("head_features")
        other_axes = tuple(axis for axis in axes if axis not in tensors)
        yield from traffic(plan, "embedding", "reduce_scatter", tensors, times * plan.residual, dtype=dtype)
        yield from traffic(plan, "embedding", "all_reduce", other_axes, times * plan.own_residual, dtype=dtype)
        yield from traffic(plan, "embedding", "all_gather", tensors, plan.own_residual, dtype=dtype)
    else:
        yield from traffic(plan, "embedding", "all_reduce", axes, times * plan.residual, dtype=dtype)
    # Three numbers per token: the largest logit, the sum of exponentials, and the target's logit.
    yield from traffic(plan, "loss", "all_reduce", axes, 3 * plan.tokens, when="forward")
