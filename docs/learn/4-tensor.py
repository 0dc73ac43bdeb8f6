# %% [markdown]
# # 4. Tensor parallelism
#
# All devices work on the same sequences, and each matmul is split. Activations are sent in every layer.
#
# ## A column split, then a row split
#
# Megatron splits the first matrix of an MLP by columns: each device computes its own features, and sends nothing. It
# splits the second by rows: each device has a partial sum of the output, and one all-reduce ends the MLP. Attention
# is split by heads in the same way. In the picture a colour is a device.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.lax import all_gather, pmax, psum, psum_scatter
from jax.sharding import PartitionSpec as P

from benchmarks.program.compiled import read_program
from strategies.costs.overview import overview

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
mesh = jax.make_mesh((8,), ("tensor",), axis_types=(jax.sharding.AxisType.Auto,))

columns, rows = np.arange(8)[None], np.arange(8)[:, None]
weights = {"up 128 × 512": columns, "down 512 × 128": rows, "token table 256 × 128": rows}
_, axes = plt.subplots(1, 3, figsize=(8, 2.5), num="Which of eight devices holds which part of a weight")
for ax, (name, device) in zip(axes, weights.items(), strict=True):
    height, _, width = name.split()[-3:]
    ax.imshow(device, cmap="tab10", vmax=9, extent=(0, int(width), int(height), 0))
    ax.set(title=name, xticks=[], yticks=[])


# %%
def sent(function, *arrays, specs):
    function = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=specs[0]))
    text = function.lower(*arrays).compile().as_text()
    for each in read_program(text, {"tensor": 8}).collectives:
        print(each.kind, f"{int(each.times * each.sent_bytes):,} bytes")


def mlp(x_ND, up_DF, down_FD):
    return psum(jax.nn.gelu(x_ND @ up_DF) @ down_FD, "tensor")


x_ND, up_DF, down_FD = jnp.ones((1024, 128)), jnp.ones((128, 512)), jnp.ones((512, 128))
sent(mlp, x_ND, up_DF, down_FD, specs=(P(), P(None, "tensor"), P("tensor")))

# %% [markdown]
# By hand: 16 × 64 tokens of 128 features are 524,288 bytes, and 2 × 524,288 × 7/8 = 917,504. The backward pass has
# another all-reduce, of the gradient of `x_ND`.
#
# With **sequence parallelism** each device keeps an eighth of the tokens outside the MLP. An all-gather before the MLP
# and a reduce-scatter after it replace the all-reduce. The bytes are unchanged.


# %%
def sequence_parallel(own_ND, up_DF, down_FD):
    x_ND = all_gather(own_ND, "tensor", tiled=True)
    return psum_scatter(jax.nn.gelu(x_ND @ up_DF) @ down_FD, "tensor", tiled=True)


sent(sequence_parallel, x_ND, up_DF, down_FD, specs=(P("tensor"), P(None, "tensor"), P("tensor")))

# %% [markdown]
# ## Embedding and loss, split over the vocabulary
#
# Each device has some rows of the token table. The embedding looks up tokens of these rows, takes zeros for others,
# and is summed. For the loss a device computes the logits of its rows. Three numbers a token are exchanged: the
# largest logit, the sum of exponentials and the target's logit.


# %%
def losses(targets_N, x_ND, table_VD):
    logits_NV = x_ND @ table_VD.T
    row_V = jax.lax.axis_index("tensor") * len(table_VD) + jnp.arange(len(table_VD))
    largest_N = pmax(logits_NV.max(-1), "tensor")
    total_N = psum(jnp.exp(logits_NV - largest_N[:, None]).sum(-1), "tensor")
    target_N = psum(jnp.where(row_V == targets_N[:, None], logits_NV, 0).sum(-1), "tensor")
    return jnp.log(total_N) + largest_N - target_N


sent(losses, jnp.zeros(1024, int), x_ND, jnp.ones((256, 128)), specs=(P(), P(), P("tensor")))

# %% [markdown]
# By hand: 3 × 2 × 1,024 × 4 × 7/8 = 21,504. All logits would be 256 numbers for each token.
#
# ## Exercise: tensor parallelism's bytes by hand
#
# What does one of eight devices send in a step of `nano`, with 8 layers and 16 × 64 tokens of D = 128 features?
#
# - A layer has attention and an MLP, each with a gather and a scatter as above. The backward pass runs their
#   transposes, and gathers the input again.
# - The embedding ends with a scatter, the head starts with a gather, each with its transpose.
# - Gradients of weights that are not split are all-reduced: six vectors of D in each layer, 64 positions and two more.
#
# <details markdown="1"><summary>Answer</summary>
#
# A gather or scatter sends 524,288 × 7/8 = 458,752. There are 10 in each layer and 4 besides: 84 × 458,752 =
# 38,535,168. The loss takes 21,504, and (48 + 64 + 2) × 128 gradients take 2 × 58,368 × 7/8 = 102,144. With 7 for
# the norm, 38,658,823.
#
# </details>

# %% tags=["answer"]
print(overview("tensor", "nano", "tensor=8"))
