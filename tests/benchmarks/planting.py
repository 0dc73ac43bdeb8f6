"""Plugin `-p tests.benchmarks.planting`: register the planted strategies in the process that measures.

The supervisor must not load JAX, so the plugin does nothing there.
"""

from benchmarks.commandline.importing import collection_paused
from benchmarks.run.supervise import supervised

if supervised():
    with collection_paused():
        from tests.benchmarks.planted import (  # noqa: F401
            pytest_benchmark_update_json,
            pytest_load_initial_conftests,
        )
