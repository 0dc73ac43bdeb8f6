"""Plugin `-p tests.benchmarks.planting`: register the planted strategies in the process that measures.

The supervisor must not load JAX, so the plugin does nothing there.
"""

from benchmarks.harness.supervise import supervised

if supervised():
    from tests.benchmarks.planted import pytest_benchmark_update_json, pytest_load_initial_conftests  # noqa: F401
