# %% [markdown]
# # 8. Experts
#
# A mixture of experts has E MLPs in each layer, and a router that sends each token to k of them: the weights of E, the
# FLOPs of k. Here E = 8 and k = 2, on eight devices with one expert each. Tokens of all devices go to the devices of
# their experts, and come back.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from jax.lax import all_to_all, top_k
from jax.nn import one_hot
from jax.sharding import PartitionSpec as P

from benchmarks.program.compiled import read_program
from strategies.costs.overview import overview

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
mesh = jax.make_mesh((8,), ("expert",), axis_types=(jax.sharding.AxisType.Auto,))
x_GTD = jax.random.normal(jax.random.key(0), (16, 64, 128)) + 0.5
router_DE = jax.random.normal(jax.random.key(1), (128, 8)) / 12
w_EDD = jax.random.normal(jax.random.key(2), (8, 128, 128)) / 12

# %% [markdown]
# ## Buffers
#
# Compiled programs have arrays of fixed shape, so an expert gets a buffer of C rows for each sequence, its
# **capacity**. With a capacity factor of 1.25 C is 1.25 × 64 k / E = 20. Tokens take rows in their order.
# Choices beyond C are dropped: the expert adds nothing to these tokens. In the picture a point is a sequence, and what
# is above the line is dropped: some experts are chosen more often than others.


# %%
def routed(x_GTD):
    weight_GTk, expert_GTk = top_k(jax.nn.softmax(x_GTD @ router_DE), 2)
    chosen_GME = one_hot(expert_GTk, 8).reshape(len(x_GTD), -1, 8)
    row_GME = jnp.where(chosen_GME, chosen_GME.cumsum(1) - 1, -1)
    return weight_GTk, one_hot(row_GME, 20).reshape(*expert_GTk.shape, 8, 20)


chosen_GE = one_hot(top_k(x_GTD @ router_DE, 2)[1], 8).sum((1, 2))
_, ax = plt.subplots(figsize=(6, 2.6), num="Choices of each expert in 16 sequences, and the rows of its buffers")
ax.plot(chosen_GE.T, "C0o", alpha=0.4)
ax.axhline(20, color="C3")
ax.set(xlabel="expert", ylabel="choices in a sequence")
print("dropped:", int((chosen_GE - 20).clip(0).sum()), "of", int(chosen_GE.sum()))

# %% [markdown]
# ## Dispatch and combine
#
# A device fills buffers for all experts with its two sequences. One all-to-all sends each buffer to the device of its
# expert, **dispatch**, and another brings the outputs back, **combine**. Without exchanges the same function runs on
# one device, with the same result.


# %%
def mixture(x_GTD, w_EDD, exchange=lambda x, split, join: x):
    weight_GTk, row_GTkEC = routed(x_GTD)
    x_EGCD = exchange(jnp.einsum("gtkec,gtd->egcd", row_GTkEC, x_GTD), 0, 1)
    y_EGCD = exchange(jnp.tanh(jnp.einsum("egcd,edf->egcf", x_EGCD, w_EDD)), 1, 0)
    return x_GTD + jnp.einsum("gtk,gtkec,egcd->gtd", weight_GTk, row_GTkEC, y_EGCD)


def spread(x_GTD, w_EDD):
    return mixture(x_GTD, w_EDD, lambda x, split, join: all_to_all(x, "expert", split, join, tiled=True))


function = jax.jit(jax.shard_map(spread, mesh=mesh, in_specs=P("expert"), out_specs=P("expert")))
for each in read_program(function.lower(x_GTD, w_EDD).compile().as_text(), {"expert": 8}).collectives:
    print(each.kind, f"{int(each.sent_bytes):,} bytes")
print(jnp.allclose(function(x_GTD, w_EDD), mixture(x_GTD, w_EDD), atol=1e-5))

# %% [markdown]
# By hand: 8 experts × 2 sequences × 20 rows are R = 320 rows. Of 320 × 128 × 4 = 163,840 bytes a device keeps an
# eighth, and sends 143,360. The backward pass has the two transposes.
#
# The experts' gradients need no sum: all tokens of an expert came to its device.
#
# ## Send tokens or weights?
#
# [`fsdp`](3-fsdp.ipynb) sends weights instead, the same for any number of tokens. What one of eight devices
# sends for `nano-moe`:

# %%
for name in ("expert", "fsdp"):
    found = [overview(name, "nano-moe", f"{name}=8", batch_size=batch).sent for batch in (8, 32, 128)]
    print(name, *(f"{sum(sent.sent_bytes for sent in each):,}" for each in found))

# %% [markdown]
# ## Exercise
#
# `nano-moe` has 8 layers with experts as here. A row takes its router's weight along in the dispatch: 129 numbers.
# Besides experts it has 469,120 parameters, whose gradients are all-reduced; so are the choices of each expert in each
# layer, three numbers for the loss, and one for the norm. What does one of eight devices send for 16 sequences?
#
# <details markdown="1"><summary>Answer</summary>
#
# Dispatch 8 × 2 × 320 × 129 × 4 × 7/8 = 2,311,680, combine 8 × 2 × 143,360 = 2,293,760. An all-reduce sends 2 × 4 ×
# 7/8 = 7 bytes a number: 7 × (469,120 + 64 + 3 + 1) = 3,284,316. In all 7,889,756.
#
# </details>

# %% tags=["answer"]
print(overview("expert", "nano-moe", "expert=8"))
