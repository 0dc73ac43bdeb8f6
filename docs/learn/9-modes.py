# %% [markdown]
# # 9. Three modes of JAX
#
# JAX offers three ways to spread a step over devices. Here is one step in all of them: the gradient of a matmul's
# weights, accumulated over four microbatches, with data parallelism on eight devices.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.program.compiled import read_program

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
auto = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
explicit = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
x_MBD, w_DF = jax.random.normal(jax.random.key(0), (4, 64, 128)), jax.random.normal(jax.random.key(1), (128, 256)) / 12


def loss(w_DF, x_BD):
    return jnp.square(jnp.tanh(x_BD @ w_DF)).sum()


def accumulate(total_DF, w_DF, x_MBD):
    return jax.lax.scan(lambda total_DF, x_BD: (total_DF + jax.grad(loss)(w_DF, x_BD), None), total_DF, x_MBD)[0]


# %% [markdown]
# ## Auto: the compiler decides
#
# You write the step of one device, and say how its arguments are split. The compiler splits all else, and inserts what
# must be sent ([`auto`](../strategies/auto.md)).


# %%
def by_compiler(w_DF, x_MBD):
    return accumulate(jnp.zeros_like(w_DF), w_DF, x_MBD)


# %% [markdown]
# ## Explicit: the types say it
#
# The type of each array says how it is split. The tag `reduced` on the weights makes their gradients `unreduced`: each
# device keeps its own part of the sum. One `reshard` at the end adds the parts up
# ([`explicit`](../strategies/explicit.md)).


# %%
def by_types(w_DF, x_MBD):
    zeros_DF = jax.reshard(jnp.zeros_like(w_DF), P(unreduced={"data"}))
    return jax.reshard(accumulate(zeros_DF, jax.reshard(w_DF, P(reduced={"data"})), x_MBD), P())


# %% [markdown]
# ## shard_map: you write it
#
# The function sees one device's arrays, and you write each collective. Most strategies of meshmark do so.


# %%
@jax.shard_map(mesh=auto, in_specs=(P(), P(None, "data")), out_specs=P())
def by_hand(w_DF, x_MBD):
    own_DF = jax.lax.pcast(w_DF, "data", to="varying")
    return jax.lax.psum(accumulate(jnp.zeros_like(own_DF), own_DF, x_MBD), "data")


# %% [markdown]
# ## What they send
#
# All three compute the same gradient. A sum of 128 × 256 float32 numbers is an all-reduce of 131,072 bytes, for which a
# device sends 2 × 7/8, 229,376. The compiler adds up the gradient in each microbatch; the program cannot say that this
# may wait. The other two send it once.

# %%
expected_DF, sent = accumulate(jnp.zeros_like(w_DF), w_DF, x_MBD), {}
for name, mesh, function in (
    ("auto", auto, by_compiler),
    ("explicit", explicit, by_types),
    ("shard_map", auto, by_hand),
):
    with jax.set_mesh(mesh):
        placed = jax.device_put((w_DF, x_MBD), (NamedSharding(mesh, P()), NamedSharding(mesh, P(None, "data"))))
        compiled = jax.jit(function).lower(*placed).compile()
        found = read_program(compiled.as_text(), {"data": 8}).collectives
        sent[name] = sum(int(each.times * each.sent_bytes) for each in found)
        print(f"{name}: {sent[name]:,} bytes", jnp.allclose(compiled(*placed), expected_DF, rtol=1e-4, atol=1e-4))
_, ax = plt.subplots(figsize=(5, 2), num="Bytes that a device sends for four microbatches, in three modes")
ax.barh([*sent], [*sent.values()])
ax.set(xlabel="bytes")

# %% [markdown]
# ## Which one?
#
# Choose by what you must say. Auto is the least code. Explicit says when a sum may wait, and JAX refuses an operation
# that it would have to guess. Only `shard_map` orders collectives and work by hand, as pipelines and rings do.
# [This page](../reference/auto-explicit-or-shard-map.md) compares them for whole models.
#
# ## Exercise
#
# What does a device send in each mode with eight microbatches, and what with one?
#
# <details markdown="1"><summary>Answer</summary>
#
# With eight: auto 8 × 229,376 = 1,835,008 bytes, the other two 229,376. With one, all three send 229,376.
#
# </details>
