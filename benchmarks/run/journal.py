"""Journal of a run: a line when a case begins and when it ends, so that no row is lost if the process dies.

The journal is a file of JSON lines, `NAME.journal.jsonl` for the report `NAME.json`: `{"start": facts}` for each
process that starts or continues the run, `{"began": case}`, `{"row": {...}, "sha256": digest}` for a finished case,
and `{"stopped": true}` at an orderly end. A start has the key `after`, with the cause of death, if the process before
it died. The digest is of the text before it, so a row that was changed since is not believed.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from benchmarks.cases.row import Row
from benchmarks.cli.outputs import locked
from strategies.files import decode_json
from strategies.schema import SchemaError, checked

Listener = Callable[[Mapping[str, Any]], None]
UNKNOWN_CAUSE = "unknown cause"
END_COLUMNS = ("status", "reason", "chip.fits")
"""The columns that tell how a case ended."""
SUFFIX = ".journal.jsonl"
DIGEST = b', "sha256": "'
"""What separates a row from its digest."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of a journal."""

    start: dict[str, Any] | None = None
    after: str | None = None
    began: str | None = None
    row: Row | None = None
    sha256: str | None = None
    stopped: bool | None = None


class JournalError(ValueError):
    """The journal is in use, cannot be read or written, or belongs to another run."""


def journal_path(report: Path) -> Path:
    """Path of the journal of a report.

    >>> str(journal_path(Path("runs/first.json")))
    'runs/first.journal.jsonl'
    """
    return report.with_name(f"{report.stem}{SUFFIX}")


def report_path(journal: Path) -> Path | None:
    """Path of the report of a journal; None if the journal belongs to none.

    >>> str(report_path(Path("runs/first.journal.jsonl"))), report_path(Path("rows.jsonl"))
    ('runs/first.json', None)
    """
    name = journal.name.removesuffix(SUFFIX)
    return journal.with_name(f"{name}.json") if name != journal.name else None


def require_journal(path: Path | None) -> None:
    """Check that there is a journal, where one is to be continued."""
    if path is None or not path.exists():
        raise ValueError("--resume continues a run that was stopped; pass the --benchmark-json of that run")


