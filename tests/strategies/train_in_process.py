"""One of several processes that train on one mesh:
`python -m tests.strategies.train_in_process HOST:PORT PROCESSES INDEX [STRATEGY:MESH ...]`.

In the end it prints each case that equals `single` on its own first device, and the sequences of a batch that it read.
It prints last, so that no output of gloo comes in between.
"""

import sys

import jax
import numpy as np

where, processes, index, *cases = sys.argv[1:]
jax.distributed.initialize(where, int(processes), int(index), heartbeat_timeout_seconds=10)

from strategies import STRATEGIES, MeshSpec  # noqa: E402
from tests.strategies.equality import CONFIG, ROUNDING, TRAIN, assert_equal, single, train  # noqa: E402


class Asked:
    """A batch that records which of its sequences are read."""

    shape = TRAIN.batch_size, CONFIG.sequence + 1

    def __init__(self):
        self.rows = set()

    def __getitem__(self, part):
        self.rows |= {*range(self.shape[0])[part[0]]}
        return np.zeros(self.shape, np.int32)[part]


for case in cases:
    name, _, mesh = case.partition(":")
    spec = MeshSpec.parse(mesh)
    microbatches = 4 if "pipeline" in spec.sizes else 1
    assert_equal(train(name, spec, microbatches=microbatches), single(), ROUNDING["float32"])

asked = Asked()
STRATEGIES["data"].build(CONFIG, MeshSpec.parse(f"data={jax.device_count()}"), TRAIN).place(asked)
print("", *cases, f"sequences {min(asked.rows)} to {max(asked.rows)}", sep="\n")
