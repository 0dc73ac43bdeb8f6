"""Benchmarks of training steps: cases, their measurement, and one record for each."""

import benchmarks.commandline  # noqa: F401 (no traceback on Ctrl-C during imports)
