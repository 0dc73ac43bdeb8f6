"""What the numbers mean: reads benchmark records, and draws their curves. Needs no JAX."""

import benchmarks.commandline  # noqa: F401 (Ctrl-C while a command is imported prints no traceback)