class Journal:
    """An open journal: rows of finished cases by id, in order, and for each case the causes of death of processes that
    died while it ran. Its listeners, a supervisor and the terminal, are called with every line.
    """

    def __init__(
        self,
        path: Path,
        facts: Mapping[str, Any],
        *,
        resume: bool,
        after: str | None = None,
        cases: Collection[str] | None = None,
    ) -> None:
        """Begin a journal, or continue an existing one of a run with the same `facts` and of no other `cases`.

        An existing journal that is not continued is kept as `NAME.journal.jsonl~`. `after` is the cause of death of the
        process whose run is continued, if any.
        """
        self.path: Path | None = path
        self.rows, self.deaths = dict[str, Row](), defaultdict[str, list[str]](list)
        self.error: JournalError | None = None
        self.listeners: list[Listener] = []
        self._cases = cases
        if path.exists() and not resume:
            with path.open("r+b") as earlier:
                lock(earlier, path)
                path.replace(f"{path}~")
        self._file = path.open("a+b", buffering=0)  # unbuffered, because buffers die with the process
        try:
            lock(self._file, path)
            self._replay(facts, after or UNKNOWN_CAUSE)
            self._write({"start": dict(facts)} | ({"after": after} if after else {}))
        except BaseException:
            self._file.close()
            raise

    def snapshot(self) -> dict[str, Any]:
        """What other processes need to take the same decisions: how cases ended, and the causes of deaths."""
        ends = {name: {key: row.extra_info.get(key) for key in END_COLUMNS} for name, row in self.rows.items()}
        return {"ends": ends, "deaths": dict(self.deaths)}

    def begin(self, case: str) -> None:
        """A case begins, or its next block. If the process dies now, this case is held responsible."""
        self._write({"began": case})

    def finish(self, row: Row) -> None:
        """A case has ended with this row."""
        entry = {"row": asdict(row)}
        json.dumps(entry, allow_nan=False)  # raises before the case counts as ended
        self.rows[row.case] = row
        self._write(entry, signed=True)

    def report_traceback(self, case: str, traceback: str) -> None:
        """Tell the supervisor where a case has failed. It is not written."""
        self._tell({"failed": case, "traceback": traceback})

    def say(self, text: str) -> None:
        """Tell the terminal what begins. It is not written."""
        self._tell({"said": text})

    def stop(self) -> None:
        """Record an orderly end: no case is held responsible. The file stays locked until `close`."""
        self._write({"stopped": True})

    def close(self) -> None:
        """Close the file and release its lock."""
        self._file.close()

    def _tell(self, entry: Mapping[str, Any]) -> None:
        for listener in self.listeners:
            listener(entry)

    def _write(self, entry: dict[str, Any], *, signed: bool = False) -> None:
        """Append a line, with a digest if it is `signed`."""
        line = json.dumps(entry, allow_nan=False).encode()
        line = (line if not signed else line[:-1] + DIGEST + digest(line[:-1]) + b'"}') + b"\n"
        try:
            self._append(line)
        finally:
            self._tell(entry)

    def _append(self, line: bytes) -> None:
        if self.error:
            return
        try:
            while line:  # a disk that fills up accepts a part of it
                line = line[self._file.write(line) :]
        except OSError as error:
            self.error = JournalError(f"{self.path} cannot be written: {error.strerror}")
            raise self.error from error

    def _replay(self, facts: Mapping[str, Any], after: str) -> None:
        """Read the existing entries. An incomplete last line is cut off."""
        self._file.seek(0)
        text = self._file.read()
        complete = text[: text.rfind(b"\n") + 1]
        self._file.truncate(len(complete))
        running: str | None = None
        for line_number, line in enumerate(complete.splitlines(), start=1):
            try:
                running = self._replay_entry(line, f"line {line_number} of {self.path}", facts, running)
            except SchemaError as error:
                raise JournalError(f"{error}; remove the file, and run again without --resume") from error
        if running:
            self.deaths[running].append(after)

    def _replay_entry(self, line: bytes, where: str, facts: Mapping[str, Any], running: str | None) -> str | None:
        """Process one entry, and return the case that is running after it, if any."""
        entry = checked(decode_json(line, where), Entry, where)
        if entry.start is not None:
            self._require_same(entry.start, facts)
            if running:
                self.deaths[running].append(entry.after or UNKNOWN_CAUSE)
            return None
        if entry.row:
            text, _, found = line.rpartition(DIGEST)
            if found != digest(text) + b'"}':
                raise SchemaError(f"{where}: the row of {entry.row.case} was changed since it was written")
            row = entry.row
            if self.rows.get(row.case, row).samples != row.samples:  # a later row may add the attribution
                raise SchemaError(f"{where} is a second row of {entry.row.case}, and differs from the first")
            if self._cases is not None and row.case not in self._cases:
                raise SchemaError(f"{where}: this run has no case {row.case}")
            self.rows[row.case] = row
            return None
        return entry.began

    def _require_same(self, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
        for name in [*ours, *theirs]:
            if (was := theirs.get(name)) != (now := ours.get(name)):
                problem = f"{self.path} belongs to another run: {name} was {was!r} and is {now!r}"
                raise JournalError(f"{problem}; run again without --resume, or with the same options and environment")


def lock(file: Any, path: Path) -> None:
    """Lock a journal for as long as it is open or the process lives."""
    if not locked(file, path):
        raise JournalError(f"another run is writing {path}; name another --benchmark-json")


class MirroredJournal(Journal):
    """Journal of any process but the first, which it mirrors in memory by its `snapshot`. It writes nothing."""

    def __init__(self, snapshot: Mapping[str, Any] = MappingProxyType({"ends": {}, "deaths": {}})) -> None:
        self.rows = {case: Row(case, end, (), None) for case, end in snapshot["ends"].items()}
        self.deaths, self.error, self.path = defaultdict(list, snapshot["deaths"]), None, None
        self.listeners = []

    def close(self) -> None:
        """Do nothing: there is no file."""

    def _write(self, entry: dict[str, Any], *, signed: bool = False) -> None:
        self._tell(entry)


def fingerprint(facts: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits that are equal for equal facts in any order.

    >>> fingerprint({"jax": "0.10", "cpu": "EPYC"}) == fingerprint({"cpu": "EPYC", "jax": "0.10"})
    True
    """
    return digest(json.dumps(facts, sort_keys=True).encode()).decode()


def digest(text: bytes) -> bytes:
    """Sixteen hexadecimal digits that change with the text."""
    return hashlib.sha256(text).hexdigest()[:16].encode()
