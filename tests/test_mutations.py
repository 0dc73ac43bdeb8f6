"""Whatever is done to a valid file or argument, a command ends in a result or in one clear line, within ten seconds.

Hypothesis mutates what each command reads: types, keys, numbers, encodings, cells. The default test run tries the same
examples each time; `tox -e factorisations` tries many more, and others each night.
"""

import contextlib
import csv
import gzip
import importlib
import io
import json
import re
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.seconds.machines import FOLDER
from strategies.costs.overview import overview
from tests.processes import ROOT
from tests.results.synthetic import sweep, write_run
from tests.results.test_lanes import SPANS
from tests.results.test_plot_training import log
from tests.results.test_scaling import point
from tests.test_bad_input import SCHEDULE, found

SECONDS = 10.0
"""Most seconds of processor time that a command may take to refuse or to finish."""
CODES = 0, 1, 2, 5
"""Done, a gate that is red, wrong usage, and input that cannot be read."""
LONGEST = 2000
"""Most characters of the line that says what is wrong."""


class Reader(NamedTuple):
    """A command that reads a file, or stdin where its arguments name none."""

    command: str
    name: str
    """Of the file of `files` that is mutated; the arguments name it as FILE."""
    examples: int = 30


READERS = [
    Reader("results.plot FILE --out=figures", "run.json", 6),
    Reader("results.page FILE --out=page.html", "run.json", 20),
    Reader("results.page FILE --out=page.html", "found.json", 10),
    Reader("results.export FILE", "run.json"),
    Reader("results.compare run.json FILE", "run.json"),
    Reader("results.regress exact run.json FILE", "run.json"),
    Reader("results.baseline FILE --out=baselines", "run.json"),
    Reader("results.merge FILE other.json --out=merged.json", "run.json"),
    Reader("results.frontier FILE --out=x.svg", "found.json", 10),
    Reader("results.scaling FILE --out=x.svg", "scaling.json", 10),
    Reader("results.lanes FILE --out=x.svg", "trace.json", 15),
    Reader("results.plot FILE --out=figures", "log.jsonl", 10),
    Reader("results.timeline x.svg", "schedule.json", 15),
    Reader("results.shards x.svg", "overview.json", 10),
    Reader("results.diagram --out=diagrams", "overviews.json", 10),
    Reader("results.predictions FILE --out=pages", "predicted.csv", 6),
    Reader("benchmarks.predict FILE --out=out.csv", "runs.csv"),
    Reader("benchmarks.predict runs.csv --machine=FILE", "machine.json"),
    Reader(
        "benchmarks.advise --preset=nano --topology=h100:1x2 --batch-size=8 --strategy=data --machine=FILE",
        "machine.json",
        15,
    ),
]
TINY = "--layers=2 --embed=16 --heads=2 --vocab=256 --sequence=16"
COMMANDS = [
    f"benchmarks.advise --topology=h100:1x2 --batch-size=8 --strategy=data {TINY}",
    f"benchmarks.feasibility --topology=cpu:2 --chip=v5e --batch-size=8 --strategy=data --compile=0 {TINY}",
    "benchmarks.predict runs.csv",
    "results.export run.json",
    "results.merge run.json other.json --out=merged.json",
    "results.regress exact run.json other.json",
    "strategies show data --mesh=data=2",
    "strategies schedule 1f1b --stages=2 --microbatches=4",
]
"""Commands whose arguments are mutated."""
UNTRIED = {"--compile", "--measure", "--again", "--workers", "--cache", "--help", "--devices", "--png"}
"""Options that are not tried: they compile and time steps, or draw in another process, which takes too long."""
VALUES: list[Any] = [
    *(None, True, False, -1, 0, 1, 2.5, 10**6, 2**70, 1e308, -1e-300, "", " ", "x", "3,5", "1", "$\\frac$", "_^$"),
    *("=HYPERLINK(1)", "\n", "x" * 3000, "٣", "ﬁ\u202e", [], {}, [[]], [None], {"": 0}, {"data": "data"}),
]
"""Values in place of others."""
TEXTS = [
    *(
        "",
        " ",
        "nan",
        "inf",
        "-inf",
        "-1",
        "0",
        "1e999",
        "99999999999",
        "9" * 30,
        "abc",
        "3,5",
        "٣",
        "a=b",
        "=",
        ",",
        "x=1,y",
    ),
    *(
        "$x_",
        "1..2",
        "8..999999999",
        "None",
        "x" * 1000,
        "/dev/full",
        "/",
        "../x",
        "data=0",
        "data=99999999",
        "2x",
        "1e5",
    ),
    *(
        "unroll=0",
        "unroll=99999999999",
        "gather=never",
        "hbm=1e999GiB",
        "hbm=nanGiB",
        "flops=0x",
        "0.5",
        "run.json",
        "\udcff",
    ),
]
"""Arguments in place of others; the last is what Python makes of a byte that is not UTF-8."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a valid file of each kind."""
    folder = tmp_path_factory.mktemp("valid")
    rows = [each for each in sweep([8]) if each["extra_info"]["devices"] in (1, 2)]
    write_run(folder / "run.json", rows)
    write_run(folder / "other.json", [each | {"stats": {"data": [0.5]}} for each in rows])
    points = [point("strong", 8, 2.0, "matmuls"), point("strong", 16, None), point("weak", 8, 1.0, "latency")]
    scaling = {"kind": "scaling", "schema_version": 1, "device": "h100", "preset": "gpt2", "sequence_tokens": 1024}
    scaling |= {"dtype": "bfloat16", "machine": "meshmark_gpus", "error": 0.2, "points": points}
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "name": "thread_name", "args": {"name": name}} for name, _, _ in SPANS
    ]
    events += [{"ph": "X", "pid": 0, "name": "x", "cat": cat, "ts": 1e3 * ts, "dur": 1e3 * ms} for cat, ts, ms in SPANS]
    trace = {"otherData": {"kind": "replay", "case": "x", "devices": "4 x H100"}, "traceEvents": events}
    shown = overview("fsdp", "nano", mesh="fsdp=2").as_dict()
    contents = {"scaling": scaling, "trace": trace, "schedule": SCHEDULE, "overview": [shown], "overviews": [shown]}
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "found.json").write_text(json.dumps(found()["found.json"]))
    (folder / "log.jsonl").write_bytes(log(folder, "single").read_bytes())
    (folder / "machine.json").write_text(json.dumps(json.loads((FOLDER / "meshmark_gpus.json").read_text())))
    table = (ROOT / "results" / "published" / "mpt_fsdp_a100_80gb.csv").read_text().splitlines()
    (folder / "runs.csv").write_text("\n".join(table[:5]) + "\n")
    code, said, _ = ended(f"benchmarks.predict {folder / 'runs.csv'} --out={folder / 'predicted.csv'}".split())
    assert code == 0, said
    return folder


