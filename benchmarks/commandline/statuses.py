"""Exit statuses of `pytest benchmarks`, besides pytest's own and that of all commands after Ctrl-C."""

TIMEOUT_CAUSE = "a case that timed out"
"""Cause of death of a process that exited with `TIMED_OUT`."""
PEER_LOST = 69
"""Another process was lost (`EX_UNAVAILABLE` of sysexits.h)."""
TIMED_OUT = 75
"""The watchdog ended the process: a temporary failure (`EX_TEMPFAIL` of sysexits.h)."""
UNWRITTEN = 74
"""The results could not be written (`EX_IOERR` of sysexits.h)."""
NORMAL_EXITS = (0, 1, 5)
"""Statuses of pytest after an orderly run: all tests passed, some failed, or there were none."""
