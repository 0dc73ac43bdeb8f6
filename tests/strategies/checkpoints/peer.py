"""One of several processes that train a step together: `python -m tests.strategies.checkpoints.peer HOST:PORT PROCESSES
INDEX FOLDER STRATEGY:MESH`.

They restore the checkpoint in the folder, train its second step, and save the state there. Each prints its loss and its
gradient norm.
"""

import sys
from pathlib import Path

import jax

where, processes, index, folder, case = sys.argv[1:]
jax.distributed.initialize(where, int(processes), int(index), heartbeat_timeout_seconds=10)

from tests.strategies.checkpoints.variants import step_at  # noqa: E402
from tests.strategies.equality import trained  # noqa: E402

step = step_at(case)
((loss,), (norm,), _), state = trained(step, step.restore(Path(folder)), [1])
step.save(state, Path(folder)).wait()
print(f"\n{loss} {norm}")
