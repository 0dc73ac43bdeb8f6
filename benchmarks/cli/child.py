"""Child processes: started in one way, bound to this process, and talked to over a connection.

The timing servers, the process that measures, and those that compile are such. It needs the standard library alone.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from benchmarks.cli.parent import bound, ignoring_signals

CONNECTION = "MESHMARK_CONNECTION"
"""Environment variable with the file descriptor of the child's end of the connection."""


class Child:
    """A process that ends with this one at the latest.

    It ignores SIGINT and SIGTERM, which a terminal or a job scheduler sends to all processes: this one handles them.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        folder: Path | None = None,
        output: int | IO[Any] | None = None,
        errors: int | IO[Any] | None = None,
        own_group: bool = True,
    ) -> None:
        """Start it.

        Args:
            command: the program and its arguments; it calls `parent_connection`.
            environment: variables that differ from those of this process.
            folder: where it runs; None for the current folder.
            output: its stdout; None for that of this process.
            errors: its stderr; None for that of this process.
            own_group: whether processes that it starts are killed with it. They then miss what a terminal does to a
                group, such as Ctrl-Z.
        """
        self.connection, theirs = Pipe()
        variables = {**os.environ, **environment, **bound(), CONNECTION: str(theirs.fileno())}
        self.own_group = own_group
        with theirs, ignoring_signals(signal.SIGINT, signal.SIGTERM):
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                pass_fds=[theirs.fileno()],
                start_new_session=own_group,
            )

    def send(self, message: object) -> None:
        """Send a message. If the process has died, whoever waits for its answer finds out."""
        with suppress(OSError):
            self.connection.send(message)

    @property
    def runs(self) -> bool:
        """Whether the process has not ended."""
        return self.process.poll() is None

    def kill(self) -> int:
        """Kill the process, if it still runs; its exit status, negative for a signal."""
        with suppress(ProcessLookupError, PermissionError):  # macOS refuses to signal a group of zombies
            if self.own_group:
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        return self.process.wait()

    def end(self) -> int:
        """Kill the process, if it still runs, and close the connection; its exit status."""
        status = self.kill()
        self.connection.close()
        return status


def same_code() -> dict[str, str]:
    """Environment in which a child imports what this process imports, whatever lies in the current folder."""
    return {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}


def parent_connection() -> Connection | None:
    """The connection of this process to the one that started it as a `Child`; None if none did."""
    descriptor = os.environ.pop(CONNECTION, None)  # children must not inherit it
    if descriptor is None:
        return None
    os.set_inheritable(int(descriptor), False)
    return Connection(int(descriptor))
