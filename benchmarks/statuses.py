"""Exit statuses of `pytest benchmarks` besides pytest's own, and besides that of all commands after Ctrl-C."""

A_TIMEOUT = "a case that timed out"
"""What a process died of that ended with `TIMED_OUT`."""
LOST = 69
"""A process has lost another (`EX_UNAVAILABLE` of sysexits.h)."""
TIMED_OUT = 75
"""A watchdog ended the process: a temporary failure (`EX_TEMPFAIL` of sysexits.h)."""
UNWRITTEN = 74
"""What was measured could not be written (`EX_IOERR` of sysexits.h)."""
IN_ORDER = (0, 1, 5)
"""Of pytest: all went well, tests have failed, and there were none."""
