"""The timing server, a separate process: trains cases, and times blocks of their steps on request.

`python -m benchmarks.run.server [the options that select cases]`, started by `benchmarks/cli/child.py`, which
describes the messages. A paired comparison has one in each checkout and names cases by their ids. A run on virtual
devices has one with a single device, and sends the cases themselves (`single_device.py`).

    hello                              what would be compared: protocol, code, versions, devices and cases
    compile  case                      compile a case ahead of time
    check    case                      compare the first steps with one device's; answers why that was not possible
    prepare  case [corpus] [alone]     train the first steps; answers their losses and the number of the training run
    size     training                  steps for a block to last long enough
    block    training steps            seconds of a block of that many steps
    trace    training folder steps     profile one more block
    attribute  training case ...       seconds of the step by cause
    drop     training                  free its memory
    matmul   dtype                     FLOPs per second of a matmul
"""

import platform
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax

import strategies
from benchmarks.cases.case import Case
from benchmarks.cases.failures import reason_of, status_of
from benchmarks.cases.selection import selected
from benchmarks.cli.child import PROTOCOL, SERVER, parent_connection
from benchmarks.cli.options import STEPS
from benchmarks.cli.parser import Command
from benchmarks.cli.starting import resume_collection
from benchmarks.run.attribution import attribute
from benchmarks.run.compilation import Clock, InitialStates, compile_step, no_compilation
from benchmarks.run.corpus import Corpus, map_file, read_corpus
from benchmarks.run.machine import PACKAGES, disable_compilation_cache, matmul_flops_per_second, use_virtual_devices
from benchmarks.run.measure import Training, steps_per_block, trace
from benchmarks.run.record import Record
from benchmarks.run.references import SEED, References, begin_training
from benchmarks.run.remat import resolved_remats
from strategies import Step

Answer = dict[str, Any]


class TimingServer:
    """Answers requests: each public method is one.

    Where a request brings no text, a case trains on `corpus_N`. `begin` tells the client that another part of a long
    request begins.
    """

    def __init__(self, cases: Iterable[Case], corpus_N: Corpus, begin: Callable[[], None]) -> None:
        self.cases = {str(case): case for case in cases}
        self.corpus_N, self.begin, self.trainings = corpus_N, begin, dict[int, Training]()
        self._initial_states = InitialStates(Clock())

    def hello(self) -> Answer:
        """Describe what would be compared."""
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

    def compile(self, case: Case) -> None:
        """Compile a case. If that fails, `prepare` fails in the same way."""
        self._compiled(case)

    def check(self, case: str) -> Answer:
        """Compare the first steps of a case with those of one device. It fails with the status of a mismatch."""
        return {"unchecked": References(self.corpus_N, Clock()).compared(self.cases[case]).reason or ""}

    def prepare(self, case: Case | str, corpus: Path | Corpus | None = None, alone: bool = False) -> Answer:
        """Train the first steps of a case on a text, or the file at a path.

        With `alone`, drop all other training runs first, to free their memory.
        """
        if alone:
            self.trainings.clear()
        chosen = isinstance(case, str)
        case = self.cases[case] if isinstance(case, str) else case
        step, program = self._compiled(case)
        corpus_N = map_file(corpus) if isinstance(corpus, Path) else self.corpus_N if corpus is None else corpus
        training = begin_training(step, program, partial(self._initial_states.begin, case, step), corpus_N)
        first_steps = training.first_steps(
            step, partial(self._initial_states.weights, case, step, jax.random.key(SEED))
        )
        number = max(self.trainings, default=0) + 1
        self.trainings[number] = training
        answer = {"training": number, "losses": first_steps.losses}
        return answer if chosen else {**answer, "first_steps": first_steps}  # which a client without JAX cannot read

    def size(self, training: int) -> Answer:
        """Number of steps in a block."""
        return {"steps": steps_per_block(self.trainings[training])}

    def block(self, training: int, steps: int) -> Answer:
        """Time one block. Nothing may be compiled during it, and the loss must stay finite."""
        run = self.trainings[training]
        with no_compilation():  # the client cannot see what is compiled here
            seconds = run.block(steps)
        run.require_finite("after a timed block")
        return {"seconds": seconds, "dispatch_seconds": run.dispatch_seconds}

    def trace(self, training: int, folder: Path, steps: int) -> None:
        """Record a profiler trace of a block."""
        trace(folder, partial(self.trainings[training].block, steps))

    def attribute(self, training: int, case: Case, seconds: float, rounds: int) -> Answer:
        """Attribute the measured seconds of a step to causes."""
        step, _ = self._compiled(case)
        return attribute(case, step, self.trainings[training], seconds, rounds, self.begin)

    def drop(self, training: int) -> None:
        """Free the memory of a training run."""
        del self.trainings[training]

    def matmul(self, dtype: str) -> float:
        """Measure the FLOPs per second of a matmul."""
        return matmul_flops_per_second(dtype)

    @lru_cache(maxsize=2)  # noqa: B019 (there is one server per process; the next program is compiled ahead)
    def _compiled(self, case: Case) -> tuple[Step, Any]:
        step = case.build()
        return step, compile_step(step, case.compiler_options).program


def serve(server: TimingServer, connection: Connection) -> None:
    """Answer requests one after another until the client has gone; an error is an answer, too."""
    with suppress(EOFError, OSError):
        while True:
            number, do, arguments = connection.recv()
            try:
                if do.startswith("_"):
                    raise KeyError(do)
                answer = (number, getattr(server, do)(**arguments), None)
            except Exception as error:
                answer = (number, None, (status_of(error), reason_of(error)))
            connection.send(answer)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    resume_collection()
    parser = Command("time blocks of steps on request", SERVER, *STEPS).parser(f"python -m {SERVER}")
    options = parser.parse_args(arguments)
    use_virtual_devices()
    try:
        chosen = selected(options)
        corpus_N = read_corpus(options.corpus, chosen.config)
    except ValueError as error:
        parser.error(str(error))
    disable_compilation_cache()
    if not (connection := parent_connection()):
        parser.error("a client starts it")
    serve(TimingServer(resolved_remats(chosen.cases()), corpus_N, lambda: connection.send((0, None, None))), connection)


if __name__ == "__main__":
    main()
