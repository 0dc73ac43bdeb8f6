"""`single` is timed in a process of its own with one device, where devices are virtual."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from benchmarks.cases.case import Case
from benchmarks.cases.failures import ProcessDied
from benchmarks.cli.values import MIN_ROUNDS
from benchmarks.cluster.processes import FailedElsewhere
from benchmarks.run.compilation import compilations
from benchmarks.run.corpus import corpus_source, read_corpus
from benchmarks.run.engine import Engine
from benchmarks.run.server import TimingServer
from benchmarks.run.single_device import RemoteTraining, ask, has_single_device_server, server, train
from strategies.checking import FirstSteps
from tests.benchmarks.run.engines import CONFIG, DATA, PLAN, SINGLE, Begin

CORPUS = PLAN.corpus_N
pytestmark = pytest.mark.usefixtures("_short_blocks", "_built_once")


@pytest.fixture
def engine(begin: Begin) -> Engine:
    """A run with a known rate of matmuls."""
    return begin()


def kill() -> None:
    """End the server by SIGABRT, as a backend that aborts does."""
    assert server._child
    server._child.process.send_signal(signal.SIGABRT)
    server._child.process.wait()


@pytest.mark.factorisations
def test_single_in_its_own_process_matches_this_one(engine: Engine) -> None:
    """The first steps in the process of one device match those here, and it times as many steps as asked for."""
    training = train(SINGLE, CORPUS)
    engine.prepare(SINGLE)
    engine.references.require_equal(SINGLE.build(), training.first_steps, SINGLE)
    assert training.block(3) > 0
    assert training.dispatch_seconds > 0
    training.require_finite("after three steps")
    training.drop()
    with pytest.raises(FailedElsewhere, match="KeyError"):
        training.block(1)


def test_what_is_compiled_ahead_is_not_compiled_again() -> None:
    """The server compiles a case before it is asked to train it, and then only initialises its state."""
    timing = TimingServer([], CORPUS, lambda: None)
    with compilations() as ahead:
        timing.compile(SINGLE)
    with compilations() as compiled:
        timing.prepare(SINGLE)
    assert ahead
    assert not {*ahead} & {*compiled}


def test_what_fails_ahead_fails_when_it_is_needed() -> None:
    """Nobody waits for what is compiled ahead. A failure is that of the training run, and later requests are served."""
    server.tell("compile", case=DATA)
    with pytest.raises(FailedElsewhere, match="devices"):
        train(DATA, CORPUS)
    server.tell("compile", case=SINGLE)
    training = train(SINGLE, CORPUS)
    assert training.block(1) > 0
    training.drop()


def test_a_mapped_text_is_sent_by_its_name(tmp_path: Path) -> None:
    """A memory-mapped text is sent to the other process by its path, because it may be large."""
    file = tmp_path / "text.txt"
    file.write_bytes(CORPUS[:1000].tobytes())
    assert corpus_source(read_corpus(file, CONFIG)) == file
    assert corpus_source(CORPUS) is CORPUS


def test_it_is_traced_and_attributed_where_it_is_timed(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`single` is traced and attributed in its own process, and the journal grows meanwhile."""
    engine.states.settings = replace(engine.settings, attribution=True, trace=tmp_path / "traces")
    begin, begun = engine.states.begin, list[Case]()
    monkeypatch.setattr(engine.states, "begin", lambda case: (begun.append(case), begin(case)))
    monkeypatch.setattr("benchmarks.run.timing_group.attribute", lambda *_: 1 / 0)
    monkeypatch.setattr("benchmarks.run.timing_group.trace", lambda *_: 1 / 0)
    heard: list[int] = []
    there = RemoteTraining.attribute

    def attribute(training: RemoteTraining, *arguments: Any) -> Any:
        before = len(begun)
        parts = there(training, *arguments)
        heard.append(len(begun) - before)
        return parts

    monkeypatch.setattr(RemoteTraining, "attribute", attribute)
    engine.run([SINGLE])
    row = engine.rows[str(SINGLE)].extra_info
    assert row["status"] == "ok"
    assert row["attribution.total_over_step"]
    assert list((tmp_path / "traces" / str(SINGLE)).rglob("*.xplane.pb"))
    assert heard[0] > 3  # gradients, optimizer, nothing, and all timed blocks


