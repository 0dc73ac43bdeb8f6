"""The bounds of the first law, and what holds a step to it: training on any mesh equals training on one device.

Why the bounds are what they are. Spreading a step changes no operation, only the order in which sums are added up:
over the batch (data, fsdp), over a contracted dim (tensor), over the keys of a sequence (context), over microbatches
(pipeline), over the vocabulary.
A sum of n float32 terms in another order differs by about sqrt(n) u, with u = 2^-24, relative to the norm of its
terms (Higham & Mary 2019, theorem 2.4). Along the longest path, forward and back, some 12 such operations a layer each
way follow each other, and their errors add up. `ROUNDING` is that, for the loss and for each gradient in its norm.
Gradients are the first moments of AdamW after one step, divided by 1 - beta1: they are clipped as the step clips them.

AdamW divides each gradient by its own size, so an element much smaller than its array's largest carries that much more
relative error, up to a step of the other sign: each step may carry a parameter lr min(2, 2 error / size) apart. The
bias of the keys has only such elements, its true gradient being zero: softmax does not see what all scores share.

In bfloat16, u = 2^-9 and each operation rounds its result, whatever the order of its float32 sums. A rounding is
uniform within u of the power of two below a number, so relative to numbers whose mantissas are log-uniform on [1, 2)
(Knuth, "The Art of Computer Programming", section 4.2.4) its root mean square is u sqrt(1/3 x 3 / (8 ln 2)) = 0.425 u.
Roundings are independent: over a path of d operations they add up to sqrt(d) times that, and two runs that round at
different places stand apart by sqrt(2) times as much. Norms of arrays have that size and not more, for they are means
over many elements; 0.53 of the bound is the most that was seen. It holds only if long sums are made in float32: the
gradient of a bias, summed over 256 tokens in bfloat16, is off by 1.3 times the bound.

float16 is the same with u = 2^-11: losses are scaled, so that gradients are not so small that they round to less.

Against float32 of the same seed, `TO_FLOAT32`, only one of the two runs rounds. But no rounding cancels any more that
both runs make alike, and a layer rounds 27 times each way. The attention branch rounds the norm; queries, keys and
values, and their sum with the bias; the scaled queries; the weights of softmax; what they mix; the projection; and its
sums with the stream and with the bias: 9 in all. The MLP branch rounds the norm; the hidden features, and their sum
with the bias; 7 operations inside GELU, and its result; the projection; and its two sums: 14. Both round the weights of
two matmuls: 4. The 54 L roundings add up to sqrt(54 L) x 0.425 u. Of gradients 0.63 of that is the most that was seen
in bfloat16, and 0.35 in float16. A bias gradient that is summed in bfloat16 is off by 1.17 times the bound of bfloat16.
"""

import dataclasses
import math
from functools import lru_cache, partial
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather

from strategies import PRESETS, STRATEGIES, TrainConfig
from strategies.core.compression import Kept
from strategies.core.optimizer import Scaled
from strategies.core.rules import Momenta
from strategies.model.weights import by_name
from tests.strategies.quick import compiled

STEPS = 3
# 257 is prime, so every strategy that splits the vocabulary pads it.
CONFIG = dataclasses.replace(PRESETS["nano"], embed=32, sequence=16, vocab=257)
BATCH = 16
TRAIN = TrainConfig(BATCH)
OF_ONE_DEVICE = (
    "batch_size",
    "dtype",
    "z_loss",
    "loss_scale",
    "loss_scale_growth_steps",
    "optimizer",
    "by_head",
    "matrix_scale",
    "momentum_dtype",
    "nesterov",
)
"""Options that change what one device computes; of experts, which are balanced in each microbatch, also these."""
ROUNDOFF = {"bfloat16": 2**-9, "float16": 2**-11}


def rounding_of(config, train):
    """The bound for a model and a batch, relative to a loss or to the norm of a gradient."""
    depth = 2 * 12 * config.layers
    if train.dtype in ROUNDOFF:
        return math.sqrt(2 * depth / (8 * math.log(2))) * ROUNDOFF[train.dtype]
    return depth * math.sqrt(max(train.batch_size * config.sequence, config.vocab, config.mlp_dim)) * 2**-24


