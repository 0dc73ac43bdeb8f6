# %% [markdown]
# # 3. ZeRO and FSDP, one collective at a time
#
# In [chapter 2](2-data.ipynb) all devices hold the same weights, gradients and moments, and make the same update.
# ZeRO removes these copies one after another. The model is a stack of four matmuls, on eight devices.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from jax.lax import all_gather, psum_scatter, scan
from jax.sharding import PartitionSpec as P

from benchmarks.program.compiled import read_program
from strategies.costs.overview import overview

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(jax.sharding.AxisType.Auto,))
w_LDD, x_BD = jax.random.normal(jax.random.key(0), (4, 128, 128)) / 12, jnp.eye(16, 128)


def sent(function, weights):
    split = {"in_specs": (weights, P("fsdp")), "out_specs": weights, "check_vma": False}
    function = jax.jit(jax.shard_map(function, mesh=mesh, **split))
    program = read_program(function.lower(w_LDD, x_BD).compile().as_text(), {"fsdp": 8})
    for each in program.collectives:
        print(f"{each.times} x {each.kind}, in all {int(each.times * each.sent_bytes):,} bytes")
    return function(w_LDD, x_BD)


def loss(w_LDD, x_BD, use=lambda w_DD: w_DD):
    layer = jax.checkpoint(lambda x_BD, w_DD: (jnp.tanh(x_BD @ use(w_DD)), None))
    return jnp.square(scan(layer, x_BD, w_LDD)[0]).sum()


# %% [markdown]
# ## Data parallelism, once more
#
# Gradients are all-reduced: 4 × 128 × 128 numbers of 4 bytes are 262,144, and 2 × 262,144 × 7/8 = 458,752 are sent.


# %%
def data(w_LDD, x_BD):
    return w_LDD - jax.lax.psum(jax.grad(loss)(w_LDD, x_BD), "fsdp")


expected = sent(data, P())

# %% [markdown]
# ## ZeRO-1: an all-reduce is a reduce-scatter and an all-gather
#
# A **reduce-scatter** sums, and leaves each device an eighth of the sum. Each sends the seven parts that it does not
# keep: b (n-1)/n bytes. An **all-gather** gives all devices all eighths, and sends the same number. ZeRO updates
# between them: each device updates its rows, and needs only their moments.
#
# ![Reduce-scatter](reduce-scatter.svg)
#
# ![All-gather](all-gather.svg)


# %%
def zero(w_LDD, x_BD):
    own_grad = psum_scatter(jax.grad(loss)(w_LDD, x_BD), "fsdp", scatter_dimension=1, tiled=True)
    own = jax.lax.dynamic_slice_in_dim(w_LDD, jax.lax.axis_index("fsdp") * 16, 16, axis=1)
    return all_gather(own - own_grad, "fsdp", axis=1, tiled=True)


print(jnp.allclose(sent(zero, P()), expected, atol=1e-5))

# %% [markdown]
# The bytes are unchanged, and an eighth of the moments is held. ZeRO-2 keeps only its eighth of the gradients that
# [microbatches](../reference/glossary.md#microbatch) add up.
#
# ## FSDP: weights are split as well
#
# A device gathers a layer's weights before it uses them, and drops them. The backward pass gathers them again,
# because `jax.checkpoint` keeps only inputs ([remat](../reference/glossary.md#remat)). The transpose of an all-gather
# is a reduce-scatter, so autodiff sums the gradients: 3 b (n-1)/n in all.


# %%
def fsdp(own_LDD, x_BD):
    return own_LDD - jax.grad(loss)(own_LDD, x_BD, lambda own: all_gather(own, "fsdp", tiled=True))


print(jnp.allclose(sent(fsdp, P(None, "fsdp")), expected, atol=1e-5))

# %% [markdown]
# What a device holds of `nano`, with two microbatches:

# %%
_, ax = plt.subplots(figsize=(7, 2.6), num="MiB that each of eight devices holds of nano")
for name, spec in {"fsdp": "fsdp=8", "zero2": "data=8", "zero1": "data=8", "data": "data=8"}.items():
    left = 0.0
    for i, held in enumerate(overview(name, "nano", spec, microbatches=2).held[1:]):
        ax.barh(name, held.held_bytes / 2**20, left=left, color=f"C{i}")
        left += held.held_bytes / 2**20
ax.legend(["weights", "gradients", "m and v", "activations"], title="MiB on each device", frameon=False)

# %% [markdown]
# ## Exercise: FSDP's bytes by hand
#
# What does one of eight devices send in a step of `nano`? It has 1,627,392 parameters: 8 layers, and 41,216 in
# embedding and head. D = 128.
#
# - Forward, all are gathered.
# - Backward, the layers are gathered again, but for their biases, 9 D in each, which no gradient needs.
# - All gradients are scattered, those of the token table of 256 × D twice: embedding and head share it.
# - Loss and gradient norm are all-reduced, 7 bytes each.
#
# <details markdown="1"><summary>Answer</summary>
#
# Forward 1,627,392 × 4 × 7/8 = 5,695,872. Backward, without 9 × 8 × 128 = 9,216 numbers in biases,
# (1,627,392 - 41,216 - 9,216) × 3.5 = 5,519,360. Gradients (1,627,392 + 32,768) × 3.5 = 5,810,560. With 14
# bytes, 17,025,806.
#
# </details>
#
# Then [write](exercises.ipynb) ZeRO-2.

# %% tags=["answer"]
print(overview("fsdp", "nano", "fsdp=8"))
