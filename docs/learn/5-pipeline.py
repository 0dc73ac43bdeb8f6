# %% [markdown]
# # 5. Pipelines
#
# A pipeline splits the layers: each device is a [stage](../reference/glossary.md#stage) that holds some of them. It
# sends activations to the next stage, and gets gradients back. A stage waits until its input is there. The idle share
# of its time is the [bubble](../reference/glossary.md#bubble).
#
# ## A pipeline of matmuls
#
# Four stages hold a matrix each. In every [tick](../reference/glossary.md#tick), a stage multiplies what it has, and
# passes the result on by a permute:
#
# ![Permute](permute.svg)
#
# With M [microbatches](../reference/glossary.md#microbatch) and S stages, the last
# result is ready after M + S - 1 ticks, of which a stage needs M. So the bubble is (S-1)/(M+S-1).

# %%
from time import process_time
from timeit import repeat

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from jax.lax import axis_index, ppermute, scan
from jax.sharding import PartitionSpec as P

from benchmarks.program.compiled import read_program
from strategies.pipelining.orders import SCHEDULES

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
mesh = jax.make_mesh((4,), ("pipeline",), axis_types=(jax.sharding.AxisType.Auto,))
w_SDD, x_MBD = jax.random.normal(jax.random.key(0), (4, 512, 512)) / 16, jnp.ones((32, 64, 512))


def pipeline(w_1DD, x_MBD):
    def tick(received_BD, x_BD):
        y_BD = jnp.tanh(jnp.where(axis_index("pipeline") == 0, x_BD, received_BD) @ w_1DD[0])
        return ppermute(y_BD, "pipeline", [(0, 1), (1, 2), (2, 3)]), y_BD

    last_BD = jnp.zeros_like(x_MBD[:3])  # what the first stage gets in the last three ticks
    return scan(tick, last_BD[0], jnp.concatenate([x_MBD, last_BD]))[1][None, 3:]


specs = {"in_specs": (P("pipeline"), P()), "out_specs": P("pipeline"), "check_vma": False}
pipeline = jax.jit(jax.shard_map(pipeline, mesh=mesh, **specs))
y_MBD, _ = scan(lambda y_MBD, w_DD: (jnp.tanh(y_MBD @ w_DD), None), x_MBD, w_SDD)
print(jnp.allclose(pipeline(w_SDD, x_MBD)[-1], y_MBD, atol=1e-5))

# %% [markdown]
# The FLOPs of the compiled program, over those of one matmul, are the ticks:

# %%
for M in (4, 32):
    text = pipeline.lower(w_SDD, x_MBD[:M]).compile().as_text()
    ticks = read_program(text, {"pipeline": 4}).flops // (2 * 64 * 512 * 512)
    print(f"M={M}: {ticks} ticks, of which {1 - M / ticks:.1%} are the bubble")

# %% [markdown]
# **Measured.** In idle ticks these stages compute, too, on numbers that nobody uses. So processor time grows with the
# ticks, and the difference of two times gives that of one. The call takes longer than M such ticks; the rest is the
# bubble and the call's fixed cost. This is one run on two busy cores:


# %% tags=["varies"]
def seconds(x_MBD):
    run = {"number": 1, "repeat": 20, "timer": process_time}
    return min(repeat(lambda: pipeline(w_SDD, x_MBD).block_until_ready(), **run))


tick = (seconds(x_MBD) - seconds(x_MBD[:4])) / 28
print(f"M=4: bubble measured {1 - 4 * tick / seconds(x_MBD[:4]):.0%}, formula {3 / 7:.0%}")

# %% [markdown]
# ## Four schedules
#
# A step also has a backward pass, which takes twice as long. A [schedule](../reference/glossary.md#schedule) is the
# order of both. The naive pipeline has one microbatch. GPipe runs all forward passes, then all backward passes, and
# keeps activations of all microbatches. 1F1B alternates: the same bubble, but at most S microbatches in flight. ZB-H1
# splits the backward pass into gradients of inputs, for which other stages wait, and gradients of weights, which fill
# idle time: its bubble is (S-1)/(3M+S-1).

# %%
_, axes = plt.subplots(4, 1, figsize=(8, 6), layout="tight", sharex=True, num="Four schedules, stage by stage")
for ax, name, M in zip(axes, ["gpipe", "gpipe", "1f1b", "zb-h1"], [1, 8, 8, 8], strict=True):
    schedule = SCHEDULES[name](4, M)
    for (stage, op), start in schedule.starts(lambda _, op, of=schedule.duration: of(op)).items():
        ax.barh(stage, schedule.duration(op), left=start, color=f"C{'FBW'.index(op.kind)}", edgecolor="w")
    ax.set(title=f"{name}, M={M}", ylabel="stage", ylim=(3.5, -0.5))
    print(f"{name:6} M={M} bubble {schedule.bubble():.1%}, in flight {schedule.in_flight(0)}")

# %% [markdown]
# Forward is blue, backward orange, and gradients of weights by themselves are green. By hand: 3/4, 3/11, 3/11 and
# 3/27. `meshmark schedule zb-h1 --stages 4 --microbatches 8` prints such a table.
#
# ## Exercise
#
# How many microbatches do eight stages need for a bubble of at most 10%, with 1F1B and with ZB-H1?
#
# <details markdown="1"><summary>Answer</summary>
#
# 7/(M+7) ≤ 0.1 takes M = 63, and 7/(3M+7) ≤ 0.1 takes M = 21.
#
# </details>
#
# Then [write](exercises.ipynb) the order of 1F1B yourself.

# %% tags=["answer"]
print(SCHEDULES["1f1b"](8, 63).bubble(), SCHEDULES["zb-h1"](8, 21).bubble())
