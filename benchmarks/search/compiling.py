"""Compilation of cases for devices that need not be present, in processes of their own, with cached results.

The cache has one file per case, valid while nothing that affects the result has changed.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import msgspec

import benchmarks
import strategies
from benchmarks.cases.case import Case
from benchmarks.cases.failures import reason_of, status_of
from benchmarks.devices.chips import GIB
from benchmarks.devices.topology import Topology
from benchmarks.explain.memory import host_peak_rss_bytes, processes_that_fit
from benchmarks.program.compiled import HLOError, read_program
from benchmarks.run.compilation import Clock
from benchmarks.run.corpus import EMPTY_CORPUS
from benchmarks.run.journal import fingerprint
from benchmarks.run.ledger import RunSettings
from benchmarks.run.machine import COMPILER, SETTINGS
from benchmarks.run.pool import Outcome, run_in_processes
from benchmarks.run.prepare import Preparation
from benchmarks.run.progress import say_regularly
from benchmarks.run.record import Record
from benchmarks.run.summary import progress
from benchmarks.simulate.machine import Machine
from benchmarks.simulate.program import replay
from benchmarks.simulate.queues import EXPOSED as EXPOSED_LANE
from strategies.files import read_json
from strategies.registry import OTHERS
from strategies.schema import SchemaError, checked

FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
"""Environment variables with compiler flags."""


class CachedEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the cache: the columns of a row, and all that they depend on."""

    facts: dict[str, Any]
    columns: dict[str, Any]


