"""The journal of a run: a line as a case begins and as it ends, so that whatever ends the process, no row is lost.

JSON lines beside the report (`NAME.journal.jsonl` for `NAME.json`): `{"start": facts}` of each process that went on
with the run, `{"began": case}`, `{"row": {...}}` of a finished case, and `{"stopped": true}` at an orderly end. A start
says `after` what, if the process before it died.
"""

import fcntl
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.row import Row

STOPPED = b'{"stopped": true}\n'
"""The last line after an orderly end."""
UNKNOWN = "unknown cause"
ENDS = ("status", "reason", "chip.fits")
"""What a row says of how its case ended."""


class JournalError(ValueError):
    """A journal that is in use, cannot be read or written, or is of another run."""


def journal_path(report: Path) -> Path:
    """Where the journal of a report is.

    >>> str(journal_path(Path("runs/first.json")))
    'runs/first.journal.jsonl'
    """
    return report.with_name(f"{report.stem}.journal.jsonl")


class Journal:
    """An open journal.

    Attributes:
        rows: the cases that have ended, by their ids, in the order in which they did.
        deaths: of what each process died that ended, without a word, while this case ran.
        error: why it cannot be written any more.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any], *, resume: bool, after: str | None = None) -> None:
        """Begin a journal, or go on with the one that is there, which must be of the same `facts`.

        One that is there and not gone on with is kept as `NAME.journal.jsonl~`. `after` is what the process died of
        whose run is gone on with.

        Raises:
            JournalError: another run writes it, or it cannot be gone on with; names what differs.
            OSError: it cannot be opened.
        """
        self.path, self.rows, self.deaths = path, dict[str, Row](), defaultdict[str, list[str]](list)
        self.error: JournalError | None = None
        if path.exists() and not resume:
            with path.open("r+b") as earlier:
                self._lock(earlier)
                path.replace(f"{path}~")
        self._file = path.open("a+b", buffering=0)  # straight to the system, which outlives the process
        try:
            self._lock(self._file)
            self._take_up(facts, after or UNKNOWN)
            self._write({"start": dict(facts)} | ({"after": after} if after else {}))
        except BaseException:
            self._file.close()
            raise

    def known(self) -> dict[str, Any]:
        """What another process must know of it, to do as this one: how cases ended, and what processes died of."""
        ends = {name: {key: row.extra_info.get(key) for key in ENDS} for name, row in self.rows.items()}
        return {"ends": ends, "deaths": dict(self.deaths)}

    def begin(self, case: str) -> None:
        """A case begins, or has its turn: should the process die now, it is to blame."""
        self._write({"began": case})

    def finish(self, row: Row) -> None:
        """A case has ended."""
        self.rows[row.case] = row
        self._write({"row": asdict(row)})

    def stop(self) -> None:
        """End in an orderly way: nothing that runs is to blame. Other runs are kept away until it is closed."""
        self._write({"stopped": True})

    def remove(self) -> None:
        """Take away the journal of a run whose report has it all."""
        self.path.unlink()

    def close(self) -> None:
        """Leave it to other runs."""
        self._file.close()

    def _write(self, entry: dict[str, Any]) -> None:
        """Write a line.

        Raises:
            JournalError: it cannot be written. This is said once: what a run that ends has yet to say is left out.
        """
        line = json.dumps(entry, allow_nan=False).encode() + b"\n"
        if self.error:
            return
        try:
            while line:  # a disk that becomes full takes a part of it
                line = line[self._file.write(line) :]
        except OSError as error:
            self.error = JournalError(f"{self.path} cannot be written: {error.strerror}")
            raise self.error from error

    def _take_up(self, facts: Mapping[str, Any], after: str) -> None:
        """Read what is there. A last line that was cut short is cut off."""
        self._file.seek(0)
        text = self._file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._file.truncate(len(whole))
        running: str | None = None
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                running = self._read(json.loads(line), facts, running)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                if isinstance(error, JournalError):
                    raise
                problem = f"line {number} of {self.path} cannot be read ({error})"
                raise JournalError(f"{problem}; remove the file, and run again without --resume") from error
        if running:
            self.deaths[running].append(after)

    def _read(self, entry: dict[str, Any], facts: Mapping[str, Any], running: str | None) -> str | None:
        """Take up one entry; what runs after it."""
        if "start" in entry:
            self._require_same(entry["start"], facts)
            if running:
                self.deaths[running].append(str(entry.get("after", UNKNOWN)))
            return None
        if "row" in entry:
            row = Row(**{**entry["row"], "samples": tuple(map(float, entry["row"]["samples"]))})
            dict(row.extra_info)  # a row has named facts, or is none
            self.rows[row.case] = row
            return None
        return str(entry["began"]) if "began" in entry else None

    def _require_same(self, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
        for name in [*ours, *theirs]:
            if theirs.get(name) != ours.get(name):
                problem = f"{self.path} is of another run: {name} was {theirs.get(name)!r} and is {ours.get(name)!r}"
                raise JournalError(f"{problem}; run again without --resume, or as it was run")

    def _lock(self, file: Any) -> None:
        """Keep others from writing it, for as long as the file is open or the process lives."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise JournalError(f"another run is writing {self.path}; name another --benchmark-json") from error


class Silent(Journal):
    """The journal of a process that writes none, for the first of several does: what that one knows, in memory."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self.rows = {case: Row(case, end, (), None) for case, end in known["ends"].items()}
        self.deaths, self.error = defaultdict(list, known["deaths"]), None

    def remove(self) -> None:
        """There is none."""

    def close(self) -> None:
        """Nor is it open."""

    def _write(self, entry: dict[str, Any]) -> None:
        pass
