"""A checkout's part in a paired comparison: a process that times blocks of steps when it is asked to.

`python -m benchmarks.worker [the options that select cases]`, started in the checkout. It reads requests from stdin and
answers each on stdout, a line of JSON for a line of JSON, until stdin ends:

    {"do": "hello"}                                -> {"protocol": 1, "cases": [{"id": "fsdp-fsdp=8-b16", ...}], ...}
    {"do": "prepare", "case": "fsdp-fsdp=8-b16"}   -> {"loss": 5.55}      of the first step; the case before is dropped
    {"do": "size"}                                 -> {"steps": 12}       for a block to last long enough
    {"do": "block", "steps": 12}                   -> {"seconds": 0.053}  that a block of so many steps lasted

What fails is answered {"error": STATUS, "reason": "in one line"}, and the worker goes on.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import jax

import strategies
from benchmarks.arguments import declare, declare_text
from benchmarks.cases import Case
from benchmarks.failures import reason_of, status_of
from benchmarks.harness.corpus import Corpus, read_corpus
from benchmarks.harness.prepare import begin_training, first_steps
from benchmarks.options import selected
from benchmarks.record import Record
from benchmarks.timing.machine import PACKAGES, compile_anew, use_virtual_devices
from benchmarks.timing.measure import Training, compile_step, no_compilation, steps_per_block

PROTOCOL = 1
"""Two checkouts are compared if they speak the same; it is raised with every change of what is asked or answered."""

Answer = dict[str, Any]


class Worker:
    """The cases of this checkout, of which at most one is in training."""

    def __init__(self, cases: Iterable[Case], corpus_N: Corpus) -> None:
        self.cases = {str(case): case for case in cases}
        self.corpus_N = corpus_N
        self.training: Training | None = None

    def hello(self) -> Answer:
        """What would be compared: whose code, run with what, on which devices and cases."""
        return {
            "protocol": PROTOCOL,
            "root": str(Path(strategies.__file__).parents[1]),
            "environment": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
            "devices": f"{jax.device_count()} {jax.devices()[0].device_kind}",
            "cases": [
                {"id": name, "name": f"test_step[{name}]", **Record.begin(case).as_extra_info()}
                for name, case in self.cases.items()
            ],
        }

    def prepare(self, case: str) -> Answer:
        """Compile a case, and train it for its first steps."""
        self.training = None  # its memory is needed
        step = self.cases[case].build()
        program = compile_step(step, dict(self.cases[case].compiler_options)).program
        training = begin_training(step, program, step.init, self.corpus_N)
        begun = first_steps(training)
        self.training = training
        return {"loss": begun.losses[0]}

    def size(self) -> Answer:
        """How many steps make a block long enough."""
        return {"steps": steps_per_block(self._prepared())}

    def block(self, steps: int) -> Answer:
        """Time one block, in which nothing may be compiled and nothing may leave the numbers."""
        training = self._prepared()
        with no_compilation():
            seconds = training.block(steps)
        training.require_finite("after a timed block")
        return {"seconds": seconds}

    def _prepared(self) -> Training:
        if self.training is None:
            raise RuntimeError("no case is prepared")
        return self.training


COMMANDS: dict[str, Callable[..., Answer]] = {
    "hello": Worker.hello,
    "prepare": Worker.prepare,
    "size": Worker.size,
    "block": Worker.block,
}


def serve(worker: Worker, requests: Iterable[str], answers: IO[str]) -> None:
    """Answer one request after another; an error is an answer, too."""
    for line in requests:
        try:
            request = json.loads(line)
            answer = COMMANDS[request.pop("do")](worker, **request)
        except Exception as error:
            answer = {"error": status_of(error), "reason": reason_of(error)}
        print(json.dumps(answer), file=answers, flush=True)


def reserve_stdout() -> IO[str]:
    """Stdout for the answers alone: whatever else is printed, by libraries in C++ too, goes to stderr."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worker", description="Time blocks of steps on request.")
    declare(parser.add_argument)
    declare_text(parser.add_argument)
    options = parser.parse_args(arguments)
    answers = reserve_stdout()
    use_virtual_devices()
    try:
        chosen = selected(options)
        corpus_N = read_corpus(options.corpus, chosen.config)
    except ValueError as error:
        parser.error(str(error))
    compile_anew()
    serve(Worker(chosen.cases(), corpus_N), sys.stdin, answers)


if __name__ == "__main__":
    main()