@dataclass(frozen=True)
class Cache:
    """A folder of cached results.

    Attributes:
        folder: where the files are.
    """

    folder: Path

    def get(self, case: Case) -> dict[str, Any] | None:
        """Cached columns of a case; None if there is none, or it was changed since."""
        try:
            entry = checked(read_json(self._path(case)), CachedEntry, "entry")
        except SchemaError:
            return None
        return entry.columns if fingerprint(entry.facts) == fingerprint(facts(case)) else None

    def put(self, case: Case, columns: Mapping[str, Any]) -> None:
        """Store the columns of a case's row. The file is replaced atomically; a failure is logged."""
        path = self._path(case)
        part = path.with_suffix(f".{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps({"facts": facts(case), "columns": dict(columns)}))
            part.replace(path)
        except OSError as error:
            log(f"the result of {case} is not cached, because {self.folder} cannot be written: {error.strerror}")

    def _path(self, case: Case) -> Path:
        return self.folder / f"{fingerprint(facts(case))}.json"


def facts(case: Case) -> dict[str, Any]:
    """Everything that the result depends on: the case, its topology, versions, flags, settings, and the sources of this
    project.
    """
    assert case.topology
    return {
        "case": asdict(case) | {"mesh": str(case.mesh), "topology": str(case.topology)},
        "versions": versions(case.topology),
        "flags": {name: os.environ.get(name, "") for name in FLAGS},
        "settings": {name: str(getattr(jax.config, name, None)) for name in SETTINGS},
        "sources": sources(),
    }


def versions(topology: Topology) -> dict[str, str]:
    """Versions of the packages that compile for a topology."""
    return {name: version(name) for name in COMPILER} | {"compiler": topology.compiler_version or ""}


@cache
def sources() -> str:
    """Sixteen hexadecimal digits that identify the sources and tables of this project, and of registered strategies."""
    digest = hashlib.sha256()
    for package in (strategies, benchmarks):
        folder = Path(package.__path__[0])
        for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.csv")]):
            name = path.relative_to(folder).as_posix()
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    for module in OTHERS:
        digest.update(Path(module.__file__ or "").read_bytes())
    return digest.hexdigest()[:16]


COMPILE_ONLY = RunSettings(EMPTY_CORPUS, compile_only=True)
WORKER_BYTES = 4 * GIB
"""Host memory per compiling process. A GPT with 6.7 billion parameters took up to 2 GiB."""
COMPILER_ERRORS = ("JaxRuntimeError", "XlaRuntimeError")
"""Names of exceptions that compilers raise. Other exceptions are unrelated to the compiled step."""
EXPOSED = "machine.exposed_seconds"
"""Column: seconds for which the compiled step waits for collectives, at the rates that a machine reaches."""


def compiled_record(case: Case) -> Record:
    """A case that is compiled and not run, with its program if it has one. Failures are recorded in its record."""
    record = Record.begin(case, compile_only=True)
    try:
        for stage in Preparation(COMPILE_ONLY, Clock()).stages(case):
            record = stage
        return record.adding({"memory.host_peak_rss_bytes": host_peak_rss_bytes()}, status="ok")
    except Exception as error:
        return replace(record, status=status_of(error), reason=reason_of(error))


def compile_and_replay(case: Case, machine: Machine) -> dict[str, Any]:
    """Compile a case and return the columns of its row, and `EXPOSED`. Called in a process of its own."""
    assert case.topology
    case.topology.prepare()
    record = compiled_record(case)
    return {**record.as_row().extra_info, EXPOSED: exposed_seconds(record, machine)}


def exposed_seconds(record: Record, machine: Machine) -> float | None:
    """Exposed communication of a compiled step on a machine; None if its program was not read or is not scheduled."""
    if not (record.program and record.step):
        return None
    try:
        program = read_program(record.program.as_text() or "", record.step.mesh.shape)
    except HLOError:
        return None
    if program.unread:
        return None
    replayed = replay(program, record.step.mesh, machine, record.case.dtype)
    return replayed and replayed.parts.get(EXPOSED_LANE, 0.0)


@dataclass(frozen=True)
class Compiler:
    """Compiles cases in processes, until its time is up.

    Attributes:
        machine: whose rates say what communication is exposed.
        folder: of all cached results.
        at_once: number of processes at a time; by default as many as memory and cores allow.
        budget_seconds: for all compilations, from when this object is made.
    """

    machine: Machine
    folder: Path
    at_once: int | None
    budget_seconds: float
    begin: float = field(default_factory=time.monotonic)

    def outcomes(self, cases: Sequence[Case]) -> list[Outcome[Case]]:
        """Compilation results, from the cache or computed now. Each one that completes is logged on stderr."""
        cache = Cache(self.folder / fingerprint(asdict(self.machine)))
        found = {case: Outcome(case, columns, "", 0.0) for case in cases if (columns := cache.get(case))}
        missing = [case for case in cases if case not in found]
        at_once = self.at_once or processes_that_fit(WORKER_BYTES)
        left_seconds = max(0.0, self.budget_seconds - (time.monotonic() - self.begin))
        if found:
            log(f"{len(found)} of {len(cases)} were compiled before")
        if missing:
            log(f"compiling {len(missing)}, {min(at_once, len(missing))} at a time, within {left_seconds:.0f} s")

        def doing() -> str:
            left = [case for case in missing if case not in found]
            names = ", ".join(f"{case} remat={case.remat}" for case in left[:at_once])
            return f"compiling {names}; {len(left)} of {len(cases)} left" if left else ""

        work = partial(compile_and_replay, machine=self.machine)
        with say_regularly(doing):
            for outcome in run_in_processes(missing, work, at_once, left_seconds):
                case, columns = outcome.task, outcome.result
                found[case] = outcome
                if columns and is_repeatable(columns):
                    cache.put(case, columns)
                ended = outcome.reason or columns["reason"] or columns["status"]
                text = f"{case} remat={case.remat}: {ended}, {outcome.seconds:.0f} s"
                log(progress(len(found), len(cases), text, None))
        return [found[case] for case in cases if case in found]


def is_repeatable(columns: Mapping[str, Any]) -> bool:
    """Whether the result would be the same again: success, the compiler's own failure, or a known lack of memory."""
    if columns["status"] == "compile_error":
        return columns["reason"].startswith(COMPILER_ERRORS)
    return columns["status"] in ("ok", "infeasible") or columns["chip.needed_bytes"] is not None


def log(text: str) -> None:
    """Print a line on stderr, separate from the report."""
    print(text, file=sys.stderr, flush=True)
