"""One of several processes that compute the same gradients several times:
`python -m tests.strategies.repeat_gradients_in_process HOST:PORT PROCESSES INDEX STRATEGY TIMES`.

In the end it prints how many different gradients its devices have found.
"""

import dataclasses
import sys

import jax
import numpy as np

where, processes, index, name, times = sys.argv[1:]
jax.distributed.initialize(where, int(processes), int(index), heartbeat_timeout_seconds=10)

from strategies import PRESETS, STRATEGIES, TrainConfig  # noqa: E402
from strategies.costs.defaults import usual_mesh  # noqa: E402
from tests.strategies.quick import compiled  # noqa: E402

# Parts of 128 KiB: of small ones gloo's reduce-scatter was right.
CONFIG = dataclasses.replace(PRESETS["nano"], layers=2)
step = STRATEGIES[name].build(CONFIG, usual_mesh(STRATEGIES[name], jax.device_count()), TrainConfig(batch_size=8))
key = jax.random.key(0)
state = compiled(step.init.lower(key))(key)
batch = step.place(np.random.default_rng(0).integers(0, CONFIG.vocab, step.batch.shape, np.int32))
program = compiled(step.gradients.lower(state, batch))
found = {
    b"".join(shard.data.tobytes() for x in jax.tree.leaves(program(state, batch)) for shard in x.addressable_shards)
    for _ in range(int(times))
}
print("", f"{len(found)} in {times}", sep="\n")
