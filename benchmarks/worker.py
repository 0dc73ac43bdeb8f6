"""A checkout's side of a paired comparison: a process that times blocks of steps on request.

`python -m benchmarks.worker [the options that select cases]`, started in the checkout. It reads requests from stdin and
answers on stdout, one line of JSON each, until stdin ends:

    {"do": "hello"}                                -> {"protocol": 1, "cases": [{"id": "fsdp-fsdp=8-b16", ...}], ...}
    {"do": "prepare", "case": "fsdp-fsdp=8-b16"}   -> {"loss": 5.55}      of the first step; drops the previous case
    {"do": "size"}                                 -> {"steps": 12}       steps for a block to last long enough
    {"do": "block", "steps": 12}                   -> {"seconds": 0.053}  duration of a block of that many steps

A failure is answered with {"error": STATUS, "reason": "in one line"}, and the process continues.
"""

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
from benchmarks.cases.case import Case
from benchmarks.cases.failures import reason_of, status_of
from benchmarks.cli.arguments import declare, declare_text
from benchmarks.cli.options import selected
from benchmarks.commandline.importing import resume_collection
from benchmarks.commandline.parser import Parser
from benchmarks.run.corpus import Corpus, read_corpus
from benchmarks.run.machine import PACKAGES, disable_compilation_cache, use_virtual_devices
from benchmarks.run.measure import Training, compile_step, no_compilation, steps_per_block
from benchmarks.run.prepare import begin_training, first_steps
from benchmarks.run.record import Record

PROTOCOL = 1
"""Version of the protocol, raised with every change of requests or answers. Only equal versions are compared."""

Answer = dict[str, Any]


class TimingServer:
    """Answers requests about the cases of this checkout. At most one case is in training."""

    def __init__(self, cases: Iterable[Case], corpus_N: Corpus) -> None:
        self.cases = {str(case): case for case in cases}
        self.corpus_N = corpus_N
        self.training: Training | None = None

    def hello(self) -> Answer:
        """Describe what would be compared: code, versions, devices and cases."""
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
        """Compile a case and train its first steps."""
        self.training = None  # free its memory first
        step = self.cases[case].build()
        program = compile_step(step, self.cases[case].compiler_options).program
        training = begin_training(step, program, step.init, self.corpus_N)
        begun = first_steps(training)
        self.training = training
        return {"loss": begun.losses[0]}

    def size(self) -> Answer:
        """Number of steps in a block."""
        return {"steps": steps_per_block(self._prepared())}

    def block(self, steps: int) -> Answer:
        """Time one block. Nothing may be compiled during it, and the loss must stay finite."""
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
    "hello": TimingServer.hello,
    "prepare": TimingServer.prepare,
    "size": TimingServer.size,
    "block": TimingServer.block,
}


def serve(server: TimingServer, requests: Iterable[str], answers: IO[str]) -> None:
    """Answer requests one after another; an error is an answer, too."""
    for line in requests:
        try:
            request = json.loads(line)
            answer = COMMANDS[request.pop("do")](server, **request)
        except Exception as error:
            answer = {"error": status_of(error), "reason": reason_of(error)}
        print(json.dumps(answer), file=answers, flush=True)


def reserve_stdout() -> IO[str]:
    """Reserve stdout for answers. Everything else that is printed, even by C++ libraries, goes to stderr."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    resume_collection()
    parser = Parser(prog="python -m benchmarks.worker", description="Time blocks of steps on request.")
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
    disable_compilation_cache()
    serve(TimingServer(chosen.cases(), corpus_N), sys.stdin, answers)


if __name__ == "__main__":
    main()
