"""Child processes: started in one way, bound to this process, and talked to over a connection.

The measuring process, compile workers and timing servers (`benchmarks/run/server.py`) are child processes. This module
needs the standard library alone: `results` compares two checkouts by a timing server in each, where JAX may be missing.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, Self

from benchmarks.cli.starting import bound
from benchmarks.cli.statuses import WRONG_USAGE

CONNECTION = "MESHMARK_CONNECTION"
"""Environment variable with the file descriptor of the child's end of the connection."""
PROTOCOL = 2
"""Version of the requests and answers, raised with every change of them. Only equal versions are compared."""
SERVER = "benchmarks.run.server"
TAIL_LINES = 6


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
        """Start a command, which calls `parent_connection`. What is not given is as in this process.

        Args:
            environment: variables that differ from those of this process.
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


@contextmanager
def ignoring_signals(*numbers: signal.Signals) -> Iterator[None]:
    """Processes started in the body ignore these signals. Only the main thread can set that."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers if main}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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


class ServerFailure(Exception):
    """A request that failed: `status` is one word for the kind of failure, `reason` a description."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status, self.reason = status, reason

    @property
    def of_process(self) -> bool:
        """Whether the process ended or stopped answering, rather than reporting that the case failed."""
        return self.status in ("died", "hung")


class Server:
    """A process that answers requests one after another, and ends with this process at the latest.

    The first request starts it, as does the next one after it has ended. A request is (number, name, arguments); its
    answer is (number, result, None), or (number, None, (status, reason)) for a failure. (0, None, None) before the
    answer says that another part of a long request begins.

    Args:
        patience_seconds: longest wait for an answer; None for ever.
        quiet: keep what it writes to stderr for the message of its failure, instead of printing it.

    Attributes:
        deaths: how each process that died ended, in order.
    """

    def __init__(
        self,
        options: Sequence[str] = (),
        *,
        python: str = sys.executable,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        patience_seconds: float | None = None,
        quiet: bool = False,
    ) -> None:
        self._command, self._folder = [python, "-m", SERVER, *options], folder
        self._environment, self._patience_seconds, self._quiet = environment or {}, patience_seconds, quiet
        self._child: Child | None = None
        self._stderr: IO[bytes] | None = None
        self._requests = 0
        self.deaths: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def ask(self, do: str, *, begin: Callable[[], None] = lambda: None, **arguments: Any) -> Any:
        """Send a request and return the answer; `begin` is called whenever another part of a long one begins."""
        self.tell(do, **arguments)
        return self.hear(begin)

    def tell(self, do: str, **arguments: Any) -> None:
        """Send a request without waiting for the answer, so that several processes can work at the same time."""
        if not self._child:
            self._stderr = tempfile.TemporaryFile() if self._quiet else None  # noqa: SIM115 (`end` closes it)
            said = self._stderr
            self._child = Child(self._command, self._environment, folder=self._folder, output=said, errors=said)
        self._requests += 1
        self._child.send((self._requests, do, arguments))

    def hear(self, begin: Callable[[], None] = lambda: None) -> Any:
        """Wait for the answer to the last request and return it. Answers that nobody waited for are skipped."""
        assert self._child
        number, answer, failure = 0, None, None
        while number != self._requests:
            try:
                if not self._child.connection.poll(self._patience_seconds):
                    problem = f"no answer in {self._patience_seconds or 0:g} s"
                    raise ServerFailure("hung", f"{problem}\n{self.end()[1]}".rstrip())
                number, answer, failure = self._child.connection.recv()
            except (EOFError, OSError):
                # Without a cause: frames of a failed `send` hold buffers that Python 3.13 may close in the wrong order.
                raise self._died() from None
            if number == 0:
                begin()
        if failure:
            raise ServerFailure(*failure)
        return answer

    def end(self) -> tuple[int | None, str]:
        """End the process, whatever it is doing; its exit status, and the last lines of its stderr if it is quiet."""
        if not self._child:
            return None, ""
        child, self._child = self._child, None
        status = child.end()
        if not self._stderr:
            return status, ""
        with self._stderr as stderr:
            stderr.seek(0)
            return status, "\n".join(stderr.read().decode(errors="replace").splitlines()[-TAIL_LINES:])

    def _died(self) -> ServerFailure:
        assert self._child
        self._child.process.wait()
        code, last_words = self.end()
        if code == WRONG_USAGE:
            return ServerFailure("refused", last_words.rpartition(f"python -m {SERVER}: ")[2])
        how = signal.Signals(-code).name if code and code < 0 else f"exit status {code}"
        self.deaths.append(f"{how}\n{last_words}".rstrip())
        return ServerFailure("died", self.deaths[-1])
