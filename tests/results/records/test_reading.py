"""Whatever a file holds, it is read, or refused with a RecordError."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import results
from results.baseline import as_baseline
from results.gates.counters import read_snapshot
from results.records.reading import RecordError
from results.records.rows import load
from tests.results.synthetic import MACHINE, edited, failed, row, write_run

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
RUN = {
    "machine_info": MACHINE,
    "benchmarks": [row("fsdp", "fsdp=8"), row("fsdp", "fsdp=8", 8), failed("oom", "data", "data=2")],
}
read_any = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The content of a valid baseline."""
    rows = [row("fsdp", "fsdp=8"), edited(row("data", "data=2"), {"compiled.flops": None})]
    return as_baseline(read_snapshot(write_run(tmp_path_factory.mktemp("run") / "run.json", rows)))


def mutated(data: st.DataObject, content: Any) -> Any:
    """JSON in which one value, at any depth, is dropped or replaced."""
    if not isinstance(content, dict | list) or not content or data.draw(st.integers(0, 5)) == 0:
        return data.draw(json_values)
    items = dict(content) if isinstance(content, dict) else dict(enumerate(content))
    key = data.draw(st.sampled_from(sorted(items, key=str)))
    if data.draw(st.integers(0, 5)) == 0:
        del items[key]
    else:
        items[key] = mutated(data, items[key])
    return items if isinstance(content, dict) else list(items.values())


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


@read_any
@given(data=st.data())
def test_a_mutated_run_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    """A run with one wrong value is read or raises a RecordError."""
    read(tmp_path / "run.json", json.dumps(mutated(data, RUN)))


@read_any
@given(data=st.data())
def test_a_mutated_baseline_is_read_or_refused(tmp_path: Path, baseline: dict[str, Any], data: st.DataObject) -> None:
    """A baseline with one wrong value is read or raises a RecordError."""
    read(tmp_path / "baseline.json", json.dumps(mutated(data, baseline)))


@pytest.mark.parametrize("runs", [None, 3, [3]])
def test_what_is_no_path_is_no_run(runs: Any) -> None:
    """`results.load` names it, and says what to pass."""
    with pytest.raises(TypeError, match=r"the runs are .*(None|3).*; pass a path, or a list of paths"):
        results.load(runs)
