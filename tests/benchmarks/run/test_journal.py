"""The journal keeps every finished row, whatever ends the process."""

import contextlib
import json
import math
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cases.row import Row
from benchmarks.run.journal import Journal, JournalError, MirroredJournal, digest
from tests.processes import ROOT

FACTS = {"jax": "0.10.2", "selection": "nano"}
ROWS = [Row("data", {"status": "ok"}, (0.1, 0.2), 3), Row("fsdp", {"status": "oom", "reason": "full"}, (), None)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The journal's path."""
    return tmp_path / "run.journal.jsonl"


@contextlib.contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """Limit the size of files to that of this file and a few bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 8, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def leave(path: Path, *began: str, rows: list[Row] = ROWS, after: str | None = None) -> None:
    """Write a journal and leave it as a killed process does."""
    journal = Journal(path, FACTS, resume=path.exists(), after=after)
    for row in rows:
        journal.begin(row.case)
        journal.finish(row)
    for case in began:
        journal.begin(case)
    journal.close()


def read(path: Path, facts: dict[str, str] = FACTS, after: str | None = None) -> Journal:
    """The journal that a resuming run reads."""
    journal = Journal(path, facts, resume=True, after=after)
    journal.close()
    return journal


def test_rows_survive_their_process(path: Path) -> None:
    """A resuming run reads the rows of earlier processes unchanged."""
    leave(path)
    assert list(read(path).rows.values()) == ROWS


def test_a_silent_journal_knows_ends_and_deaths(path: Path) -> None:
    """A process that writes no journal knows, as plain values, which cases ended, how, and which killed a process."""
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
    """After SIGKILL in the middle of a case the journal has every finished row, and blames that case."""
    code = f"""
import os, signal
from pathlib import Path
from benchmarks.cases.row import Row
from benchmarks.run.journal import Journal
journal = Journal(Path({str(path)!r}), {FACTS!r}, resume=False)
for row in {ROWS!r}: journal.begin(row.case); journal.finish(row)
journal.begin("tensor")
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT)
    journal = read(path)
    assert list(journal.rows.values()) == ROWS
    assert journal.deaths == {"tensor": ["unknown cause"]}


def test_deaths_are_those_of_the_case_that_ran(path: Path) -> None:
    """Each death is blamed on the case that began last, with the signal that ended the process."""
    leave(path, "tensor", "pipeline")
    leave(path, "pipeline", rows=[], after="SIGABRT")
    leave(path, "tensor", rows=[], after="SIGKILL")
    assert read(path, after="SIGSEGV").deaths == {"pipeline": ["SIGABRT", "SIGKILL"], "tensor": ["SIGSEGV"]}


def test_orderly_end_blames_nobody(path: Path) -> None:
    """A run that was stopped in an orderly way blames no case."""
    journal = Journal(path, FACTS, resume=False)
    journal.begin("tensor")
    journal.stop()
    journal.close()
    assert not read(path).deaths


def test_torn_last_line_is_cut_off(path: Path) -> None:
    """A half-written last line is cut off, and the lines after it are whole."""
    leave(path)
    with path.open("ab") as file:
        file.write(b'{"row": {"case": "half')
    journal = read(path)
    assert list(journal.rows.values()) == ROWS
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_full_disk_is_said_once(path: Path) -> None:
    """A full disk raises one JournalError, then writing is silent; rows on the disk and in memory stay."""
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


def test_a_journal_of_another_run_is_refused(path: Path) -> None:
    """A journal of other versions or another selection is refused with what differs."""
    leave(path)
    with pytest.raises(
        JournalError, match=r"belongs to another run: jax was '0.10.2' and is '0.12.0'; run again without"
    ):
        read(path, FACTS | {"jax": "0.12.0"})


def test_earlier_journal_is_kept_beside(path: Path) -> None:
    """A run that begins again keeps the earlier journal under another name."""
    leave(path)
    again = Journal(path, FACTS, resume=False)
    again.close()
    assert not again.rows
    assert len(path.with_name(path.name + "~").read_text().splitlines()) == 1 + 2 * len(ROWS)