def ended(command: list[str], stdin: bytes = b"") -> tuple[int, str, str]:
    """Run a command in this process; return its exit code, and what it wrote to stderr and to stdout."""
    module = importlib.import_module("strategies.__main__" if command[0] == "strategies" else command[0])
    output, errors, before = io.StringIO(), io.StringIO(), sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of figures whose fonts lack a letter
            code = module.main(command[1:]) or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdin = before
    return code, errors.getvalue(), output.getvalue()


def require_clear_end(command: list[str], stdin: bytes = b"") -> None:
    """Check that a command ends as documented: with a result, or with one line of printable text.

    A gate says in its report on stdout what is wrong.
    """
    start = time.process_time()
    code, said, printed = ended(command, stdin)
    assert time.process_time() - start < SECONDS
    assert code in CODES
    (said + printed).encode()  # a lone surrogate would end a terminal's writer
    if code in (2, 5):
        assert len(said.strip().splitlines()) == (0 if command[0] == "results.regress" and printed else 1), said
        assert 10 < len(said or printed) < LONGEST, said


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for name, inside in items for place in places(inside, (*path, name)))]


def changed(value: Any, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    """A copy of a JSON value in which `change` was called with the container at a path and the last step to it."""
    copy = json.loads(json.dumps(value))
    inside = copy
    for step in path[:-1]:
        inside = inside[step]
    change(inside, path[-1])
    return copy


@st.composite
def other_json(draw: st.DrawFn, text: str) -> bytes:
    """JSON, or a log of JSON Lines, in which one value is another, or a key is missing, renamed or there twice."""
    lines = text.splitlines() if text.count("\n") > 1 else [text]
    number = draw(st.integers(0, len(lines) - 1))
    document = json.loads(lines[number])
    paths = places(document)[1:]
    path = draw(st.sampled_from(paths)) if paths else ()
    kind = draw(st.sampled_from(["value", "value", "value", "missing", "renamed", "doubled", "number"]))
    if kind == "value":
        other = draw(
            st.sampled_from(VALUES) | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
        )
        lines[number] = json.dumps(changed(document, path, lambda inside, step: inside.__setitem__(step, other)))
    elif kind == "missing":
        lines[number] = json.dumps(changed(document, path, lambda inside, step: inside.__delitem__(step)))
    elif kind == "renamed":
        keys = list(re.finditer(r'"([^"]+)": ', lines[number]))
        where = draw(st.sampled_from(keys))
        lines[number] = (
            f"{lines[number][: where.start(1)]}{draw(st.sampled_from(['x', '$_^']))}{lines[number][where.end(1) :]}"
        )
    elif kind == "doubled":
        where = draw(st.sampled_from(list(re.finditer(r'"[^"]+": ', lines[number]))))
        lines[number] = f"{lines[number][: where.start()]}{where[0]}0, {lines[number][where.start() :]}"
    else:
        numbers = list(re.finditer(r"(?<=[ \[])-?[0-9][0-9.e+-]*", lines[number]))
        where = draw(st.sampled_from(numbers)) if numbers else None
        odd = draw(st.sampled_from(["NaN", "-Infinity", "1e999", "9" * 5000, '"\\ud800"', "1,5", "01", "-0"]))
        lines[number] = f"{lines[number][: where.start()]}{odd}{lines[number][where.end() :]}" if where else odd
    return "\n".join(lines).encode("utf-8", "surrogatepass")


@st.composite
def other_table(draw: st.DrawFn, text: str) -> bytes:
    """CSV in which a cell is another, or a column or row is missing, there twice, or of another length."""
    rows = list(csv.reader(io.StringIO(text)))
    row, column = draw(st.integers(0, len(rows) - 1)), draw(st.integers(0, len(rows[0]) - 1))
    kind = draw(st.sampled_from(["cell", "cell", "cell", "missing", "doubled", "short", "long", "blank", "quote"]))
    if kind == "cell":
        rows[row][column] = draw(st.sampled_from(TEXTS[:-1]) | st.text(max_size=8))
    elif kind == "missing":
        rows = [[cell for place, cell in enumerate(cells) if place != column] for cells in rows]
    elif kind == "doubled":
        rows = [[*cells, cells[column]] for cells in rows]
    elif kind == "short":
        del rows[row][column]
    elif kind == "long":
        rows[row].append("1")
    elif kind == "blank":
        rows.insert(row, [" "] * draw(st.integers(0, 30)))
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return (stream.getvalue() + ('"' if kind == "quote" else "")).encode("utf-8", "surrogatepass")


@st.composite
def other_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """A file that is cut short, damaged, compressed, or in another encoding."""
    place = draw(st.integers(0, len(content) - 1))
    return draw(
        st.sampled_from(
            [
                content[:place],
                content[:place] + bytes([draw(st.integers(0, 255))]) + content[place + 1 :],
                content[:place] + b"\xff" + content[place:],
                content[:place] + b"\0" + content[place:],
                content.decode().encode("utf-16"),
                content.decode().encode("utf-8-sig"),
                gzip.compress(content),
                content + content[:place],
                b"",
                b"\n \n",
                b"[" * 100_000,
            ]
        )
    )


def mutated(content: bytes, name: str) -> st.SearchStrategy[bytes]:
    """Mutations of a file."""
    structure = other_table if name.endswith(".csv") else other_json
    return st.one_of(structure(content.decode()), structure(content.decode()), other_bytes(content))


def tries(examples: int, *, same: bool) -> settings:
    """How many examples are tried, and whether they are the same each time."""
    unhurried = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
    return settings(max_examples=examples, derandomize=same, database=None, suppress_health_check=unhurried)


def try_file(reader: Reader, files: Path, folder: Path, tried: settings) -> None:
    """Mutate the file of a command as often as said."""
    content = (files / reader.name).read_bytes()
    path = folder / reader.name
    command = reader.command.replace("FILE", str(path)).replace("run.json FILE", f"{files / 'run.json'} FILE")
    arguments = [
        str(files / part) if part in ("run.json", "other.json", "runs.csv") else part for part in command.split()
    ]
    reads_stdin = "FILE" not in reader.command

    @tried
    @given(mutated(content, reader.name))
    def try_one(other: bytes) -> None:
        path.write_bytes(other)
        require_clear_end(arguments, other if reads_stdin else b"")

    try_one()


def try_arguments(command: str, files: Path, tried: settings) -> None:
    """Give one option of a command another value, as often as said."""
    parts = [str(files / part) if part in ("run.json", "other.json", "runs.csv") else part for part in command.split()]
    stream = io.StringIO()
    module = importlib.import_module("strategies.__main__" if parts[0] == "strategies" else parts[0])
    verbs = [part for part in parts[1:3] if part.isalnum() and not part.startswith("-")][:1]
    with contextlib.redirect_stdout(stream), contextlib.suppress(SystemExit):
        module.main([*(verbs if parts[0] in ("strategies", "results.regress") else []), "--help"])
    options = sorted({*re.findall(r"--[a-z][a-z-]+", stream.getvalue())} - UNTRIED)

    @tried
    @given(st.sampled_from(options), st.sampled_from(TEXTS))
    def try_one(option: str, text: str) -> None:
        require_clear_end([*parts, f"{option}={text}"])

    try_one()


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: f"{reader.command.split()[0]}-{reader.name}")
def test_a_mutated_file_ends_in_a_result_or_a_line(
    reader: Reader, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback, no hang, no line that cannot be printed; the exit code is a documented one."""
    monkeypatch.chdir(tmp_path)
    try_file(reader, files, tmp_path, tries(reader.examples, same=True))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[0])
def test_a_mutated_argument_ends_in_a_result_or_a_line(
    command: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any option with any value: a result, or the line that says what is wrong with it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    try_arguments(command, files, tries(25, same=True))


@pytest.mark.factorisations
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: f"{reader.command.split()[0]}-{reader.name}")
def test_many_mutated_files(reader: Reader, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same law, with other examples each time."""
    monkeypatch.chdir(tmp_path)
    try_file(reader, files, tmp_path, tries(20 * reader.examples, same=False))


@pytest.mark.factorisations
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[0])
def test_many_mutated_arguments(command: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same law, with other examples each time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    try_arguments(command, files, tries(500, same=False))
