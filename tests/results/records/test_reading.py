"""Whatever a file holds, it is read, or refused with a RecordError; test_mutations.py changes runs and baselines."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import results
from results.gates.counters import read_snapshot
from results.records.reading import RecordError
from results.records.rows import load

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
read_any = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(path: Path, text: str) -> None:
    """Read a file with every reader."""
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    for reader in (read_snapshot, lambda path: load([path])):
        with contextlib.suppress(RecordError):
            whole: Any = reader(path)
            assert len(getattr(whole, "rows", whole)) > 0, "what holds no case is refused"


@read_any
@given(content=json_values)
def test_any_json_is_read_or_refused(tmp_path: Path, content: Any) -> None:
    """Arbitrary JSON is read or raises a RecordError."""
    read(tmp_path / "any.json", json.dumps(content))


@read_any
@given(text=st.text())
def test_any_text_is_read_or_refused(tmp_path: Path, text: str) -> None:
    """Arbitrary text is read or raises a RecordError."""
    read(tmp_path / "any.json", text)


@pytest.mark.parametrize("runs", [None, 3, [3]])
def test_what_is_no_path_is_no_run(runs: Any) -> None:
    """`results.load` names it, and says what to pass."""
    with pytest.raises(TypeError, match=r"the runs are .*(None|3).*; pass a path, or a list of paths"):
        results.load(runs)
