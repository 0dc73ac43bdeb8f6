# %% [markdown]
# # 7. Put together
#
# Each of eight devices may use 6 MiB. Weights, gradients and moments of `nano` take 16 × 1,627,392 bytes, 25 MiB,
# before any activation. So the model has to be split, and there are many ways.

# %%
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from pydoc_data.topics import topics

import jax
import matplotlib.pyplot as plt
import numpy as np

from strategies import PRESETS, STRATEGIES, TrainConfig, checkpoints
from strategies.costs.overview import overview

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## Choose
#
# `meshmark search` tries strategies, meshes and options. It drops [candidates](../reference/glossary.md#candidate)
# that do not fit, by the formulas of the chapters before, and keeps 15% of the memory free. It ranks the rest by
# predicted seconds, here for eight H100s. Seconds of a model as small as `nano` mean little on them: what counts here
# is which meshes fit. Of all strategies only combinations of axes are tried here. The cell runs the package as a
# module, in case the command is not on the `PATH`.

# %%
run = "search --topology h100:1x8 --strategy three_d --preset nano --batch-size 8 --dtype float32 --set hbm=6MiB --json"
subprocess.run([sys.executable, "-m", "benchmarks", *run.split(), folder / "found"], check=True, capture_output=True)
found = json.loads((folder / "found").read_text())
best = found["candidates"][0]
print("candidates that fit:", sum(candidate["status"] == "fits" for candidate in found["candidates"]))
print(best["strategy"], best["mesh"], f"needs {best['needed_bytes']:,} of {found['usable_bytes']:,} bytes")

# %% [markdown]
# Three axes, each as in its chapter: `fsdp` splits the batch and gathers weights, `pipeline` splits the layers into
# stages, and `tensor` splits every matmul.
#
# ## Train, save, restore
#
# A step is built from a strategy, a mesh and a `TrainConfig`, and `init` makes the state in shards. Tokens are the
# bytes of a text. After 24 steps the state is saved. Any other strategy restores it, on any mesh: each device reads
# the parts that it holds. So training continues with `fsdp=8`, and the loss of a batch is the same as before.


# %%
def batch(i):
    starts = np.random.default_rng(i).integers(0, len(text) - 65, 8)
    return np.stack([text[start : start + 65] for start in starts])


def train(step, state, steps, colour):
    for i in steps:
        state, metrics = step(state, batch(i))
        ax.plot(i, metrics["loss"], "o", color=colour)
    return state


text = np.frombuffer(topics["typesseq"].encode(), np.uint8)
options = {name: best[name] for name in ("microbatches", "remat")} | best["options"]
step = STRATEGIES["three_d"].build(PRESETS["nano"], best["mesh"], TrainConfig(8, learning_rate=3e-3, **options))
other = STRATEGIES["fsdp"].build(PRESETS["nano"], "fsdp=8", TrainConfig(8, learning_rate=3e-3))

_, ax = plt.subplots(num="Loss by step: three axes, then fsdp=8", subplot_kw={"xlabel": "step", "ylabel": "loss"})
state = train(step, step.init(jax.random.key(0)), range(24), "C0")
checkpoints.save(step, state, folder).wait()
restored = checkpoints.restore(other, folder)
before, after = step.evaluate(state.params, batch(24)), other.evaluate(restored.params, batch(24))
print("the same loss:", np.allclose(before, after, rtol=1e-5), "below 3.5:", bool(before < 3.5))
train(other, restored, range(24, 32), "C1")

# %% [markdown]
# Blue: three axes. Orange: restored, with `fsdp=8`. `meshmark train` does the same with logs, evaluation and samples
# ([training](../guides/training.md)), and [checkpoints](../guides/checkpoints.md) says what is stored.
#
# ## Exercise
#
# On `fsdp=2,pipeline=2,tensor=2`, which part of the 16 bytes for each parameter does a device hold? Why is it more
# than an eighth?
#
# <details markdown="1"><summary>Answer</summary>
#
# An eighth would be 3,254,784 bytes. It holds 829,440 + 829,440 + 1,658,880 = 3,317,760. `tensor` does not split six
# vectors of each layer, and only `fsdp` splits positions and the last norm.
#
# </details>

# %% tags=["answer"]
print(overview("three_d", "nano", "fsdp=2,pipeline=2,tensor=2", batch_size=8))
