"""One of several processes that train a step together:
`python -m tests.strategies.checkpoints.resume_in_process HOST:PORT PROCESSES INDEX FOLDER STRATEGY:MESH`.

They restore the checkpoint in the folder, train its second step, and save the state there. Each prints its loss and its
gradient norm.
"""

import sys
from pathlib import Path

import jax

where, processes, index, folder, case = sys.argv[1:]
jax.distributed.initialize(where, int(processes), int(index), heartbeat_timeout_seconds=10)

from strategies.checkpoints import restore, save  # noqa: E402
from tests.strategies.checkpoints.variants import step_at  # noqa: E402
from tests.strategies.equality import trained  # noqa: E402

step = step_at(case)
((loss,), (norm,), _), state = trained(step, restore(step, Path(folder)), [1])
save(step, state, Path(folder)).wait()
print(f"\n{loss} {norm}")
