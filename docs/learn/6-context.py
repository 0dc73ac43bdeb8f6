# %% [markdown]
# # 6. Long sequences
#
# Context parallelism splits the tokens of each sequence. All of a layer but attention works on each token by itself.
# In attention a token needs the keys and values of all tokens before it, which other devices have. There are two
# ways.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from jax.lax import all_to_all, axis_index, ppermute
from jax.nn import dot_product_attention as attention
from jax.sharding import PartitionSpec as P

from benchmarks.program.compiled import read_program
from strategies.costs.overview import overview

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
mesh = jax.make_mesh((8,), ("context",), axis_types=(jax.sharding.AxisType.Auto,))
q, k, v = jax.random.normal(jax.random.key(0), (3, 16, 64, 8, 16))  # [B, T, H, K]


def scores(q, k, first_query, first_key):
    query, key = first_query + jnp.arange(q.shape[1]), first_key + jnp.arange(k.shape[1])
    return jnp.where(query[:, None] >= key, jnp.einsum("bthk,bshk->bhts", q, k) / 4, -jnp.inf)


def sent(function):
    function = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=P(None, "context"), out_specs=P(None, "context")))
    found = read_program(function.lower(q, k, v).compile().as_text(), {"context": 8}).collectives
    print(len(found), found[0].kind, f"{int(sum(each.sent_bytes for each in found)):,} bytes")
    print(jnp.allclose(function(q, k, v), attention(q, k, v, is_causal=True), atol=1e-5))


# %% [markdown]
# ## Around a ring
#
# Each device keeps its queries. Keys and values go around: in each of n-1 turns a device passes on what it has, and
# attends to what it gets. It adds up exponentials, and divides by their total at the end. (Real code subtracts the
# largest score so far. Nothing uses what the last turn passes on, so the compiler drops that.)


# %%
def ring(q, k, v):
    device, own, top, bottom = axis_index("context"), q.shape[1], 0, 0
    for turn in range(8):
        weights = jnp.exp(scores(q, k, device * own, (device - turn) % 8 * own))
        top += jnp.einsum("bhts,bshk->bthk", weights, v)
        bottom += weights.sum(-1).swapaxes(1, 2)[..., None]
        k, v = ppermute((k, v), "context", [(i, (i + 1) % 8) for i in range(8)])
    return top / bottom


sent(ring)

# %% [markdown]
# By hand: an array has 16 × 64 × 128 × 4 = 524,288 bytes, and an eighth of it 65,536. A device sends an eighth of the
# keys and one of the values seven times: 7 × 2 × 65,536 = 917,504.
#
# The picture shows the turn in which a device attends to a chunk of keys. Only the lower triangle has work: the last
# device attends to eight chunks, the first to one. So meshmark gives each device two chunks, one from the front and
# one from the back.

# %%
_, ax = plt.subplots(figsize=(4, 4), num="The turn in which a device attends to a chunk of keys")
ax.imshow(jnp.where(jnp.tri(8), jnp.arange(8)[:, None], jnp.nan), cmap="tab10", vmin=0, vmax=9)
for query, key in jnp.argwhere(jnp.tri(8)).tolist():
    ax.text(key, query, query - key, ha="center", va="center", color="white", weight="bold")
ax.set(xlabel="keys of device", ylabel="queries of device")

# %% [markdown]
# ## All to all
#
# Ulysses exchanges tokens for heads. Before attention an all-to-all gives each device all tokens of an eighth of the
# heads, and after it another gives the tokens back.
#
# ![All-to-all](all-to-all.svg)


# %%
def ulysses(q, k, v):
    q, k, v = (all_to_all(each, "context", 2, 1, tiled=True) for each in (q, k, v))
    return all_to_all(attention(q, k, v, is_causal=True), "context", 1, 2, tiled=True)


sent(ulysses)

# %% [markdown]
# By hand: of four arrays a device has an eighth, and keeps an eighth of that: 4 × 65,536 × 7/8 = 229,376. The number
# of devices must divide the heads.
#
# ## Exercise
#
# Backward around the ring, keys and values go around again, 2 (n-1) chunks. Their gradients go around with them, and
# one turn more to reach their owner: 2 n chunks. An all-to-all has one all-to-all as its transpose. What does one of
# eight devices send for the eight layers of `nano`, either way?
#
# <details markdown="1"><summary>Answer</summary>
#
# A chunk has 65,536 bytes. Ring: 8 × (14 + 14 + 16) × 65,536 = 23,068,672. All to all: 8 × 2 × 229,376 = 3,670,016.
#
# </details>
#
# Then [write](exercises.ipynb) the zigzag order yourself.

# %% tags=["answer"]
print(overview("context", "nano", "context=8", context_attention="ring"))
print(overview("context", "nano", "context=8", context_attention="ulysses"))
