"""What a step costs: cases, their measurement, and one record for each."""

import benchmarks.commandline  # noqa: F401 (Ctrl-C while a command is imported prints no traceback)