@pytest.mark.parametrize("resume", [False, True])
def test_two_runs_do_not_write_the_same_file(path: Path, resume: bool) -> None:
    """A second run of the same file is refused until the first has closed its journal, and harms nothing."""
    first = Journal(path, FACTS, resume=False)
    with pytest.raises(JournalError, match=r"another run is writing .*; name another --benchmark-json"):
        Journal(path, FACTS, resume=resume)
    first.finish(ROWS[0])
    first.stop()
    with pytest.raises(JournalError, match="another run"):  # the report has yet to be written
        Journal(path, FACTS, resume=resume)
    first.close()
    assert read(path).rows == {"data": ROWS[0]}


def signed(row: dict[str, Any]) -> str:
    """A line of a journal as if a run had written this row."""
    text = json.dumps({"row": row})[:-1]
    return f'{text}, "sha256": "{digest(text.encode()).decode()}"}}\n'


ROW = {"case": "tensor", "extra_info": {"status": "ok"}, "samples": [0.5], "steps_per_block": 1}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (json.dumps({"row": ROW}) + "\n", "the row of tensor was changed since it was written"),
        (signed(ROW).replace("0.5", "1000.0"), "the row of tensor was changed since it was written"),
        (signed(ROW).replace("tensor", "pipeline"), "the row of pipeline was changed since it was written"),
        (signed(ROW | {"samples": [0.1, -1]}), r"row.samples\[1\] is -1; it must be a number above 0"),
        (signed(ROW | {"samples": [0.0]}), r"row.samples\[0\] is 0.0; it must be a number above 0"),
        (signed(ROW | {"samples": [math.nan]}), "is cut short or not JSON"),
        (signed(ROW | {"steps_per_block": 0}), "row.steps_per_block is 0; it must be a whole number of at least 1"),
        (signed(ROW | {"extra_info": {"status": [1]}}), "row.extra_info"),
        (signed(ROW | {"extra_info": {}}), "a row without a status"),
        (signed(ROW | {"case": "data"}), "is a second row of data, and differs from the first"),
        (signed(ROW | {"case": "zero1"}), "this run has no case zero1"),
        ('{"row": null, "other": 1}\n', "has an unknown field 'other'"),
        ('{"began": 1}\n', "began is 1; it must be a string or null"),
        ("[]\n", "is \\[\\]; it must be an object"),
        ("\xff\n", "is cut short or not JSON"),
    ],
    ids=range(15),
)
def test_a_changed_journal_is_refused(path: Path, line: str, problem: str) -> None:
    """A row that no run has written, or of no case of the run, is not believed: the message names the line."""
    leave(path)
    with path.open("a") as file:
        file.write(line)
    lines = len(path.read_text().splitlines())
    with pytest.raises(JournalError, match=rf"^line {lines} of .*run\.journal\.jsonl.*{problem}") as refused:
        Journal(path, FACTS, resume=True, cases=["data", "fsdp", "tensor", "pipeline"])
    assert "\n" not in str(refused.value)


def test_a_row_may_be_there_twice(path: Path) -> None:
    """Two threads may end the same case; the same row twice loses nothing."""
    leave(path)
    last = [line for line in path.read_text().splitlines() if '"row"' in line][-1]
    with path.open("a") as file:
        file.write(last + "\n")
    assert list(read(path).rows) == [row.case for row in ROWS]


KEYS = st.sampled_from(["start", "began", "row", "case", "extra_info", "samples", "steps_per_block"])
ENTRIES = st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(KEYS, x))


@given(st.binary() | st.text().map(str.encode) | ENTRIES.map(lambda entry: json.dumps(entry).encode()))
def test_no_journal_crashes(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    """A journal of arbitrary bytes or JSON is read as empty, or refused with a JournalError."""
    path = tmp_path_factory.mktemp("fuzz") / "run.journal.jsonl"
    path.write_bytes(text + b"\n")
    with contextlib.suppress(JournalError):
        assert not read(path).rows
