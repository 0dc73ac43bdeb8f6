"""Plugin `-p tests.benchmarks.planting`: offers the planted strategies to the process that measures.

The supervisor above it does not load JAX, and is not made to.
"""

from benchmarks.harness.supervise import supervised

if supervised():
    from tests.benchmarks.planted import pytest_benchmark_update_json, pytest_load_initial_conftests  # noqa: F401
