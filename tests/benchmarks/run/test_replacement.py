"""The supervisor replaces a measuring process that died with one that resumes the run."""

import signal
from pathlib import Path
from typing import Any

import pytest

from benchmarks.commandline.statuses import TIMED_OUT, UNWRITTEN
from benchmarks.run.supervise import RESUMED, supervise

BEGAN, STOPPED = '{"began": "single"}\n', '{"stopped": true}\n'


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ([(1, False, BEGAN + STOPPED)], 1),
        ([(-signal.SIGABRT, False, "")], 134),  # before the first case
        ([(-signal.SIGABRT, False, BEGAN), (0, False, BEGAN + STOPPED)], 0),
        ([(-signal.SIGSEGV, False, BEGAN + STOPPED)], 139),  # after all cases were measured
        ([(TIMED_OUT, False, BEGAN), (TIMED_OUT, True, BEGAN)], 130),  # Ctrl-C while the process hangs
        ([(130, True, BEGAN + STOPPED)], 130),
        ([(-signal.SIGUSR1, True, "")], 130),  # before it handles signals
        ([(-signal.SIGKILL, True, BEGAN)], 130),  # told twice
        ([(1, True, BEGAN + STOPPED)], 130),  # a traceback at the end
        ([(0, True, BEGAN + STOPPED)], 0),  # too late: all had been measured
        ([(UNWRITTEN, False, BEGAN)], UNWRITTEN),
        ([(pytest.ExitCode.USAGE_ERROR, False, BEGAN)], pytest.ExitCode.USAGE_ERROR),  # the journal is another run's
    ],
)
def test_process_that_died_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: list[tuple[int, bool, str]], status: int
) -> None:
    """A process that died in a case is replaced; one that ended or was stopped is not. An old
    journal does not count.
    """
    journal, left = tmp_path / "journal", list(ends)
    journal.write_text(BEGAN)

    def ended(command: Any, environment: dict[str, str], **_: Any) -> tuple[int, bool]:
        assert (RESUMED in environment) == (len(left) < len(ends))
        status, told, written = left.pop(0)
        journal.write_text(journal.read_text() + written)
        return status, told

    monkeypatch.setattr("benchmarks.run.supervise.run", ended)
    assert supervise([], journal) == status
    assert not left
