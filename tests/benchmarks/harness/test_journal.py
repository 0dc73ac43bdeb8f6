"""The journal: whatever ends the process, every finished row is there."""

import contextlib
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness.journal import Journal, JournalError, MirroredJournal
from benchmarks.row import Row
from tests.processes import ROOT

FACTS = {"jax": "0.10.2", "selection": "nano"}
ROWS = [Row("data", {"status": "ok"}, (0.1, 0.2), 3), Row("fsdp", {"status": "oom", "reason": "full"}, (), None)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the journal is."""
    return tmp_path / "run.journal.jsonl"


@contextlib.contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """The disk is full inside: no file may become larger than this one and a few bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 8, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def leave(path: Path, *began: str, rows: list[Row] = ROWS, after: str | None = None) -> None:
    """Leave a journal as a process does that is killed."""
    journal = Journal(path, FACTS, resume=path.exists(), after=after)
    for row in rows:
        journal.begin(row.case)
        journal.finish(row)
    for case in began:
        journal.begin(case)
    journal.close()


def read(path: Path, facts: dict[str, str] = FACTS, after: str | None = None) -> Journal:
    """What a run that goes on with a journal finds."""
    journal = Journal(path, facts, resume=True, after=after)
    journal.close()
    return journal


def test_rows_survive_their_process(path: Path) -> None:
    """A run that is gone on with has the rows of those before, as they were."""
    leave(path)
    assert list(read(path).rows.values()) == ROWS


def test_a_silent_journal_knows_what_decides(path: Path) -> None:
    """A process that writes none knows, as plain values, which cases have ended and how, and what killed others."""
    leave(path, "tensor")
    journal = read(path)
    silent = MirroredJournal(json.loads(json.dumps(journal.snapshot())))
    assert silent.deaths == journal.deaths
    ends = [{"status": "ok", "reason": None, "chip.fits": None}, {"status": "oom", "reason": "full", "chip.fits": None}]
    assert [(row.case, row.extra_info) for row in silent.rows.values()] == [*zip(journal.rows, ends, strict=True)]
    before = path.read_bytes()
    silent.begin("tensor")
    silent.finish(Row("tensor", {"status": "ok"}, (0.1,), 1))
    silent.stop()
    silent.close()
    assert list(silent.rows) == [*journal.rows, "tensor"]
    assert path.read_bytes() == before


def test_rows_survive_kill_9(path: Path) -> None:
    """A process that is killed in the middle of a case has left every row."""
    code = f"""
import os, signal
from pathlib import Path
from tests.benchmarks.harness.test_journal import FACTS, ROWS, Journal
journal = Journal(Path({str(path)!r}), FACTS, resume=False)
for row in ROWS: journal.begin(row.case); journal.finish(row)
journal.begin("tensor")
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT)
    journal = read(path)
    assert list(journal.rows.values()) == ROWS
    assert journal.deaths == {"tensor": ["unknown cause"]}


def test_deaths_are_those_of_the_case_that_ran(path: Path) -> None:
    """The last case that began is to blame, for each process that ended without a word, and it is known of what."""
    leave(path, "tensor", "pipeline")
    leave(path, "pipeline", rows=[], after="SIGABRT")
    leave(path, "tensor", rows=[], after="SIGKILL")
    assert read(path, after="SIGSEGV").deaths == {"pipeline": ["SIGABRT", "SIGKILL"], "tensor": ["SIGSEGV"]}


def test_orderly_end_blames_nobody(path: Path) -> None:
    """After Ctrl-C the case that ran is tried again like any other."""
    journal = Journal(path, FACTS, resume=False)
    journal.begin("tensor")
    journal.stop()
    journal.close()
    assert not read(path).deaths


def test_torn_last_line_is_cut_off(path: Path) -> None:
    """What a dying process wrote half of is no row, and does not spoil the next line."""
    leave(path)
    with path.open("ab") as file:
        file.write(b'{"row": {"case": "half')
    journal = read(path)
    assert list(journal.rows.values()) == ROWS
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_full_disk_is_said_once(path: Path) -> None:
    """A run hears of it where it can end, and is left alone while it does; what is on the disk and in memory stays."""
    leave(path)
    journal = Journal(path, FACTS, resume=True)
    with full_disk(path):
        with pytest.raises(JournalError, match=r"run\.journal\.jsonl cannot be written: File too large$"):
            journal.finish(Row("tensor", {"status": "ok"}, (0.1,), 1))
        journal.finish(Row("pipeline", {"status": "ok"}, (0.1,), 1))
        journal.stop()
    journal.close()
    assert list(journal.rows) == ["data", "fsdp", "tensor", "pipeline"]
    assert list(read(path).rows.values()) == ROWS


def test_another_run_is_not_gone_on_with(path: Path) -> None:
    """Rows of other versions or another selection would not compare; the error names what differs."""
    leave(path)
    with pytest.raises(
        JournalError, match=r"belongs to another run: jax was '0.10.2' and is '0.12.0'; run again without"
    ):
        read(path, FACTS | {"jax": "0.12.0"})


def test_earlier_journal_is_kept_beside(path: Path) -> None:
    """A run that begins again does not destroy what another has left."""
    leave(path)
    again = Journal(path, FACTS, resume=False)
    again.close()
    assert not again.rows
    assert len(path.with_name(path.name + "~").read_text().splitlines()) == 1 + 2 * len(ROWS)


@pytest.mark.parametrize("resume", [False, True])
def test_two_runs_do_not_write_the_same_file(path: Path, resume: bool) -> None:
    """The second is refused while the first goes on, and harms nothing."""
    first = Journal(path, FACTS, resume=False)
    with pytest.raises(JournalError, match=r"another run is writing .*; name another --benchmark-json"):
        Journal(path, FACTS, resume=resume)
    first.finish(ROWS[0])
    first.stop()
    with pytest.raises(JournalError, match="another run"):  # the report has yet to be written
        Journal(path, FACTS, resume=resume)
    first.close()
    assert read(path).rows == {"data": ROWS[0]}


KEYS = st.sampled_from(["start", "began", "row", "case", "extra_info", "samples", "steps_per_block"])
ENTRIES = st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(KEYS, x))


@given(st.binary() | st.text().map(str.encode) | ENTRIES.map(lambda entry: json.dumps(entry).encode()))
def test_no_journal_crashes(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    """Whatever a file holds, bytes or JSON that is not ours, it is read or refused with our own error."""
    path = tmp_path_factory.mktemp("fuzz") / "run.journal.jsonl"
    path.write_bytes(text + b"\n")
    with contextlib.suppress(JournalError):
        assert not read(path).rows
