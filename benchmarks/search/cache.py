"""Cache of compilation results: one file per case, valid while nothing that affects the result has changed."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import msgspec

import benchmarks
import strategies
from benchmarks.cases.case import Case
from benchmarks.devices.topology import Topology
from benchmarks.run.journal import fingerprint
from benchmarks.run.machine import COMPILER, SETTINGS
from strategies.files import read_json
from strategies.registry import OTHERS
from strategies.schema import SchemaError, checked

FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
"""Environment variables with compiler flags."""


class CachedEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the cache: a case, what its result depends on, the columns of its row, and a digest of both."""

    case: str
    facts: dict[str, Any]
    columns: dict[str, Any]
    sha256: str


def digest(case: Case, columns: Mapping[str, Any]) -> str:
    """Hexadecimal digits that change with the columns and with what they depend on."""
    return hashlib.sha256(json.dumps([facts(case), dict(columns)]).encode()).hexdigest()


@dataclass(frozen=True)
class Cache:
    """A folder of cached results.

    Attributes:
        folder: where the files are.
        refresh: whether to ignore existing entries and overwrite them.
    """

    folder: Path
    refresh: bool = False

    def get(self, case: Case) -> dict[str, Any] | None:
        """Cached columns of a case; None if there is none, it was changed since, or with `refresh`."""
        if self.refresh:
            return None
        try:
            entry = checked(read_json(self._path(case)), CachedEntry, "entry")
        except SchemaError:
            return None
        return entry.columns if entry.sha256 == digest(case, entry.columns) else None

    def put(self, case: Case, columns: Mapping[str, Any]) -> None:
        """Store the columns of a case's row. The file is replaced atomically.

        Raises:
            OSError: it cannot be written.
        """
        path = self._path(case)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        entry = CachedEntry(str(case), facts(case), dict(columns), digest(case, columns))
        part.write_text(json.dumps(msgspec.structs.asdict(entry)))
        part.replace(path)

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
    """Sixteen hexadecimal digits that identify the sources of `strategies` and `benchmarks`, and of registered
    strategies.
    """
    digest = hashlib.sha256()
    for package in (strategies, benchmarks):
        folder = Path(package.__path__[0])
        for path in sorted(folder.rglob("*.py")):
            name = path.relative_to(folder).as_posix()
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    for module in OTHERS:
        digest.update(Path(module.__file__ or "").read_bytes())
    return digest.hexdigest()[:16]
