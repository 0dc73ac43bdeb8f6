"""Processes that time a checkout: each runs its `benchmarks.worker`, which answers there what is asked here."""

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

from results.gates.paired.checkouts import Checkout, CheckoutError
from results.gates.verdict import NotComparable
from results.records.reading import Case

PROTOCOL = 1
"""As in benchmarks/worker.py."""
TAIL_LINES = 6
USAGE = 2  # what argparse exits with

Answer = dict[str, Any]


class WorkerFailure(Exception):
    """A question without the answer that was hoped for: `status` is one word for why, `reason` says it."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status, self.reason = status, reason

    @property
    def of_process(self) -> bool:
        """Whether the process ended, for whatever reason, and not the case alone."""
        return self.status in ("died", "hung")


class Worker:
    """A worker in a checkout. Its process starts with the first question, and afresh with the next one after it died.

    Args:
        checkout: where it runs.
        selection: the options that select its cases.
        patience_seconds: how long to wait for an answer.
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
        """Ask, and wait for the answer, as `hear` does."""
        self.tell(do, **arguments)
        return self.hear()

    def tell(self, do: str, **arguments: Any) -> None:
        """Ask without waiting: workers that are told one after another work at the same time."""
        process = self._process or self._start()
        assert process.stdin
        with contextlib.suppress(BrokenPipeError):  # it has died, and `hear` will say so
            print(json.dumps({"do": do, **arguments}), file=process.stdin, flush=True)

    def hear(self) -> Answer:
        """Wait for an answer.

        Raises:
            WorkerFailure: how the case failed; or "refused" (the options), "died" or "hung", with the last of stderr.
        """
        try:
            line = self._answers.get(timeout=self._patience_seconds)
        except queue.Empty:
            raise WorkerFailure("hung", f"no answer in {self._patience_seconds:g} s\n{self.end()}".rstrip()) from None
        if not line:
            raise self._died()
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerFailure(answer["error"], answer["reason"])
        return answer

    def end(self) -> str:
        """End the process, whatever it is doing, and return the last lines that it wrote to stderr."""
        if not self._process:
            return ""
        process, self._process = self._process, None
        with contextlib.suppress(ProcessLookupError, BrokenPipeError), process:  # it closes its pipes, and waits
            os.killpg(process.pid, signal.SIGKILL)
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
            env={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | os.environ,  # three processes share a GPU's memory
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is for the command, which ends its workers
        )
        assert process.stdout
        threading.Thread(target=_pass_on, args=(process.stdout, self._answers), daemon=True).start()
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
    """What a checkout says of itself.

    Attributes:
        cases: its cases, by their names in reports -> the id that its worker knows them by.
        environment: versions of what it runs with.
        devices: what it runs on.
    """

    cases: dict[str, str]
    environment: dict[str, str]
    devices: str


def introduce(checkout: Checkout, selection: Sequence[str], patience_seconds: float) -> Introduction:
    """Ask a checkout what it would run.

    Raises:
        WorkerFailure: its worker does not come up.
        NotComparable: it is asked and answers in another protocol.
        CheckoutError: another copy of the code would run in its place.
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
    cases = {str(Case.of(facts)): facts["id"] for facts in answer["cases"]}
    return Introduction(cases, answer["environment"], answer["devices"])


def _pass_on(lines: IO[str], answers: queue.SimpleQueue[str]) -> None:
    """Pass on line after line, and an empty one at the end."""
    for line in lines:
        answers.put(line)
    answers.put("")
