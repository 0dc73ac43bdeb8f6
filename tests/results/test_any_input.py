"""Whatever a file holds, each command of `results` ends in a result or in one line, with a documented exit code."""

import contextlib
import gzip
import importlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from results.frontier import read as read_search
from results.records import overviews, predictions, schedules, traces
from results.records.reading import RecordError
from results.records.training import read_training
from results.scaling import read as read_scaling
from strategies.costs.overview import overview
from tests.processes import ROOT
from tests.results.records.test_reading import RUN, mutated
from tests.results.synthetic import MACHINE, edited

EXAMPLES = ROOT / "results" / "examples"
MUTATIONS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
OTHER = {
    "machine_info": MACHINE,
    "benchmarks": [edited(each, {}) | {"stats": {"data": [0.5]}} for each in RUN["benchmarks"]],
}
COMMANDS = {
    "results.export {a} --format=csv": (0, 5),
    "results.export {a} --format=markdown": (0, 5),
    "results.merge {a} {b} --out={out}": (0, 2, 5),
    "results.merge {a} {b} --only-shared-cases --out={out}": (0, 2, 5),
    "results.compare {b} {a}": (0, 2, 5),
    "results.regress exact {b} {a} --action-json={out}": (0, 1, 4, 5),
    "results.regress exact {b} {a} --across-versions=5% --markdown={out}": (0, 1, 4, 5),
    "results.baseline {a} --out={folder}": (0, 5),
}
SCHEDULE = {"schedule": "gpipe", "chunks": 1, "stages": [[{"kind": "F", "microbatch": 0, "chunk": 0}, None]]}
TRACE = {
    "otherData": {"kind": "replay", "case": "fsdp", "devices": "v5e:4x4"},
    "traceEvents": [
        {"ph": "M", "pid": 0, "name": "thread_name", "args": {"name": "compute"}},
        {"ph": "X", "pid": 0, "name": "dot", "cat": "compute", "ts": 0, "dur": 1},
    ],
}
CANDIDATE = {"strategy": "data", "mesh": "data=1", "status": "fits", "rank": 1, "options": "regather=true"}
CANDIDATE |= {f"{a}.{b}": 1 for a in ("formula", "compiled") for b in ("needed_bytes", "tokens_per_second_per_device")}
SEARCH = {
    **{"kind": "feasibility", "schema_version": 1, "topology": "v5e:1x1", "chip": "v5e", "devices": 1},
    **{"capacity_bytes": 2, "preset": "nano", "param_count": 1, "dtype": "float32", "global_batch_sequences": 1},
    **{"sequence_tokens": 1, "candidates": [CANDIDATE]},
}
LOG = [json.loads(line) for line in (EXAMPLES / "training/auto/log.jsonl").read_text().splitlines()[:3]]
DOCUMENTS: dict[str, tuple[Any, Callable[[Path], Any]]] = {
    "search": (SEARCH, read_search),
    "scaling": (json.loads((EXAMPLES / "scaling/gpt3-6.7b-h100.json").read_text()), read_scaling),
    "trace": (TRACE, traces.read),
    "log": (LOG, lambda path: read_training([path])),
    "schedule": (SCHEDULE, lambda path: schedules.read(path.read_text(encoding="utf-8"))),
    "overview": (
        [overview("fsdp", "nano", "fsdp=4").as_dict()],
        lambda path: overviews.read(path.read_text(encoding="utf-8")),
    ),
}


def damaged(data: st.DataObject, text: str) -> bytes:
    """The text as bytes, which are cut short, in another encoding or compressed in one case of four."""
    content = text.encode("utf-8", "surrogatepass")
    ways = [
        lambda: content[: data.draw(st.integers(0, len(content)))],
        lambda: text.encode("utf-16", "surrogatepass"),
        lambda: gzip.compress(content),
        lambda: content.replace(b'": ', b'": 1, "name": ', 1),
    ]
    return data.draw(st.sampled_from(ways))() if data.draw(st.integers(0, 3)) == 0 else content


@pytest.mark.parametrize("command", COMMANDS)
@MUTATIONS
@given(data=st.data())
def test_any_run_ends_in_a_result_or_a_line(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    data: st.DataObject,
) -> None:
    """A run with any mutation ends in a documented exit code, and with at most one line on stderr."""
    paths = {name: tmp_path / f"{name}.json" for name in ("a", "b", "out")}
    paths["a"].write_bytes(damaged(data, json.dumps(mutated(data, RUN))))
    paths["b"].write_text(json.dumps(OTHER))
    module, *arguments = command.format(**paths, folder=tmp_path / "folder").split()
    with monkeypatch.context() as patch:
        patch.setattr("sys.stderr", said := io.StringIO())
        patch.setattr("sys.stdout", io.StringIO())
        try:
            code = importlib.import_module(module).main(arguments) or 0
        except SystemExit as ended:
            code = ended.code
    assert code in COMMANDS[command], said.getvalue()
    assert said.getvalue().count("\n") == (code != 0 and "regress" not in module)


@pytest.mark.parametrize("name", DOCUMENTS)
@MUTATIONS
@given(data=st.data())
def test_any_document_is_read_or_refused(name: str, tmp_path: Path, data: st.DataObject) -> None:
    """A search, scaling, trace, log, schedule or overview with any mutation is read, or refused."""
    content, read = DOCUMENTS[name]
    changed = mutated(data, content)
    path = tmp_path / "document.json"
    lines = changed if name == "log" and isinstance(changed, list) else [changed]
    path.write_bytes(damaged(data, "".join(f"{json.dumps(line)}\n" for line in lines)))
    with contextlib.suppress(RecordError, UnicodeDecodeError):  # what is on stdin is read as text before
        read(path)


@pytest.mark.parametrize("cell", ["3,5", "fast", "inf", "-inf", "1e400", "-1", "1_000", "0x10", "true", "9" * 30])
def test_a_cell_that_is_no_amount_is_refused(cell: str, tmp_path: Path) -> None:
    """The message names the file, the row, the column and the cell."""
    names = [
        *predictions.NUMBERS,
        *predictions.TEXTS,
        *(f"predicted.{p}_seconds" for ps in predictions.PARTS.values() for p in ps),
    ]
    cells = ["" if name in predictions.TEXTS else "1" for name in names]
    cells[names.index("step_seconds")] = f'"{cell}"'
    path = tmp_path / "predicted.csv"
    path.write_text(f"{','.join(names)}\n{','.join(cells)}\n")
    with pytest.raises(RecordError, match=r"predicted\.csv: row 1: step_seconds is "):
        predictions.read(path)
