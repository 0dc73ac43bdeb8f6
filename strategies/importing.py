"""Make Ctrl-C end `python -m strategies` at once and without a traceback while it imports JAX, which takes seconds.

A number of virtual devices that JAX would refuse with a traceback is refused here.

The package imports this module first. In a program other than this command the module changes nothing.
`benchmarks.commandline` does the same for the commands of the other packages; `strategies` must not import it. In the
first tenth of a second, before this module runs, Python handles Ctrl-C as usual.
"""

import os
import re
import signal
import sys


def importing_command() -> bool:
    """Whether `python -m strategies` is importing this package. Until it has, `sys.argv[0]` is "-m" (Lib/runpy.py)."""
    arguments = sys.orig_argv
    return sys.argv[:1] == ["-m"] and "-m" in arguments and arguments[arguments.index("-m") + 1 :][:1] == ["strategies"]


COUNT = "JAX_NUM_CPU_DEVICES"
DEVICES = os.environ.get(COUNT, "1")
if importing_command() and not (re.fullmatch("[0-9]{1,9}", DEVICES) and 1 <= int(DEVICES) <= 65_536):
    allowed = "give a whole number from 1 to 65,536, or unset it"
    print(f"{COUNT}={DEVICES[:100]!r} is no number of devices; {allowed}", file=sys.stderr)
    sys.exit(2)
# A program that ignores Ctrl-C, as under `nohup`, keeps ignoring it.
if importing_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
