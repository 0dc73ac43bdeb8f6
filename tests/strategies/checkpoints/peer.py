"""One of several processes that save or restore together: `python -m tests.strategies.checkpoints.peer HOST:PORT
PROCESSES INDEX save|restore FOLDER STRATEGY:MESH`.

To restore is to train on from the checkpoint and to compare with one device. It prints what was done.
"""

import sys
from pathlib import Path

import jax
import numpy as np

where, processes, index, action, folder, case = sys.argv[1:]
jax.distributed.initialize(where, int(processes), int(index), heartbeat_timeout_seconds=10)

from strategies import MeshSpec  # noqa: E402
from tests.strategies.equality import ROUNDING, assert_equal, build, initial, single, trained  # noqa: E402

name, _, mesh = case.partition(":")
spec = MeshSpec.parse(mesh)
step = build(name, spec, microbatches=4 if "pipeline" in spec.sizes else 1)
if action == "save":
    (_, state) = trained(step, initial(step), range(1))
    step.save(state, Path(folder)).wait()
else:
    (losses, norms, states), _ = trained(step, step.restore(Path(folder)), range(1, 3))
    reference = single()
    for mine, expected in zip((losses, norms), reference[:2], strict=True):
        np.testing.assert_allclose(mine, expected[1:], rtol=ROUNDING["float32"])
    assert_equal((*reference[:2], [reference[2][0], *states]), reference, ROUNDING["float32"])
print(f"\n{action} {case}")
