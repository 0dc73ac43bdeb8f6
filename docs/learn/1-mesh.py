# %% [markdown]
# # 1. A mesh, and who holds what
#
# Eight [virtual devices](../reference/glossary.md#virtual-devices) are enough to learn with: CPU devices that JAX
# makes on one machine. A [mesh](../reference/glossary.md#mesh) arranges them as a grid with named
# [axes](../reference/glossary.md#axis).

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.program.compiled import read_program
from strategies.costs.overview import overview

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
mesh = jax.make_mesh((4, 2), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
print(mesh.devices)

# %% [markdown]
# ## A sharded array
#
# A [sharding](../reference/glossary.md#sharding) says which mesh axis splits which dimension. Here `tensor` splits
# the rows and `fsdp` the columns, so each device holds an eighth.

# %%
out_AD = jax.device_put(jnp.ones((128, 128)), NamedSharding(mesh, P("tensor", "fsdp")))
jax.debug.visualize_array_sharding(out_AD)
print(f"{out_AD.nbytes:,} bytes, on a device {out_AD.addressable_shards[0].data.nbytes:,}")

# %% [markdown]
# An axis that is not named splits nothing: devices along it hold the same part. In the picture a column is a device,
# and colour marks what it holds of the array.

# %%
specs = [P("fsdp", "tensor"), P("fsdp", None), P(None, "tensor"), P()]
title = "Four shardings of one array: what each of the eight devices holds of it"
_, panels = plt.subplots(len(specs), 8, figsize=(8, 4.2), num=title)
for spec, row in zip(specs, panels, strict=True):
    for device, part in NamedSharding(mesh, spec).devices_indices_map((8, 8)).items():
        held = np.full((8, 8), np.nan)
        held[part] = device.id
        row[device.id].imshow(held, cmap="tab10", vmin=0, vmax=9)
        row[device.id].set(xticks=[], yticks=[])
        panels[0, device.id].set_title(f"device {device.id}", fontsize=9)
    row[0].set_ylabel(f"P{tuple(spec)}", rotation=0, ha="right")

# %% [markdown]
# ## Computation follows data
#
# The compiler sees how the operands are split, and adds the [collectives](../reference/glossary.md#collective) that
# the result needs. If rows of `x` are split, nothing is sent. If the dimension that is summed over is split, each
# device has a partial sum, and an all-reduce adds them up:
#
# ![All-reduce](all-reduce.svg)


# %%
def sent(function, *arrays):
    text = jax.jit(function).lower(*arrays).compile().as_text()
    found = read_program(text, dict(mesh.shape)).collectives
    return [(each.kind, each.axes, int(each.times * each.sent_bytes)) for each in found]


def split(shape, *spec):
    return jax.device_put(jnp.ones(shape), NamedSharding(mesh, P(*spec)))


x, w = (16, 128), (128, 512)
print(sent(jnp.matmul, split(x, "fsdp"), split(w)))
print(sent(jnp.matmul, split(x, None, "tensor"), split(w, "tensor")))

# %% [markdown]
# The result has 16 × 512 × 4 = 32,768 bytes. Each of two devices sends half of it twice: once to add, once to share
# ([chapter 3](3-fsdp.ipynb)).
#
# ## The same for a whole model
#
# `meshmark show three_d --mesh fsdp=4,tensor=2 --preset nano` lists every array of a training step in this way.
# `blocks.attention.out_AD` is the array above, once for each of eight layers.

# %%
for each in overview("three_d", "nano", "fsdp=4,tensor=2").arrays:
    if each.what == "weight" and "attention" in each.name:
        print(f"{each.name:27} {each.held_bytes:8,} bytes  {each.split}")

# %% [markdown]
# ## Exercise
#
# Two axes can split one dimension, the outer one first. An array of 16 × 8 has the sharding `P(None, ("tensor",
# "fsdp"))` on this mesh. Which part does device 5 hold?
#
# <details markdown="1"><summary>Answer</summary>
#
# Device 5 has the position 2 along `fsdp` and 1 along `tensor`. `tensor` halves the columns, and it takes the second
# half, 4 to 7. `fsdp` quarters that half, and it takes the third quarter: all rows of column 6.
#
# </details>

# %% tags=["answer"]
sharding = NamedSharding(mesh, P(None, ("tensor", "fsdp")))
print(sharding.devices_indices_map((16, 8))[jax.devices()[5]])
