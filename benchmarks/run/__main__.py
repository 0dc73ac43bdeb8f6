"""Start `python -m benchmarks.run` (program.py), and answer a supervisor even if JAX cannot be loaded."""

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.cli.statuses import REFUSED
from benchmarks.run.supervise import EVENTS


def main(arguments: list[str] | None = None) -> int:
    """Run the program, and return its exit status."""
    tell = supervisor()
    try:
        from benchmarks.run import program
    except (ValueError, RuntimeError) as error:  # such as an invalid JAX setting, or a strategy that is no module
        if not tell:
            raise
        what = "" if "MESHMARK_STRATEGIES" in str(error) else "JAX cannot be loaded: "
        tell({"refused": f"{what}{error}"})
        return REFUSED
    return program.main(tell, arguments)


def supervisor() -> Callable[[Mapping[str, Any]], None] | None:
    """A function that sends a JSON value to the supervisor of this process; None if it has none."""
    text = os.environ.pop(EVENTS, None)  # child processes must not inherit it
    if text is None:
        return None
    descriptor = int(text)
    os.set_inheritable(descriptor, False)
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal or a scheduler sends them to both processes
        signal.signal(number, signal.SIG_IGN)

    def tell(entry: Mapping[str, Any]) -> None:
        line = json.dumps(entry).encode() + b"\n"
        while line:
            line = line[os.write(descriptor, line) :]

    return tell


if __name__ == "__main__":
    sys.exit(main())
