"""Drift: how far rounding may drive apart the changes of weights in runs whose gradients agree up to rounding."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from strategies.checking.bounds import FLOOR, ROUNDOFF, Rounding
from strategies.checking.projections import Projection, is_on_host, kept_dims, project
from strategies.checkpoints.canonical import Leaf, leaves
from strategies.core.matrices import matrix_dtype, scale
from strategies.core.newton_schulz import COEFFICIENTS, ITERATIONS
from strategies.core.placement import matrix_dims
from strategies.step import State, Step

WEIGHTS, FIRST, SECOND = "params", "mu", "nu"
"""Groups of arrays in a checkpoint. A first moment is a weighted mean of all steps' gradients."""


def arrays_of(step: Step, state: State, group: str) -> dict[str, tuple[Leaf, Any]]:
    """The arrays of a state in a group of a checkpoint, by weight, however the optimizer is wrapped.

    Of weights with masters, these.
    """
    placed = [*zip(leaves(step), jax.tree.leaves(state), strict=True)]
    return {weight_of(each): each for each in placed if each[0].name.rpartition("/")[0].split("/")[-1] == group}


def projected(
    step: Step, arrays: Sequence[tuple[Leaf, Array]], minus: Sequence[Array | None] | None = None
) -> list[Projection]:
    """Projections of arrays of a step's state, minus others if these are given."""
    leaves, values = [leaf for leaf, _ in arrays], [array for _, array in arrays]
    return project(step.mesh, leaves, values, minus or [None] * len(arrays)) if arrays else []


def weight_of(placed: tuple[Leaf, Any]) -> str:
    """The weight that an array belongs to: "blocks.mlp.up_DF" for "mu/blocks.mlp.up_DF"."""
    return placed[0].name.rpartition("/")[2]


def adam_drift(step: Step) -> Callable[..., list[Any]]:
    """The function (second moments, weights, relative error of the gradients, Adam's bias correction, squares of all
    other gradients) -> how far one update may drive apart each element in two runs whose gradients agree up to
    rounding.

    AdamW divides each element of a gradient by its own size. So an element much smaller than the others of its array
    has a larger relative error, up to a step of the opposite sign. Each new weight is also rounded.
    """
    train, of_moments = step.train, [leaf for leaf, _ in arrays_of(step, step.state, SECOND).values()]

    def drifts(
        moments: Sequence[Any], weights: Sequence[Any], relative_error: Any, share: Any, others: Any
    ) -> list[Any]:
        squares = [moment / share for moment in moments]
        floor = FLOOR * (others + sum(square.sum() for square in squares)) ** 0.5

        def drift(leaf: Leaf, square: Any, weight: Any) -> Any:
            xp = square.__array_namespace__()
            dims = [dim for dim in range(square.ndim) if dim not in kept_dims(leaf)]
            norm = xp.sqrt(square.sum(tuple(dims), keepdims=True))
            elements = math.prod(square.shape[dim] for dim in dims)
            error = relative_error * xp.maximum(norm, floor) / math.sqrt(elements)
            update = xp.minimum(1, error / (xp.sqrt(square) + train.epsilon))
            return 2 * train.learning_rate * update + 2.0**-23 * abs(weight)

        return [drift(*each) for each in zip(of_moments, squares, weights, strict=True)]

    return drifts if is_on_host(step.mesh) else jax.jit(drifts)


def drifts(step: Step, adam: Callable[..., list[Any]], state: State, number: int) -> dict[str, np.ndarray]:
    """Bounds on the norms of each weight's drift in step `number` (from 1), for one device."""
    weights, first, second = (arrays_of(step, state, group) for group in (WEIGHTS, FIRST, SECOND))
    alone = [name for name in first if name not in second]  # Muon's and SGD's momentum
    placed = [moments[name] for moments in (first, weights) for name in alone]
    norms = [of.norm_LU for of in projected(step, placed)]
    total = 1 - step.train.momentum**number if step.train.optimizer == "muon" else 1.0  # of the gradients' shares
    others = sum(float(np.square(norm_LU).sum()) for norm_LU in norms[: len(alone)]) / total**2
    error = Rounding.of(step.config, step.train, number).gradient
    inputs = [array for _, array in second.values()], [weights[name][1] for name in second]
    inputs = jax.tree.map(np.asarray, inputs) if is_on_host(step.mesh) else inputs
    each = jax.device_put(adam(*inputs, error, 1 - step.train.beta2**number, others), step.mesh.devices.flat[0])
    of_adam = [(leaf, drift) for (leaf, _), drift in zip(second.values(), each, strict=True)]
    found = {name: of.norm_LU for name, of in zip(second, projected(step, of_adam), strict=True)}
    for name, norm_LU, weight_LU in zip(alone, norms, norms[len(alone) :], strict=False):
        error_LU = error * np.maximum(norm_LU, FLOOR * total * math.sqrt(others))
        found[name] = _of_momentum(step, first[name][0], norm_LU, error_LU) + 2.0**-23 * weight_LU
    return found


def _of_momentum(step: Step, leaf: Leaf, norm_LU: np.ndarray, error_LU: np.ndarray) -> np.ndarray:
    """The drift of a weight that is updated by its momentum, whose norm and error are given.

    SGD's change has the momentum's error, twice with Nesterov's step ahead. Muon divides the momentum G by its norm and
    applies an odd polynomial p to its singular values, which is Lipschitz continuous with the largest slope of p, at 0:
    the first of `newton_schulz.COEFFICIENTS` to the power of the iterations. So a relative error e of G changes the
    update by at most 2 e times that slope; and by no more than two updates differ, whose singular values are at
    most about 1.2.
    """
    train, dims = step.train, leaf.dims
    if train.optimizer == "sgd":
        return 2 * train.learning_rate * error_LU
    rows, columns = (leaf.shape[dim] for dim in matrix_dims(dims) or (0, 0))
    units_U = columns * np.array([leaf.shape[-2] - 2, 1, 1] if "qkv" in dims else [1])
    columns_U = np.full_like(units_U, step.config.head_dim) if train.by_head and "qkv" in dims else units_U
    scale_U = np.array([scale(train, rows, columns) for columns in columns_U])
    relative_LU = np.divide(error_LU, norm_LU, out=np.full_like(norm_LU, np.inf), where=norm_LU > 0)
    # The cast of G and each iteration round to a relative error which all iterations together multiply by the slope, as
    # they multiply small singular values. The roundings of both runs are independent.
    relative_LU = relative_LU + math.sqrt(2 * (ITERATIONS + 1)) / 2 * ROUNDOFF[matrix_dtype(train)]
    # Heads whose momentum is small have larger relative errors than all heads of a layer together.
    root_U = np.sqrt(units_U // columns_U)
    apart_LU = 2 * COEFFICIENTS[0] ** ITERATIONS * root_U * relative_LU
    most_U = 2.4 * np.sqrt(np.minimum(rows, columns_U))
    return train.learning_rate * scale_U * root_U * np.minimum(apart_LU, most_U)
