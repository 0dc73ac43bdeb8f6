"""What the commands of `results` refuse: files that are not what they should be, and options without effect."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strategies.costs.overview import overview
from tests.commands import assert_refused
from tests.processes import ROOT
from tests.results.documents import LANE, SCHEDULE, SPAN, candidate, predictions, run, search, trace
from tests.results.synthetic import edited, failed, row, write_run


def timed(seconds: float, **facts: Any) -> dict[str, Any]:
    """A run of one row with this step time."""
    return run(edited(row("fsdp", "fsdp=8"), facts) | {"stats": {"data": [seconds]}})


def without(*columns: str) -> dict[str, Any]:
    """A run whose row lacks columns."""
    made = row()
    for name in columns:
        del made["extra_info"][name]
    return run(made)


def rows(told: str, status: int, *refused: tuple[Any, str]) -> Iterator[Any]:
    """A case for each content of the files a.* and b.* of a command, or of stdin, and a pattern of what it says.

    A tuple has the contents of several files; what is not text is written as JSON.
    """
    for content, message in refused:
        yield pytest.param(told, content, status, message, id=f"{told}: {message}"[:120])


ALONE = run(row())
TWO = run(row("data", "data=2"), row("fsdp", "fsdp=2"), row())
SHOWN = json.loads(json.dumps([overview("data").as_dict(), overview("fsdp").as_dict()]))
WIDE = json.loads(json.dumps([overview("fsdp", "nano", "fsdp=128", 128).as_dict()]))
FITS, NONE_FITS = candidate("fsdp", 12, 2.0), candidate("data", None, None)
LOG = (ROOT / "docs" / "examples" / "training" / "single" / "log.jsonl").read_text()
PICTURE, LOSSES, PREDICTIONS = "plot a.json --out=x.png", "plot a.jsonl --out=x.png", "plot a.csv --out=x"
BOTH = "plot a.json b.json --out=x.png"
COMPARED, MERGED = "compare a.json b.json", "merge a.json b.json --out=m.json"
SECOND = timed(1.0)["benchmarks"]

RUNS = [
    *rows(
        PICTURE,
        5,
        ('{"benchmarks": [{"name": "te', "a.json is cut short or not JSON: Input data was truncated"),
        ({"results": []}, "a.json is JSON but not pytest-benchmark's"),
        ([], "a.json is JSON but not pytest-benchmark's"),
        (run(), "a.json has 0 benchmarks, none of meshmark"),
        (run({"name": "test_sort", "extra_info": {}}), "a.json has 1 benchmarks, none of meshmark"),
        (run(row(schema_version=2)), "schema_version 2 and this meshmark reads 4; write it again"),
        (run(row(schema_version=5)), "schema_version 5 and this meshmark reads 4; update meshmark, or"),
        (run(row(schema_version="4")), "schema_version '4' and this meshmark reads 4; write"),
        (run(row(schema_version=True)), "schema_version True and this meshmark reads 4; write"),
        (without("mesh", "memory.temp_bytes"), r"test_step\[single-data=1-b16\] lacks mesh, memory.temp_bytes"),
        (run(row(tokens_per_second="U[1.0]")), r"b16\]: tokens_per_second is 'U\[1.0\]'; it must be a number"),
        (run(row() | {"launch": "first"}), "launch is 'first'; it must be a whole number or null"),
        (run(failed("oom", "data", "data=2")), r"no row was timed and equal to one device \(1 oom\)"),
    ),
    *rows(
        BOTH,
        5,
        *(
            (
                (run(edited(row(), {column: first})), run(edited(row("data", "data=2"), {column: second}))),
                rf"not comparable, {column} differs: {first} \(a.json\) and {second} \(b.json\); plot them apart",
            )
            for column, first, second in (
                *(("platform", "cpu", "gpu"), ("device_kind", "NVIDIA H100", "NVIDIA H200")),
                ("virtual_devices", True, False),
            )
        ),
        (
            (run(row(), fingerprint="one"), run(row("data", "data=2"), fingerprint="two")),
            r"fingerprint differs: one \(a.json\) and two \(b.json\)",
        ),
        ((ALONE, ALONE), "b16. is both in a.json and in b.json; plot one of them"),
    ),
    *rows("page b.json --out=x.html", 5, ((), "b.json does not exist; write it with `pytest benchmarks --bench")),
    *rows("page . --out=x.html", 5, ((), "is a folder, not a file")),
]
OPTIONS = [
    *rows(BOTH, 2, ((TWO, SCHEDULE), "a.json is of the kind run, and b.json is not; plot them apart")),
    *rows("plot a.jsonl b.json --out=x.png", 2, ((LOG, TWO), "a.jsonl is of the kind training, and b.json is not; pl")),
    *rows("plot a.json a.json --out=x.png", 2, (SCHEDULE, "a picture is of one schedule; plot the 2 files apart")),
    *rows("plot . --out=x.png", 2, ((), ". is a folder, and files are drawn; name one, such as ok.json")),
    *rows(f"{PICTURE} --between=1,2", 2, (TWO, "--between is a part of a trace, and this is of the kind run; remove")),
    *rows(f"{LOSSES} --batch-size=8", 2, (LOG, "--batch-size chooses among measured cases, .* of the kind training")),
    *rows(f"{PICTURE} --metric=mfu", 2, (SCHEDULE, "--metric is of measured cases, and this is of the kind schedule")),
    *rows(f"{PICTURE} --metric=speed", 2, (TWO, "--metric speed is unknown; it can be throughput, speedup, eff")),
    *rows(f"{PICTURE} --strategy=tensor", 2, (TWO, "--strategy tensor: the files have no row .* data, fsdp, single")),
    *rows(f"{PICTURE} --devices=4", 2, (TWO, "--devices 4: the files have no row of it; it can be 1, 2")),
    *rows(f"{PICTURE} --size=3", 2, (TWO, "'3' is not a size in inches; use width and height from 1 to 100")),
    *rows(f"{PICTURE} --metric=mfu", 5, (TWO, "nothing to draw; mfu_vs_devices: 3 of 3 rows not drawn: 3 without mfu")),
    *rows("plot a.json --out=x --batch-size=7", 5, (run(row(), row(batch=8)), "a global batch of 7; it can be 8, 16")),
    *rows("plot a.json --out=a.json", 5, (trace(LANE, SPAN), "would overwrite the input")),
    *rows(f"{PICTURE} --between=3,2", 2, (trace(LANE, SPAN), "'3,2' is not an interval; write its begin and its end")),
    *rows(f"{PICTURE} --between=now", 2, (trace(LANE, SPAN), "'now' is not an interval")),
    *rows("export a.json --format=csv --columns=meshs", 2, (ALONE, "no column is called 'meshs'; there are mesh")),
]
OTHER_FILES = [
    *rows(
        PICTURE,
        5,
        (SCHEDULE | {"stages": [[[]]]}, "a.json is a schedule in which nothing is done"),
        (trace(), "is the trace of a step in which nothing happens"),
        (trace(SPAN), r"traceEvents\[0\] is in the lane 'compute', which no event before it names"),
        (trace(LANE, SPAN | {"dur": -1}), r"traceEvents\[1\]: dur is -1; it must be a number of at least 0"),
        (trace(LANE, SPAN | {"dur": "long"}), r"traceEvents\[1\]: dur is 'long'; it must be a number"),
        (trace(LANE, "span"), r"traceEvents\[1\] is 'span'; it must be an object"),
        (search(FITS, kind="feasibility"), "was not written by `meshmark search --json FILE` of this version"),
        (search(FITS, schema_version=4), "has schema_version 4 and this meshmark reads 3; update meshmark"),
        (search(FITS, schema_version=2), "has schema_version 2 and this meshmark reads 3; write it again"),
        (search(FITS | {"bubble": [0.1]}), r"candidates\[0\].*bubble"),
        (search(FITS | {"parts": {"matmuls": "fast"}}), r"candidates\[0\].*parts"),
        (search(NONE_FITS), "no candidate fits"),
        (search(NONE_FITS | {"scaling": "weak"}), "no candidate fits"),
    ),
    *rows(
        "plot - --out=x",
        5,
        ([SHOWN[0] | {"mesh": [["data", 0]]}], r"mesh\[0\]\[1\] is 0; it must be a whole number of at least 1"),
        ([SHOWN[0] | {"mesh": [["fsdp", 4]]}], "the mesh has no axis 'data'"),
        ([SHOWN[0] | {"arrays": 1}], "arrays is 1; it must be a list"),
    ),
    *rows("plot - --out=x.png", 2, (SHOWN, "picture, and there are 2 of stdin")),
    *(
        each
        for content, message in (
            ("nothing", "stdin is cut short or not JSON"),
            (SCHEDULE | {"stages": [[[]]]}, "in which nothing is done"),
            (SCHEDULE | {"stages": [[[]], [[], []]]}, "stages have 1 to 2 ticks"),
            (SCHEDULE | {"stages": [[[{"kind": "F", "microbatch": 0, "chunk": 1}]]]}, "of chunk 1, and `chunks` is 1"),
            (SCHEDULE | {"stages": [[[]] * 2000]}, "1 stages of 2000 ticks cannot be drawn; 1400 of each at most"),
        )
        for each in rows("plot - --out=x.png", 5, (content, f"{message}.*print one with `meshmark schedule NAME"))
    ),
    *rows(
        "plot - --out=x.png",
        5,
        (WIDE, "has 128 devices; a picture has room for 64"),
        ([SHOWN[0] | {"arrays": [{"name": "x"}]}], r"stdin\[0\].arrays\[0\] lacks what"),
    ),
    *rows(
        LOSSES,
        5,
        ("", "a.jsonl:? does not begin with what was run"),
        ('{"kind": "step", "step": 1}\n', "a.jsonl:? does not begin with what was run"),
        ("no json\n", "a.jsonl:? line 1 is cut short or not JSON"),
        ('{"kind": "run", "schema_version": 9}\n', "a.jsonl:? has schema_version 9 and this meshmark reads 1"),
        ('{"kind": "run", "schema_version": 1}\n', "a.jsonl:? line 1 lacks strategy"),
        (LOG + '{"kind": "step", "step": 600, "loss": "low"}\n', r"line \d+: loss is 'low'; .* a number or null"),
    ),
    *rows("plot b.jsonl --out=x.png", 5, ((), "b.jsonl:? does not exist; pass a log of")),
    *rows(
        "plot a.jsonl b.jsonl --out=x.png",
        5,
        (
            (LOG, LOG.replace('"tokens": "bytes"', '"tokens": "chars"')),
            "tokens of the corpus is bytes and chars; plot them",
        ),
    ),
    *rows(
        PREDICTIONS,
        5,
        ("source,device\na,b\n", "a.csv lacks the columns layers, embed, sequence"),
        *(
            (predictions(cell), r"a\.csv: row 1: measured_seconds is ")
            for cell in ("3,5", "fast", "inf", "-inf", "1e400", "-1", "1_000", "0x10", "true", "9" * 30)
        ),
    ),
    *rows("plot b.csv --out=x", 5, ((), "b.csv does not exist; write it with")),
]
SEVERAL_RUNS = [
    *rows(
        COMPARED,
        2,
        *(
            ((timed(1.0), other), message)
            for other, message in (
                (run(*SECOND, fingerprint="b", device_kind="H100"), "device_kind is cpu in a.json and H100 in b.json"),
                (run(*SECOND, fingerprint="b", versions={"jax": "1"}), "versions.jax is 0.10.2 in a.json and 1 in b.j"),
                (run(*SECOND, fingerprint="b"), "fingerprint is machine-a in a.json and b in b.json"),
                (timed(1.0, dtype="bfloat16"), r"dtype is float32 in BASE and .*; BASE is a.json and HEAD is b.json"),
                (timed(1.0, preset="gpt2"), "preset is synthetic in BASE and gpt2 in HEAD"),
            )
        ),
    ),
    *rows(
        MERGED,
        2,
        (
            (timed(1.0), run(*timed(1.1)["benchmarks"], fingerprint="b", xla_flags="--x")),
            "xla_flags is in a.json and --x in b.json: launches",
        ),
        (
            (timed(1.0), timed(1.1, **{"compiled.hash": "other"})),
            r"test_step\[fsdp-fsdp=8-b16\] is program fsdp .* in a.json and other in",
        ),
        ((timed(1.0), timed(1.0)), "hold the same run"),
    ),
]
GATE = [
    *rows("regress exact", 2, ((), "the following arguments are required: BASE.json, HEAD.json")),
    *rows("regress exact ok.json", 2, ((), "the following arguments are required: HEAD.json")),
    *(
        each
        for allowed, message in (
            ("memory.temp=1%", "'memory.temp' names no exact metric; .* memory.temp_b"),
            ("compiled.flops", "'compiled.flops' is not an option with a value"),
            ("compiled.flops=-1", "'-1' is not an allowance; use a number of at least 0"),
            ("compiled.flops=nan%", "'nan%' is not an allowance; .* a percentage such as"),
            ("tokens_per_second=1", "'tokens_per_second' names no exact metric"),
        )
        for each in rows(f"regress exact ok.json ok.json --allow {allowed}", 2, ((), message))
    ),
    *(
        each
        for told in ("regress exact a.json ok.json", "regress exact ok.json a.json")
        for each in rows(
            told,
            5,
            ("", "broken input: a.json is cut short or not JSON"),
            (json.dumps(ALONE)[:-9], "broken input: a.json is cut short or not JSON"),
            ({"results": []}, "broken input: a.json is JSON but not pytest-benchmark's"),
            (run(), "broken input: a.json has 0 benchmarks, none of meshmark"),
            (run(row(schema_version=2)), "a.json has schema_version 2 and this meshmark reads 4; write it again"),
            (run(row(schema_version=5)), "a.json has schema_version 5 and this meshmark reads 4; update meshmark"),
            (run(row(), counters_fingerprint=None), "a.json: machine_info: counters_fingerprint is None"),
            (without("compiled.flops"), "broken input: a.json.* lacks compiled.flops"),
            (run(row(), row()), r"a.json has test_step\[single-data=1-b16\] .* twice"),
            (run(edited(row(), {"memory.temp_bytes": "9"})), "a.json.* memory.temp_bytes is '9'; it must be a number"),
            ("[" * 100_000, "a.json is cut short or not JSON"),
            ('{"cases": ' * 900 + "1" + "}" * 900, "a.json (is cut short or not JSON|has schema_version None)"),
            ("9" * 5000, "a.json is cut short or not JSON"),
            ("\ud800", "a.json is cut short or not JSON"),
            ("\ufeff[", "a.json is cut short or not JSON"),
        )
    ),
    *rows(
        "regress exact b.json ok.json", 5, ((), "b.json does not exist; write it with `pytest benchmarks --benchmark-")
    ),
    *rows("regress exact b.json ok.json", 5, ((), "`meshmark regress baseline RUN.json`")),
    *rows("regress exact . ok.json", 5, ((), "is a folder, not a file")),
    *rows(
        "regress baseline a.json --out=x",
        5,
        *(
            (
                run(row(), failed(status, "data", "data=2")),
                rf"sequence=128 params=10000000 is {status} \(made up\), a failure that a",
            )
            for status in ("oom", "error", "interrupted", "timeout", "mismatch", "compile_error", "nan_loss")
        ),
        (run(row(), versions={"jax": None}), "has the JAX version None; run the benchmarks again"),
        (run(row(), versions={"jax": "../0.10"}), "has the JAX version '../0.10'; run the benchmarks again"),
    ),
]


@pytest.mark.parametrize(
    ("told", "content", "status", "message"), [*RUNS, *OPTIONS, *OTHER_FILES, *SEVERAL_RUNS, *GATE]
)
def test_it_is_refused(told: str, content: Any, status: int, message: str, tmp_path: Path, monkeypatch: Any) -> None:
    """With the exit code and a line that says what is wrong, and the value; nothing is written."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "ok.json", [row()])
    names = dict.fromkeys(re.findall(r"(?<= )[ab]\.\w+", told))
    contents = content if isinstance(content, tuple) else (content,)
    texts = [each if isinstance(each, str) else json.dumps(each) for each in contents]
    for name, text in zip(names, texts, strict=False):
        (tmp_path / name).write_text(text, encoding="utf-8", errors="surrogatepass")
    stdin = texts[0].encode() if "-" in told.split() else b""
    before = files(tmp_path)
    found = assert_refused(told, status, message, stdin)
    assert len(found.err.splitlines()) <= 1
    assert files(tmp_path) == before


def files(folder: Path) -> dict[str, bytes]:
    """All files below a folder, with their contents."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
