"""How the process that measures handles the signals that stop a run."""

import signal
from contextlib import nullcontext

import pytest

from benchmarks.harness.stopping import Stops


def stops(*numbers: signal.Signals, writing: bool = False, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What becomes of a process that hears these signals."""
    heard, ends = Stops(), list[str]()
    monkeypatch.setattr("os._exit", lambda status: ends.append(f"exit {status}"))
    for number in numbers:
        with heard.while_writing() if writing else nullcontext():
            try:
                heard.hear(number, None)
            except KeyboardInterrupt:
                ends.append("interrupt")
    return ends


def test_a_stop_that_is_heard_twice_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal tells the process that measures, and so does its supervisor; who tells one of them stops it, too."""
    once = [signal.SIGINT], [signal.SIGUSR1], [signal.SIGINT, signal.SIGUSR1], [signal.SIGUSR1, signal.SIGTERM]
    assert [stops(*numbers, monkeypatch=monkeypatch) for numbers in once] == [["interrupt"]] * 4


def test_the_second_stop_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, whoever tells it; but the writing of a report in an orderly way, which no third one disturbs."""
    twice = [signal.SIGINT, signal.SIGUSR1] * 2
    assert stops(*twice, monkeypatch=monkeypatch) == ["interrupt", "exit 130"]
    assert stops(*twice, *twice, writing=True, monkeypatch=monkeypatch) == ["interrupt", "interrupt"]
