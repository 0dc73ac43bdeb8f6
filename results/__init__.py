"""Reads benchmark records, draws them, compares them and judges regressions. Nothing here imports JAX."""

import benchmarks.cli  # noqa: F401 (Ctrl-C while a command is imported prints no traceback)