ROUNDING = {
    dtype: rounding_of(CONFIG, dataclasses.replace(TRAIN, dtype=dtype)) for dtype in ("float32", "bfloat16", "float16")
}
TO_FLOAT32 = {dtype: math.sqrt(2 * 27 * CONFIG.layers / (8 * math.log(2))) * u for dtype, u in ROUNDOFF.items()}


def build(name, mesh, config=CONFIG, **options):
    """The step of a small model."""
    return STRATEGIES[name].build(config, mesh, dataclasses.replace(TRAIN, **options))


def initial(step):
    """The state before the first step."""
    key = jax.random.key(0)
    return compiled(step.init.lower(key))(key)


def train(name, mesh, config=CONFIG, steps=STEPS, **options):
    """Train a few steps: losses, gradient norms, and the state after each step on the host, without padding."""
    step = build(name, mesh, config, **options)
    return trained(step, initial(step), range(steps))[0]


def trained(step, state, seeds, update=None):
    """What `train` returns, of these batches from this state on; and the last state.

    `update` is the compiled step, if there is one already.
    """
    update = update or compiled(step.lower())
    losses, norms, states = [], [], []
    for seed in seeds:
        tokens = np.random.default_rng(seed).integers(0, step.config.vocab, step.batch.shape).astype(np.int32)
        state, metrics = update(state, step.place(tokens))
        losses.append(float(metrics["loss"]))
        norms.append(float(metrics["grad_norm"]))
        states.append(jax.tree.map_with_path(partial(originals, step.config), ordered_state(step, state)))
    return (np.array(losses), np.array(norms), states), state


def ordered_state(step, state):
    """All arrays of a state, `ordered`."""
    return jax.tree.map_with_path(partial(ordered, step), state)