def test_an_error_in_the_other_process_is_raised_here() -> None:
    """An error in the other process is raised here with its status and reason, and the process goes on."""
    with pytest.raises(FailedElsewhere, match="it must be a whole number of at least 1") as failure:
        train(Case("single", SINGLE.mesh, "tiny", CONFIG, 0, 1, "float32", "none"), CORPUS)
    assert failure.value.status == "infeasible"
    train(SINGLE, CORPUS).drop()


def test_an_interrupted_question_leaves_no_answer_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C in the middle of a question, the next question gets its own answer."""
    training = train(SINGLE, CORPUS)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(server, "hear", interrupt)
        with pytest.raises(KeyboardInterrupt):
            training.block(2)
    assert training.block(1) > 0
    training.drop()


def test_a_dead_process_raises_died_and_is_replaced() -> None:
    """A request to a dead process raises ProcessDied with the signal; the next request starts another one.

    It knows no training run of the dead one: requests about that still say how it died.
    """
    ask("hello")
    first, training = server._child, RemoteTraining(1, FirstSteps((), (), ()), len(server.deaths))
    kill()
    with pytest.raises(ProcessDied, match="the single-device process was ended by SIGABRT"):
        ask("matmul", dtype="float32")
    ask("hello")
    assert server._child not in (None, first)
    with pytest.raises(ProcessDied, match="the single-device process was ended by SIGABRT"):
        training.block(1)


def statuses(engine: Engine) -> list[object]:
    """The statuses of both cases."""
    return [engine.rows[str(case)].extra_info["status"] for case in (SINGLE, DATA)]


def test_rows_say_that_single_had_a_process_of_its_own(engine: Engine) -> None:
    """On virtual devices `single` is timed in its own process, rows say so, and relative times refer to it."""
    assert (jax.devices()[0].platform, jax.device_count(), has_single_device_server()) == ("cpu", 8, True)
    engine.run([SINGLE, DATA])
    row = engine.rows[str(DATA)].extra_info
    assert statuses(engine) == ["ok", "ok"]
    assert row["single_in_own_process"] is True
    assert isinstance(row["relative_to_single"], float)


@pytest.mark.factorisations
def test_if_it_dies_before_a_step_is_timed_no_row_is_lost(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the process dies while it measures the matmul rate, the utilization is null and a new one times `single`."""
    engine.matmul_rates.clear()
    for case in (SINGLE, DATA):
        engine.prepare(case)

    def die(do: str, **arguments: Any) -> Any:
        if do == "matmul":
            server.tell("hello")
            kill()
        return ask(do, **arguments)

    monkeypatch.setattr("benchmarks.run.single_device.ask", die)
    with pytest.warns(UserWarning, match="no matmul throughput: the single-device process was ended by SIGABRT"):
        engine.run([SINGLE, DATA])
    assert statuses(engine) == ["ok", "ok"]
    assert engine.rows[str(DATA)].extra_info["model_flops_utilization"] is None


def test_why_nothing_is_compared_is_said(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """If `single` has no row and cannot be timed, the rows that would be compared with it give the reason."""
    monkeypatch.setattr("benchmarks.run.timing_group.train", lambda *_: 1 / 0)
    engine.run([DATA])
    row = engine.rows[str(DATA)].extra_info
    assert (row["status"], row["relative_to_single"]) == ("ok", None)
    assert row["reason"] == "not compared with single, which could not be timed: ZeroDivisionError: division by zero"


def test_if_the_process_dies_only_single_fails(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the process dies while steps are timed, only `single` fails; the others are timed to the end."""
    block, blocks = RemoteTraining.block, list[int]()

    def killed(training: RemoteTraining, steps: int) -> float:
        blocks.append(steps)
        if len(blocks) == 2 * MIN_ROUNDS:
            kill()
        return block(training, steps)

    monkeypatch.setattr(RemoteTraining, "block", killed)
    engine.run([SINGLE, DATA])
    assert statuses(engine) == ["error", "ok"]
    assert "SIGABRT" in str(engine.rows[str(SINGLE)].extra_info["reason"])
