"""Worker processes: each runs the `benchmarks.worker` of its checkout and answers requests, one JSON object a line."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any, Self

from benchmarks.commandline.parent import bound
from results.gates.paired.checkouts import Checkout, CheckoutError
from results.records.reading import Case, NotComparable
from strategies.files import decode_json
from strategies.schema import checked

PROTOCOL = 1
"""Version of the protocol of requests and answers; equal to the one in benchmarks/worker.py."""
TAIL_LINES = 6
READER_SECONDS = 10.0  # for which the end of a killed process's output is awaited, where a process of its own holds it
USAGE = 2  # exit status of argparse for invalid options

Answer = dict[str, Any]


class WorkerFailure(Exception):
    """A request that failed: `status` is one word for the kind of failure, `reason` a description."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status, self.reason = status, reason

    @property
    def of_process(self) -> bool:
        """Whether the process ended or stopped answering, rather than reporting that the case failed."""
        return self.status in ("died", "hung")


class Worker:
    """A worker in a checkout. The first request starts its process, as does the next one after the process has ended.

    Args:
        checkout: the checkout that it runs.
        selection: command line options that select its cases.
        patience_seconds: longest wait for an answer.
    """

    def __init__(self, checkout: Checkout, selection: Sequence[str], patience_seconds: float) -> None:
        self._checkout, self._patience_seconds = checkout, patience_seconds
        self._command = [checkout.python, "-m", "benchmarks.worker", *selection]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def ask(self, do: str, **arguments: Any) -> Answer:
        """Send a request and return the answer.

        Raises:
            WorkerFailure: as in `hear`.
        """
        self.tell(do, **arguments)
        return self.hear()

    def tell(self, do: str, **arguments: Any) -> None:
        """Send a request without waiting for the answer, so that several workers can work at the same time."""
        process = self._process or self._start()
        assert process.stdin
        with contextlib.suppress(BrokenPipeError):  # the process died; `hear` reports it
            print(json.dumps({"do": do, **arguments}), file=process.stdin, flush=True)

    def hear(self) -> Answer:
        """Wait for the answer to the last request and return it.

        Raises:
            WorkerFailure: the case failed, the worker refused its options ("refused"), its process died ("died"), or
                there was no answer in time ("hung"). The last three come with the last lines of stderr.
        """
        try:
            line = self._answers.get(timeout=self._patience_seconds)
        except queue.Empty:
            raise WorkerFailure("hung", f"no answer in {self._patience_seconds:g} s\n{self.end()}".rstrip()) from None
        if not line:
            raise self._died()
        answer = checked(decode_json(line, "the answer of a worker"), dict[str, Any], "the answer of a worker")
        if "error" in answer:
            raise WorkerFailure(answer["error"], answer["reason"])
        return answer

    def end(self) -> str:
        """End the process, whatever it is doing, and return the last lines that it wrote to stderr."""
        if not self._process:
            return ""
        process, self._process = self._process, None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        self._reader.join(READER_SECONDS)  # a pipe that is closed while it is read raises in the thread
        with contextlib.suppress(BrokenPipeError), process:  # closes the pipes, and waits
            pass
        with self._stderr as stderr:
            stderr.seek(0)
            lines = stderr.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-TAIL_LINES:])

    def _start(self) -> subprocess.Popen[str]:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (`end` closes it)
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._process = process = subprocess.Popen(
            self._command,
            cwd=self._checkout.root,
            # Three processes share a GPU's memory.
            env={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | os.environ | bound(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C reaches only the command, which ends its workers
        )
        assert process.stdout
        self._reader = threading.Thread(target=_pass_on, args=(process.stdout, self._answers), daemon=True)
        self._reader.start()
        return process

    def _died(self) -> WorkerFailure:
        assert self._process
        code = self._process.wait()
        last_words = self.end()
        if code == USAGE:
            return WorkerFailure("refused", last_words.rpartition("error: ")[2])
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return WorkerFailure("died", f"{how}\n{last_words}".rstrip())


@dataclass(frozen=True)
class Introduction:
    """A checkout's description of itself.

    Attributes:
        cases: ids in the worker, by the cases' names in reports.
        environment: versions of Python and of the packages that it runs with.
        devices: description of the devices that it runs on.
    """

    cases: dict[str, str]
    environment: dict[str, str]
    devices: str


def introduce(checkout: Checkout, selection: Sequence[str], patience_seconds: float) -> Introduction:
    """Ask a checkout for its cases, versions and devices.

    Raises:
        WorkerFailure: its worker does not start.
        NotComparable: its worker has another version of the protocol.
        CheckoutError: its interpreter would run another copy of the code.
    """
    with Worker(checkout, selection, patience_seconds) as worker:
        answer = worker.ask("hello")
    if answer["protocol"] != PROTOCOL:
        raise NotComparable(
            f"the worker of {checkout.name} speaks protocol {answer['protocol']}, and this is {PROTOCOL}; "
            "compare from a checkout as new as the newer of the two"
        )
    if answer["root"] != str(checkout.root):
        raise CheckoutError(f"{checkout.name} would run the code in {answer['root']}; unset PYTHONSAFEPATH")
    cases = {str(Case.of(facts, f"a case of {checkout.name}")): facts["id"] for facts in answer["cases"]}
    return Introduction(cases, answer["environment"], answer["devices"])


def _pass_on(lines: IO[str], answers: queue.SimpleQueue[str]) -> None:
    """Put each line into the queue, and an empty string after the last."""
    for line in lines:
        answers.put(line)
    answers.put("")
