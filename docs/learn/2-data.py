# %% [markdown]
# # 2. Data parallelism
#
# The simplest strategy splits the batch. Every device holds all weights, and computes gradients of its own sequences.
# One matmul shows all of it.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.program.compiled import read_program
from strategies.costs.overview import overview

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
x_BD = jax.random.normal(jax.random.key(0), (16, 128))
x_BD = jax.device_put(x_BD, NamedSharding(mesh, P("data")))
w_DF = jax.device_put(jnp.ones((128, 512)), NamedSharding(mesh, P()))


def loss(w_DF, x_BD):
    return jnp.square(x_BD @ w_DF - 1).mean()


# %% [markdown]
# ## The gradient is a sum
#
# The gradient of `w_DF` sums over the batch, which is split. So each device has a partial sum, and an all-reduce adds
# them. The compiler finds this by itself. With `shard_map`, where a function sees the part of one device, we write
# it.


# %%
def by_hand(w_DF, x_BD):
    return jax.lax.pmean(jax.grad(loss)(w_DF, x_BD), "data")


def sent(function, *arrays):
    text = jax.jit(function).lower(*arrays).compile().as_text()
    found = read_program(text, dict(mesh.shape)).collectives
    return [(each.kind, int(each.times * each.sent_bytes)) for each in found]


specs = {"in_specs": (P(), P("data")), "out_specs": P(), "check_vma": False}
by_hand = jax.shard_map(by_hand, mesh=mesh, **specs)
print(sent(jax.grad(loss), w_DF, x_BD), sent(by_hand, w_DF, x_BD))
print(jnp.allclose(jax.grad(loss)(w_DF, x_BD), by_hand(w_DF, x_BD), atol=1e-6))

# %% [markdown]
# (`check_vma=False` means that JAX adds no sums of its own.)
#
# **By hand.** In an all-reduce of b bytes over n devices each sends 2 b (n-1)/n. The gradient has 128 × 512 numbers
# of 4 bytes, so that is 2 × 262,144 × 7/8 = 458,752. It does not depend on the batch size.
#
# ## What a device holds
#
# Training needs more than weights. For each parameter, in float32:
#
# | array | bytes |
# |---|---|
# | weight | 4 |
# | gradient | 4 |
# | AdamW's moments m and v | 8 |
#
# The forward pass also keeps activations for the backward pass, the [residuals](../reference/glossary.md#residuals).
# More devices make only these smaller. The [preset](../reference/glossary.md#preset) `nano` is a GPT of 1,627,392
# parameters. The picture is drawn from formulas, which meshmark's tests compare with compiled programs.

# %%
_, ax = plt.subplots(figsize=(7, 3), num="Data parallelism: only activations shrink")
for n in (1, 2, 4, 8):
    left = 0.0
    for i, held in enumerate(overview("data", "nano", f"data={n}").held[1:]):
        ax.barh(f"data={n}", held.held_bytes / 2**20, left=left, color=f"C{i}")
        left += held.held_bytes / 2**20
ax.legend(["weights", "gradients", "m and v", "activations"], frameon=False)
ax.set_xlabel("MiB on each device")

# %% [markdown]
# ## The same for a whole model
#
# `meshmark show data --mesh data=8 --preset nano` prints:

# %%
print(overview("data", "nano", "data=8"))

# %% [markdown]
# ## Exercise
#
# How many bytes of weights, gradients and moments does a device hold on `data=4`, and how many of gradients does it
# send?
#
# <details markdown="1"><summary>Answer</summary>
#
# It holds 16 bytes for each parameter, 26,038,272, whatever the number of devices. It sends 2 × 1,627,392 × 4 × 3/4 =
# 9,764,352.
#
# </details>

# %% tags=["answer"]
print(overview("data", "nano", "data=4"))
