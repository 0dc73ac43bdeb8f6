"""Exit statuses: those of all commands, and those of `pytest benchmarks` besides pytest's own."""

import signal

WRONG_USAGE = 2
"""Exit code when options, arguments or the environment cannot be used."""
INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 plus the number of SIGINT, as in shells."""
BROKEN_PIPE = 141
"""Exit code when the reader of the output has closed the pipe, as `| head` does: 128 plus the number of SIGPIPE."""
BROKEN_INPUT = 5
"""Exit code when an input file cannot be read or a result cannot be written."""
MAX_DEATHS = 2
"""Number of processes that may die during a case before it is given up."""
TIMEOUT_CAUSE = "a case that timed out"
"""Cause of death of a process that exited with `TIMED_OUT`."""
REFUSED = 4
"""Something cannot work: a usage error, as pytest has it."""
PEER_LOST = 69
"""Another process was lost (`EX_UNAVAILABLE` of sysexits.h)."""
TIMED_OUT = 75
"""The supervisor ended the process: a temporary failure (`EX_TEMPFAIL` of sysexits.h)."""
UNWRITTEN = 74
"""The results could not be written (`EX_IOERR` of sysexits.h)."""
NORMAL_EXITS = (0, 1, 5)
"""Statuses of pytest after an orderly run: all tests passed, some failed, or there were none."""


def cause_of_death(status: int) -> str:
    """Describe what a process died of, by its exit status, which is negative for a signal as in `subprocess`.

    >>> cause_of_death(-signal.SIGABRT), cause_of_death(3)
    ('SIGABRT', 'exit status 3')
    """
    if status == TIMED_OUT:
        return TIMEOUT_CAUSE
    if status == PEER_LOST:
        return "the loss of another process"
    if status == -signal.SIGKILL:
        return "SIGKILL, usually sent when memory runs out"
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"
