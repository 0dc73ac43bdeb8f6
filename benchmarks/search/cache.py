"""What a compiler said of a case, kept in a file of its own for each, and read again while nothing has changed."""

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

import benchmarks
import strategies
from benchmarks.cases import Case
from benchmarks.devices.topology import Topology
from benchmarks.timing.machine import COMPILER, SETTINGS, fingerprint
from strategies.registry import OTHERS

FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


@dataclass(frozen=True)
class Cache:
    """A folder of files.

    Attributes:
        again: whether nothing that is kept counts: all is asked for anew, and kept in its place.
    """

    folder: Path
    again: bool = False

    def get(self, case: Case) -> dict[str, Any] | None:
        """What is kept of a case; None if there is nothing that can be read, or that counts."""
        if self.again:
            return None
        try:
            return json.loads(self._path(case).read_text())["columns"]
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def put(self, case: Case, columns: Mapping[str, Any]) -> None:
        """Keep the columns of its row. A file is there whole, or not at all."""
        path = self._path(case)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps({"case": str(case), "facts": facts(case), "columns": dict(columns)}))
        part.replace(path)

    def _path(self, case: Case) -> Path:
        return self.folder / f"{fingerprint(facts(case))}.json"


def facts(case: Case) -> dict[str, Any]:
    """All that the answer depends on: the case, its topology, versions, flags, settings, and our own sources."""
    assert case.topology
    return {
        "case": asdict(case) | {"mesh": str(case.mesh), "topology": str(case.topology)},
        "versions": versions(case.topology),
        "flags": {name: os.environ.get(name, "") for name in FLAGS},
        "settings": {name: str(getattr(jax.config, name, None)) for name in SETTINGS},
        "sources": sources(),
    }


def versions(topology: Topology) -> dict[str, str]:
    """Of what compiles for a topology."""
    return {name: version(name) for name in COMPILER} | {"compiler": topology.compiler_version or ""}


@cache
def sources() -> str:
    """Sixteen hexadecimal digits of what makes the steps, and of what reads their programs."""
    digest = hashlib.sha256()
    for package in (strategies, benchmarks):
        folder = Path(package.__path__[0])
        for path in sorted(folder.rglob("*.py")):
            name = path.relative_to(folder).as_posix()
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    for module in OTHERS:
        digest.update(Path(module.__file__ or "").read_bytes())
    return digest.hexdigest()[:16]
