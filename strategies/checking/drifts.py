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
from strategies.core.matrices import matrix_dtype
from strategies.core.newton_schulz import COEFFICIENTS, ITERATIONS
from strategies.core.placement import matrix_dims
from strategies.step import State, Step

FIRST, SECOND = "mu", "nu"
"""Names of moments in the optimizer state. A first moment is a weighted mean of all steps' gradients."""


def first_moments(step: Step, state: State) -> list[tuple[Leaf, Array]]:
    """The optimizer's first moments; empty if it has none."""
    arrays = zip(leaves(step), jax.tree.leaves(state), strict=True)
    return [(leaf, array) for leaf, array in arrays if is_moment(leaf, FIRST)]


def is_moment(leaf: Leaf, name: str) -> bool:
    """Whether an array is a moment of this name, however the optimizer is wrapped."""
    return leaf.name.rpartition("/")[0].split("/")[-1] == name


def projected(step: Step, arrays: Sequence[tuple[Leaf, Array]], minus: Sequence[Array | None]) -> list[Projection]:
    """Projections of arrays of a step's state, minus others."""
    return project(step.mesh, [leaf for leaf, _ in arrays], [array for _, array in arrays], minus) if arrays else []


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
    train, of_moments = step.train, [leaf for leaf in leaves(step) if is_moment(leaf, SECOND)]

    def drift(leaf: Leaf, square: Any, weight: Any, relative_error: Any, floor: Any) -> Any:
        xp = square.__array_namespace__()
        dims = [dim for dim in range(square.ndim) if dim not in kept_dims(leaf)]
        norm = xp.sqrt(square.sum(tuple(dims), keepdims=True))
        elements = math.prod(square.shape[dim] for dim in dims)
        error = relative_error * xp.maximum(norm, floor) / math.sqrt(elements)
        update = xp.minimum(1, error / (xp.sqrt(square) + train.epsilon))
        return 2 * train.learning_rate * update + 2.0**-23 * abs(weight)

    def drifts(
        moments: Sequence[Any], weights: Sequence[Any], relative_error: Any, share: Any, others: Any
    ) -> list[Any]:
        squares = [moment / share for moment in moments]
        floor = FLOOR * (others + sum(square.sum() for square in squares)) ** 0.5
        inputs = zip(of_moments, squares, weights, strict=True)
        return [drift(*each, relative_error, floor) for each in inputs]

    return drifts if is_on_host(step.mesh) else jax.jit(drifts)


def drifts(step: Step, adam: Callable[..., list[Any]], state: State, number: int) -> dict[str, np.ndarray]:
    """Bounds on the norms of each weight's drift in step `number` (from 1), for one device."""
    arrays = [*zip(leaves(step), jax.tree.leaves(state), strict=True)]
    second = {weight_of(placed) for placed in arrays if is_moment(placed[0], SECOND)}
    alone = [placed for placed in first_moments(step, state) if weight_of(placed) not in second]
    names = [*map(weight_of, alone)]
    weights = {weight_of(placed): placed for placed in arrays if placed[0].is_weight}
    norms = projected(step, [*alone, *(weights[name] for name in names)], [None] * (2 * len(alone)))
    total = 1 - step.train.momentum**number if step.train.optimizer == "muon" else 1.0  # of the gradients' shares
    squares = sum(float(np.square(of.norm_LU).sum()) for of in norms[: len(alone)]) / total**2
    found = _of_adam(step, adam, state, number, squares)
    error = Rounding.of(step.config, step.train, number).gradient
    for name, (leaf, _), momentum, weight in zip(names, alone, norms, norms[len(alone) :], strict=False):
        error_LU = error * np.maximum(momentum.norm_LU, FLOOR * total * math.sqrt(squares))
        drift_LU = _of_momentum(step, leaf, momentum.norm_LU, error_LU)
        found[name] = drift_LU + 2.0**-23 * weight.norm_LU
    return found


def _of_adam(
    step: Step, drift: Callable[..., list[Any]], state: State, number: int, others: float
) -> dict[str, np.ndarray]:
    """Norms of the drift of each weight in step `number` (from 1), for one device; empty without second moments."""
    arrays = [*zip(leaves(step), jax.tree.leaves(state), strict=True)]
    second = {weight_of(placed): placed for placed in arrays if is_moment(placed[0], SECOND)}
    weights = {weight_of(placed): placed[1] for placed in arrays if placed[0].is_weight}
    inputs = [array for _, array in second.values()], [weights[name] for name in second]
    inputs = jax.tree.map(np.asarray, inputs) if is_on_host(step.mesh) else inputs
    error = Rounding.of(step.config, step.train, number).gradient
    drifts = jax.device_put(drift(*inputs, error, 1 - step.train.beta2**number, others), step.mesh.devices.flat[0])
    placed = [(leaf, of) for (leaf, _), of in zip(second.values(), drifts, strict=True)]
    projections = projected(step, placed, [None] * len(placed))
    return {name: of.norm_LU for name, of in zip(second, projections, strict=True)}


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
    queries = leaf.shape[-2] - 2 if "qkv" in dims else 1
    columns_U = columns * np.array([queries, 1, 1] if "qkv" in dims else [1])
    matrices_U = np.ones_like(columns_U)
    if train.by_head and "qkv" in dims:
        matrices_U, columns_U = columns_U // step.config.head_dim, np.full(3, step.config.head_dim)
    ratio_U = np.maximum(columns_U / rows, 1)
    scale_U = 0.2 * np.sqrt(np.maximum(rows, columns_U)) if train.matrix_scale == "rms" else np.sqrt(ratio_U)
    relative_LU = np.divide(error_LU, norm_LU, out=np.full_like(norm_LU, np.inf), where=norm_LU > 0)
    # The cast of G and each iteration round to a relative error which all iterations together multiply by the slope, as
    # they multiply small singular values. The roundings of both runs are independent.
    relative_LU = relative_LU + math.sqrt(2 * (ITERATIONS + 1)) / 2 * ROUNDOFF[matrix_dtype(train)]
    slope = COEFFICIENTS[0] ** ITERATIONS
    # Heads whose momentum is small have larger relative errors than all heads of a layer together.
    root_U = np.sqrt(matrices_U)
    apart_LU = np.minimum(2 * slope * root_U * relative_LU, 2.4 * np.sqrt(np.minimum(rows, columns_U)))
    return train.learning_rate * scale_U * root_U * apart_LU
