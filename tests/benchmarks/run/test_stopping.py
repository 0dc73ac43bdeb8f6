"""How the measuring process handles the signals that stop a run."""

import signal
from contextlib import nullcontext

import pytest

from benchmarks.run.stopping import StopSignals


def stops(*numbers: signal.Signals, writing: bool = False, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Deliver these signals to a fresh handler, and list what each of them did."""
    heard, ends = StopSignals(), list[str]()
    monkeypatch.setattr("os._exit", lambda status: ends.append(f"exit {status}"))
    for number in numbers:
        with heard.while_writing() if writing else nullcontext():
            try:
                heard.handle(number, None)
            except KeyboardInterrupt:
                ends.append("interrupt")
    return ends


def test_one_stop_raises_one_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop raises KeyboardInterrupt once, whether the terminal, the supervisor or both deliver it."""
    once = [signal.SIGINT], [signal.SIGUSR1], [signal.SIGINT, signal.SIGUSR1], [signal.SIGUSR1, signal.SIGTERM]
    assert [stops(*numbers, monkeypatch=monkeypatch) for numbers in once] == [["interrupt"]] * 4


def test_the_second_stop_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second stop exits at once; while a report is written it interrupts, and a third changes nothing."""
    twice = [signal.SIGINT, signal.SIGUSR1] * 2
    assert stops(*twice, monkeypatch=monkeypatch) == ["interrupt", "exit 130"]
    assert stops(*twice, *twice, writing=True, monkeypatch=monkeypatch) == ["interrupt", "interrupt"]
