"""One of several processes, which train on one mesh: `python -m tests.strategies.peer HOST:PORT PROCESSES INDEX
[STRATEGY:MESH ...]`. At its end, where nothing of gloo's comes between, it prints each case, which has then computed
what this process's own first device computes alone, and which sequences of a batch it was asked for.
"""

import sys

import jax
import numpy as np

where, processes, index, *cases = sys.argv[1:]
jax.distributed.initialize(where, int(processes), int(index), heartbeat_timeout_seconds=10)

from strategies import STRATEGIES, MeshSpec  # noqa: E402
from tests.strategies.test_equality import CONFIG, ROUNDING, TRAIN, assert_equal, single, train  # noqa: E402


class Asked:
    """A batch that notes which of its sequences are taken."""

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
