"""Ctrl-C while `python -m strategies` imports JAX, which takes seconds, ends it at once and without a traceback.

Imported before all else, and by no other program does it change a thing. `benchmarks.commandline` does the same for the
commands of the other packages, which this one must not import. Before this module runs, in the first tenth of a second,
Ctrl-C is Python's.
"""

import signal
import sys


def importing_command() -> bool:
    """Whether `python -m strategies` imports this package: "-m" is in `sys.argv[0]` until it has (Lib/runpy.py)."""
    given = sys.orig_argv
    return sys.argv[:1] == ["-m"] and "-m" in given and given[given.index("-m") + 1 :][:1] == ["strategies"]


# Where Ctrl-C is ignored, as under `nohup`, it stays so.
if importing_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
