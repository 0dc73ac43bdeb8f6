# %% [markdown]
# # Exercises in code
#
# Three functions to write yourself: the reduce-scatter of ZeRO, the order of 1F1B, and the zigzag order of a ring.
# Replace each `raise NotImplementedError`, and run the next cell, which checks it. Answers are folded.

# %%
from collections.abc import Callable

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.lax import all_gather, axis_index, dynamic_slice_in_dim, psum, psum_scatter
from jax.sharding import PartitionSpec as P

from strategies.pipelining.orders import SCHEDULES
from strategies.pipelining.schedules import Op

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(jax.sharding.AxisType.Auto,))


def verdict(right: Callable[[], bool]) -> None:
    try:
        print("right" if right() else "wrong")
    except NotImplementedError:
        print("not written yet")


# %% [markdown]
# ## ZeRO-2: add up eighths of gradients
#
# As in [chapter 3](3-fsdp.ipynb), eight devices hold all weights `w_LDD` and compute gradients of their own sequences.
# Now there are two microbatches. Sum the gradients of one over the devices, and keep this device's eighth along the
# first `D`, so that no device adds up whole gradients. You need `psum_scatter`, with `scatter_dimension` and `tiled`.


# %%
def own_eighth_of_sum(grad_LDD):
    raise NotImplementedError


# %%
w_LDD, x_MBD = jax.random.normal(jax.random.key(0), (4, 128, 128)) / 12, jnp.eye(32, 128).reshape(2, 16, 128)


def loss(w_LDD, x_BD):
    for w_DD in w_LDD:
        x_BD = jnp.tanh(x_BD @ w_DD)
    return jnp.square(x_BD).sum()


def zero2(w_LDD, x_MBD, own_eighth_of_sum):
    own_grad = sum(own_eighth_of_sum(jax.grad(loss)(w_LDD, x_BD)) for x_BD in x_MBD)
    own = dynamic_slice_in_dim(w_LDD, axis_index("fsdp") * 16, 16, axis=1)
    return all_gather(own - own_grad, "fsdp", axis=1, tiled=True)


def equals_data_parallel(own_eighth_of_sum):
    def spread(function):
        specs = {"in_specs": (P(), P(None, "fsdp")), "out_specs": P(), "check_vma": False}
        return jax.jit(jax.shard_map(function, mesh=mesh, **specs))(w_LDD, x_MBD)

    data = spread(lambda w_LDD, x_MBD: w_LDD - sum(psum(jax.grad(loss)(w_LDD, x_BD), "fsdp") for x_BD in x_MBD))
    return bool(jnp.allclose(spread(lambda w, x: zero2(w, x, own_eighth_of_sum)), data, atol=1e-5))


verdict(lambda: equals_data_parallel(own_eighth_of_sum))

# %% tags=["answer"]
verdict(lambda: equals_data_parallel(lambda grad_LDD: psum_scatter(grad_LDD, "fsdp", scatter_dimension=1, tiled=True)))

# %% [markdown]
# ## 1F1B: the order of a stage
#
# As in [chapter 5](5-pipeline.ipynb): stage s of S first runs S - 1 - s forward passes, one for each later stage, but
# at most M. Then it alternates, one forward and one backward pass. At the end it runs the remaining backward passes.
# Write the order of one stage as a list, such as `[("F", 0), ("B", 0)]`.


# %%
def one_f_one_b(stage, stages, microbatches):
    raise NotImplementedError


# %%
def is_1f1b(order):
    sizes = [(2, 1), (4, 2), (4, 8)]
    return all(
        [Op(*each) for each in order(stage, stages, microbatches)]
        == list(SCHEDULES["1f1b"](stages, microbatches).orders[stage])
        for stages, microbatches in sizes
        for stage in range(stages)
    )


verdict(lambda: is_1f1b(one_f_one_b))


# %% tags=["answer"]
def answer(stage, stages, microbatches):
    ahead = min(stages - 1 - stage, microbatches)
    forward, backward = ([(kind, m) for m in range(microbatches)] for kind in "FB")
    pairs = zip(forward[ahead:], backward, strict=False)
    return [*forward[:ahead], *(each for pair in pairs for each in pair), *backward[microbatches - ahead :]]


verdict(lambda: is_1f1b(answer))

# %% [markdown]
# ## Zigzag: the same work for each device of a ring
#
# In [chapter 6](6-context.ipynb) the last device attends to eight chunks of keys, the first to one. Cut the sequence
# into 2 n chunks instead, and give device i the chunks i and 2 n - 1 - i. Write the positions of the tokens of each
# device, as an array `[devices, tokens of a device]`.


# %%
def zigzag(tokens, devices):
    raise NotImplementedError


# %% [markdown]
# A token at position p attends to p + 1 tokens. All devices must have the same number of pairs, and each token once.


# %%
def is_balanced(zigzag):
    positions_nt = np.asarray(zigzag(64, 8))
    pairs_n = (positions_nt + 1).sum(1)
    chunks = positions_nt.reshape(8, 2, 4)
    together = (np.diff(chunks) == 1).all() and (np.sort(positions_nt.ravel()) == np.arange(64)).all()
    return bool(positions_nt.shape == (8, 8) and together and (pairs_n == pairs_n[0]).all())


verdict(lambda: is_balanced(zigzag))


# %% tags=["answer"]
def zigzag_answer(tokens, devices):
    chunks = np.arange(tokens).reshape(2 * devices, -1)
    return np.concatenate([chunks[:devices], chunks[: devices - 1 : -1]], axis=1)


verdict(lambda: is_balanced(zigzag_answer))

# %% [markdown]
# The pairs of queries and keys of each device, in the order of the sequence and in zigzag order:

# %%
_, ax = plt.subplots(figsize=(6, 2.6), num="Pairs of queries and keys of each device of a ring")
for name, order_nt in {"contiguous": np.arange(64).reshape(8, 8), "zigzag": zigzag_answer(64, 8)}.items():
    ax.plot((order_nt + 1).sum(1), "o-", label=name)
ax.set(xlabel="device", ylabel="pairs", ylim=0)
ax.legend(frameon=False)
