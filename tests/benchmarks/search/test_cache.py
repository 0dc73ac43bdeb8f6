"""Compiled results are cached until anything changes that could change them."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.cases.case import Case
from benchmarks.devices.topology import Topology
from benchmarks.search import compiling
from benchmarks.search.compiling import Cache
from strategies import GPTConfig, MeshSpec

CONFIG = GPTConfig(layers=2, embed=16, heads=2, vocab=256, sequence=8)
CASE = Case("fsdp", MeshSpec.parse("fsdp=4"), "tiny", CONFIG, 4, 1, "float32", "dots", topology=Topology("cpu", (4,)))
OTHERS = [
    {"strategy": "three_d"},
    {"mesh": MeshSpec.parse("data=4")},
    {"preset": "small"},
    {"config": replace(CONFIG, layers=3)},
    {"config": replace(CONFIG, tied=False)},
    {"batch_size": 8},
    {"microbatches": 2},
    {"dtype": "bfloat16"},
    {"remat": "full"},
    {"options": (("gather", "step"),)},
    {"options": (("gather", "layer"),)},
    {"topology": Topology("h100", (1, 4))},
]


def test_what_is_kept_is_found(tmp_path: Path) -> None:
    """A cached result is found again; the folder is made, and another case has no result."""
    kept = Cache(tmp_path / "new" / "folder")
    assert kept.get(CASE) is None
    kept.put(CASE, {"status": "ok", "memory.total_bytes": 12})
    assert Cache(tmp_path / "new" / "folder").get(CASE) == {"status": "ok", "memory.total_bytes": 12}
    assert [path.suffix for path in (tmp_path / "new" / "folder").iterdir()] == [".json"]


@pytest.mark.parametrize("others", OTHERS, ids=str)
def test_another_case_has_another_key(tmp_path: Path, others: dict) -> None:
    """A case that differs in any field has another key."""
    kept = Cache(tmp_path)
    kept.put(CASE, {})
    assert kept.get(replace(CASE, **others)) is None


@pytest.mark.parametrize("change", ["XLA_FLAGS", "LIBTPU_INIT_ARGS", "versions", "sources", "SETTINGS"])
def test_key_covers_versions_flags_settings_and_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """The key covers the versions, the flags in the environment, JAX's settings and our own sources."""
    kept = Cache(tmp_path)
    kept.put(CASE, {"status": "ok"})
    if change.isupper() and change != "SETTINGS":
        monkeypatch.setenv(change, "--another")
    else:
        monkeypatch.setattr(compiling, change, {"SETTINGS": ()}.get(change, lambda *_: "another"))
    assert kept.get(CASE) is None
    monkeypatch.undo()
    assert kept.get(CASE) == {"status": "ok"}


def test_sources_are_all_that_make_and_read_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change in a source file changes the hash of the sources."""
    known = set()
    for text in ("one", "two"):
        (tmp_path / "fsdp.py").write_text(text)
        monkeypatch.setattr("strategies.__path__", [str(tmp_path)])
        compiling.sources.cache_clear()
        known.add(compiling.sources())
    monkeypatch.undo()
    compiling.sources.cache_clear()
    assert len(known | {compiling.sources()}) == 3


@pytest.mark.parametrize("change", ["", "{", "[]", '{"case": "fsdp"}', ("12", "NaN"), ("fsdp", "data")])
def test_a_changed_cache_file_counts_as_absent(tmp_path: Path, change: str | tuple[str, str]) -> None:
    """A file that is not as it was stored counts as absent, and so does that of another case."""
    kept = Cache(tmp_path)
    kept.put(CASE, {"status": "ok", "memory.total_bytes": 12})
    (path,) = tmp_path.iterdir()
    stored = path.read_text()
    path.write_text(change if isinstance(change, str) else stored.replace(*change))
    assert kept.get(CASE) is None
    other = replace(CASE, batch_size=8)
    kept._path(other).write_text(stored)
    assert kept.get(other) is None