def originals(config, path, x):
    """An array without copies of KV heads, which must be equal to the bit."""
    kinds = {"qkv_DCA": 2, "qkv_bias_CA": 2, "qk_norm_CA": 1}
    keys = next((kinds[key.key] for key in path if getattr(key, "key", None) in kinds), None)
    if keys is None or x.shape[-1] == config.key_features:
        return x
    by_head = x.reshape(*x.shape[:-1], -1, x.shape[-1] // config.key_features, config.head_dim)
    assert (by_head[..., -keys:, :, :, :] == by_head[..., -keys:, :, :1, :]).all()
    q = np.moveaxis(by_head[..., :-keys, :, :, :], -2, -4)
    q, k = q.reshape(*x.shape[:-2], -1, config.key_features), by_head[..., -keys:, :, 0, :]
    return np.concatenate([q, k.reshape(*x.shape[:-2], keys, -1)], -2)


def ordered(step, path, x):
    """An array on the host: tables without padding, which must be zero, and stacked blocks in the model's order."""
    x = np.array(x if x.is_fully_addressable else process_allgather(x, tiled=True), np.float64)
    places, vocab = step.layer_slots, step.config.vocab
    if places and jax.tree_util.DictKey("blocks") in path:
        assert all((layer == 0).all() for place, layer in zip(places, x, strict=True) if place < 0)
        return x[[places.index(layer) for layer in range(max(places) + 1)]]
    if jax.tree_util.DictKey("token_VD") in path:
        assert (x[vocab:] == 0).all()
        return x[:vocab]
    return x


def single(config=CONFIG, steps=STEPS, **options):
    """The reference: one device, with those of the options that change what it computes."""
    exact = (*OF_ONE_DEVICE, "microbatches") if config.experts else OF_ONE_DEVICE
    return _single(config, steps, *((name, options[name]) for name in exact if name in options))


@lru_cache(maxsize=16)
def _single(config, steps, *options):
    return train("single", "data=1", config, steps, **dict(options))


def assert_equal(mine, reference, rounding, train=TRAIN):
    """Compare losses, norms, gradients and parameters, each with its own bound.

    `train` has the constants of AdamW. Parameters without moments are biases of the router, which move by the same
    steps whatever the rounding. Where there are master weights, they are the parameters.
    """
    for measured, expected in zip(mine[:2], reference[:2], strict=True):
        np.testing.assert_allclose(measured, expected, rtol=rounding)
    moments, expected_moments = firsts(mine[2][0]), firsts(reference[2][0])
    whole = math.sqrt(sum(np.square(g).sum() for g in expected_moments.values()))
    for name, expected in expected_moments.items():
        # A norm below the rounding of the whole gradient is itself rounding.
        error = np.linalg.norm(moments[name] - expected)
        assert error <= rounding * max(np.linalg.norm(expected), 2**-12 * whole), name
    params, expected_params = (by_name(state.master or state.params) for state in (mine[2][-1], reference[2][-1]))
    bounds = drifts(rounding, reference[2], train)
    for name, expected in expected_params.items():
        off, rounded = np.abs(params[name] - expected), 2**-23 * np.abs(expected)
        if matrices := bounds.of_matrices.get(name):
            assert np.linalg.norm(off) <= matrices + np.linalg.norm(rounded), name
        else:
            assert (off <= bounds.of_elements.get(name, 0) + rounded).all(), name


def inner(state):
    """The optimizer's state. In float16 a loss scale is around it, with compression errors."""
    kept = state.optimizer
    return kept.optimizer if isinstance(kept, Scaled | Kept) else kept


def adam(state):
    """AdamW's count and moments."""
    return getattr(inner(state), "optimizer", inner(state))[0]


def firsts(state):
    """First moments by the names of weights."""
    kept = inner(state)
    trees = [adam(state).mu, *([kept.mu] if isinstance(kept, Momenta) else [])]
    return {name: moment for tree in trees for name, moment in by_name(tree).items()}


class Drifts(NamedTuple):
    """How far rounding may drive weights apart: element by element, and in the norm where matrices are updated."""

    of_elements: dict
    of_matrices: dict


def drifts(rounding, states, train):
    """The bounds for runs whose gradients agree to `rounding`, from the states of one of them after each step.

    Muon divides momentum by its norm, and its polynomial is at most 3.4445^5 steep; of SGD, the momentum is the change.
    """
    if train.optimizer == "sgd":
        of_state = [
            {name: 2 * rounding * np.linalg.norm(each) for name, each in firsts(state).items()} for state in states
        ]
        return Drifts({}, {name: train.learning_rate * sum(of[name] for of in of_state) for name in of_state[0]})
    seconds = [by_name(adam(state).nu) for state in states]
    of_elements = {name: drift(rounding, [of[name] for of in seconds], train) for name in seconds[0]}
    of_matrices = {
        name: len(states) * train.learning_rate * steepest_change(moment, 2 * 3.4445**5 * rounding)
        for name, moment in by_name(getattr(inner(states[0]), "mu", {})).items()
    }
    return Drifts(of_elements, of_matrices)


def steepest_change(moment, relative):
    """How far updates of matrices of a stack may differ, in their norm, for a relative error of each matrix.

    An update has the size of a matrix of the rank of its smaller dim, all of whose singular values are 1, scaled by
    0.2 sqrt(the larger dim).
    """
    return 0.2 * relative * math.sqrt(moment.size)


def drift(rounding, second_moments, train):
    """How far AdamW may drive two runs apart, element by element, whose gradients agree to `rounding`."""
    total = 0
    for step, moment in enumerate(second_moments, start=1):
        size, error = np.sqrt(moment / (1 - train.beta2**step)), rounding
        if train.optimizer == "muon" and step > 1:
            # Matrices, whose elements have a deviation of 0.02, have drifted, and so have all gradients.
            error += 12 * train.learning_rate * steepest_change(np.ones(1), 2 * 3.4445**5 * rounding) / 0.02
        total += train.learning_rate * np.minimum(2, 2 * error * size.max() / (size + train.epsilon))
    return total
