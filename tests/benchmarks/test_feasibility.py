"""`benchmarks.feasibility` ranks candidates by formulas, compiles the best, caches the results and writes a file."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import pytest

from benchmarks import feasibility
from benchmarks.cases.case import Case, option_texts
from benchmarks.compile import compile_case
from benchmarks.devices.chips import CHIPS, GIB
from benchmarks.devices.topology import Topology
from benchmarks.run.pool import Outcome
from benchmarks.search.findings import SPEED, relative_error

TINY = ["--layers=2", "--embed=16", "--heads=2", "--vocab=256", "--sequence=16", "--batch-size=8", "--dtype=float32"]
FOUR = ["--topology=cpu:4", "--chip=v5e", *TINY, "--strategy=data,fsdp,pipeline", "--remat=dots"]


def run(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run the command, and return the JSON file it writes."""
    path = folder / "found.json"
    assert feasibility.main([*arguments, f"--cache={folder / 'cache'}", f"--json={path}"]) == 0
    return json.loads(path.read_text())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """The cases that are sent to the compiler, which is replaced by one that gives the same answer for each."""
    cases = []

    def run_in_processes(missing: list[Case], *_: Any) -> Any:
        cases.extend(missing)
        memory = {"memory.total_bytes": 10**6, "chip.needed_bytes": None, "compiled.sent_bytes": 7}
        return [
            Outcome(case, {"status": "ok", "reason": "", "compile_seconds": 1.0, **memory}, "", 1.0) for case in missing
        ]

    monkeypatch.setattr(feasibility, "run_in_processes", run_in_processes)
    return cases


def test_the_best_are_compiled_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The best candidates are compiled, agree with the formulas, and are read from the cache in a second run."""
    first = run(tmp_path, *FOUR, "--compile=2", "--workers=2")
    compiled = [row for row in first["candidates"] if row["compiled.status"]]
    assert [row["compiled.status"] for row in compiled] == ["ok", "ok"]
    for row in compiled:
        assert row["compiled.argument_bytes"] == row["formula.argument_bytes"]
        assert row["compiled.sent_bytes"] == row["formula.sent_bytes"]
    said = capsys.readouterr()
    assert "compiling 2, 2 at a time" in said.err
    assert "[2/2] " in said.err
    assert "as compiled, with the relative error of the formulas" in said.out
    assert run(tmp_path, *FOUR, "--compile=2") == first
    assert "2 of 2 were compiled before" in (again := capsys.readouterr().err)
    assert "compiling" not in again


def test_the_best_of_each_kind_come_first(tmp_path: Path, asked: list[Case]) -> None:
    """The best of each strategy and set of axes is compiled first; a later run compiles what is missing."""
    long = ["--sequence=1024", "--embed=64"]  # a ring waits longer than a second microbatch takes
    two = ["--topology=cpu:4", "--chip=v5e", *TINY, *long, "--strategy=data,context", "--remat=dots"]
    run(tmp_path, *two, "--compile=1")
    assert [case.strategy for case in asked] == ["data"]
    rows = run(tmp_path, *two, "--compile=3")["candidates"]
    ranks = {name: [row["rank"] for row in rows if row["strategy"] == name] for name in ("data", "context")}
    assert (ranks["data"][0], ranks["data"][1] < ranks["context"][0]) == (1, True)
    assert [row["rank"] for row in rows if row["compiled.status"]] == [*ranks["data"], ranks["context"][0]]
    assert [case.strategy for case in asked] == ["data", "context", "data"]


def test_compiler_options_are_part_of_the_cache_key(tmp_path: Path, asked: list[Case]) -> None:
    """Compiler options are part of the cache key."""
    for options in ([], ["--compiler-option=xla_a=1"], ["--compiler-option=xla_a=2"], ["--compiler-option=xla_a=1"]):
        run(tmp_path, *FOUR, "--compile=1", *options)
    assert [case.compiler_options for case in asked] == [(), (("xla_a", "1"),), (("xla_a", "2"),)]


def test_again_compiles_despite_the_cache(tmp_path: Path, asked: list[Case]) -> None:
    """--again compiles despite the cache, and caches the new result."""
    for options in ([], [], ["--again"], []):
        run(tmp_path, *FOUR, "--compile=1", *options)
    assert len(asked) == 2
    assert asked[0] == asked[1]


def test_an_option_takes_all_values_that_it_is_given(tmp_path: Path) -> None:
    """--option may be repeated, for one option or several, and every value is a candidate."""
    given = ["--option=schedule=1f1b", "--option=gather=step", "--option=schedule=zb-h1"]
    rows = run(tmp_path, *FOUR, *given, "--compile=0")["candidates"]
    options = {row["options"] for row in rows}
    assert options == {"", "gather=step", "schedule=1f1b", "schedule=zb-h1"}


def test_a_tight_fit_is_compiled_last(tmp_path: Path, asked: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate that fits with little room is compiled after those with more, for formulas are not exact."""
    most = max(row["formula.needed_bytes"] for row in run(tmp_path, *FOUR, "--compile=0")["candidates"] if row["rank"])
    chip = dataclasses.replace(CHIPS["v5e"], memory_bytes=most)
    monkeypatch.setattr("benchmarks.search.request.CHIPS", {**CHIPS, "v5e": chip})
    rows = [row for row in run(tmp_path, *FOUR, "--compile=99")["candidates"] if row["status"] == "fits"]
    tight = [row["formula.needed_bytes"] > feasibility.MEMORY_FRACTION * most for row in rows]
    assert sorted(tight) != tight, "a tight one is better than one with room"
    place = {(row["strategy"], row["mesh"], row["microbatches"], row["options"]): row["rank"] for row in rows}
    order = [
        place[case.strategy, str(case.mesh), case.microbatches, ",".join(option_texts(case.options))] for case in asked
    ]
    tight_rank = {row["rank"]: is_tight for row, is_tight in zip(rows, tight, strict=True)}
    assert [tight_rank[rank] for rank in order] == sorted(tight)


@pytest.mark.parametrize(
    ("status", "reason", "needed", "kept"),
    [
        ("compile_error", "JaxRuntimeError: INTERNAL: no", None, 1),
        ("compile_error", "OSError: [Errno 28] No space left on device", None, 0),
        ("oom", "needs more", 9, 1),
        ("oom", "JaxRuntimeError: RESOURCE_EXHAUSTED: no", None, 0),
    ],
)
def test_only_repeatable_failures_are_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str, reason: str, needed: int | None, kept: int
) -> None:
    """A failure of the compiler is cached; a full disk, a host out of memory and a dead process are not."""
    columns = {"status": status, "reason": reason, "chip.needed_bytes": needed, "memory.total_bytes": None}
    monkeypatch.setattr(
        feasibility,
        "run_in_processes",
        lambda cases, *_: [
            Outcome(case, columns if case == cases[0] else None, "" if case == cases[0] else "died", 1.0)
            for case in cases
        ],
    )
    rows = run(tmp_path, *FOUR, "--compile=2")["candidates"]
    assert len([*tmp_path.glob("cache/*.json")]) == kept
    assert {row["compiled.reason"] for row in rows} == {None, reason, "died"}
    (row,) = [row for row in rows if row["compiled.status"]]
    assert row["compiled.needed_bytes"] == needed


def test_a_candidate_that_does_not_fit_as_compiled_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate whose compiled memory exceeds the chip says so, even if nothing else of its program is known."""
    columns = {"status": "ok", "reason": "", "compile_seconds": 1.0, "memory.total_bytes": 20 * GIB}
    monkeypatch.setattr(
        feasibility, "run_in_processes", lambda cases, *_: [Outcome(case, columns, "", 1.0) for case in cases]
    )
    first, *_ = run(tmp_path, *FOUR, "--compile=1")["candidates"]
    assert (first["status"], first["compiled.fits"]) == ("fits", False)
    assert first["compiled.reason"] == "needs 20.0 GiB of 16.0 GiB, 4.0 GiB too much"


def test_one_device_has_a_network_time_of_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate of one device waits for no network; its replayed step takes its compute or memory time or longer."""
    monkeypatch.setattr(Topology, "compiler_version", "pretended 1")
    monkeypatch.setattr(Topology, "prepare", lambda self: None)
    monkeypatch.setattr(Topology, "devices", lambda self: jax.devices()[:1])
    monkeypatch.setattr(
        feasibility,
        "run_in_processes",
        lambda cases, *_: [Outcome(case, compile_case(case).extra_info, "", 1.0) for case in cases],
    )
    alone = run(tmp_path, "--topology=h100:1x1", *TINY, "--remat=dots", "--microbatches=1", "--compile=1")
    (row,) = alone["candidates"]
    waits = [row[f"compiled.{what}"] for what in ("sent_bytes", "network_seconds", "exposed_seconds")]
    assert (row["compiled.status"], *waits) == ("ok", 0, 0, 0)
    parts = row["compiled.compute_seconds"], row["compiled.memory_seconds"]
    assert 0 < max(parts) * (1 - 1e-9) <= row["compiled.step_seconds"] <= sum(parts) * (1 + 1e-9)


def test_a_bubble_lengthens_the_compiled_compute_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipeline bubble lengthens a compiled candidate's compute time, and not its memory and network times."""
    seconds = {f"roofline.{part}_seconds": part_seconds for part, part_seconds in SECONDS.items()}
    columns = {"status": "ok", "reason": "", "compile_seconds": 1.0, "memory.total_bytes": 1, **seconds}
    monkeypatch.setattr(
        feasibility, "run_in_processes", lambda cases, *_: [Outcome(case, columns, "", 1.0) for case in cases]
    )
    split = ["--strategy=three_d", "--mesh=data=2,pipeline=2", "--microbatches=2", "--option=schedule=gpipe"]
    row, *_ = run(tmp_path, "--topology=cpu:4", "--chip=v5e", *TINY, *split, "--compile=1")["candidates"]
    assert row["formula.bubble"] == pytest.approx(1 / 3)
    assert row["compiled.compute_seconds"] == pytest.approx(1.5 * SECONDS["compute"])
    assert (row["compiled.memory_seconds"], row["compiled.network_seconds"]) == (2.0, 0.0)


SECONDS = {"compute": 3.0, "memory": 2.0, "network": 0.0}


def test_compiled_candidates_are_listed_by_compiled_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compiled candidates are listed by speed; then what does not fit, and last what has no time."""
    said = [{"memory": 2.0}, {"memory": 1.0}, {"memory": 0.5, "total": 20 * GIB}, None, {"memory": 4.0}]

    def run_in_processes(cases: list[Case], *_: Any) -> Any:
        for case, each in zip(cases, said, strict=True):
            given = dict.fromkeys(SECONDS, 0.0) | {"memory": each["memory"]} if each else {}
            times = {f"roofline.{part}_seconds": seconds for part, seconds in given.items()}
            columns = {"status": "ok", "reason": "", "compile_seconds": 1.0}
            columns |= {"memory.total_bytes": (each or {}).get("total", 1)}
            yield Outcome(case, columns | times, "", 1.0)

    monkeypatch.setattr(feasibility, "run_in_processes", run_in_processes)
    monkeypatch.setattr("benchmarks.commandline.tables.PLAIN_WIDTH", 400)
    rows = run(tmp_path, *FOUR, "--compile=5")["candidates"]
    lines = capsys.readouterr().out.partition("as compiled")[2].partition("\n\n")[0].splitlines()[1:]
    assert " ".join(lines[0].split()).endswith("formula tokens/s a device formula MFU compiled")
    lines = [line for line in lines if line.split()[0].isdigit()]  # others continue a cell
    displayed = [int(line.split()[0]) for line in lines]
    speed = {row["rank"]: row[f"compiled.{SPEED}"] for row in rows}
    assert [speed[rank] for rank in displayed] == [32.0, 16.0, 8.0, 64.0, None]
    for rank, line in zip(displayed[:3], lines[:3], strict=True):
        row = rows[rank - 1]
        assert relative_error(row[f"formula.{SPEED}"], row[f"compiled.{SPEED}"]) in line.split()


def test_every_candidate_is_written(tmp_path: Path, asked: list[Case]) -> None:
    """The file has every candidate, all with the same keys, each with its rank or the reason it is infeasible."""
    document = run(tmp_path, *FOUR, "--mesh=pipeline=4", "--mesh=data=4", "--compile=0")
    assert not asked
    rows = document["candidates"]
    assert len({tuple(row) for row in rows}) == 1
    assert [row["rank"] for row in rows if row["rank"]] == [
        *range(1, 1 + sum(row["status"] != "infeasible" for row in rows))
    ]
    out = [row for row in rows if row["status"] == "infeasible"]
    assert {row["reason"].partition(";")[0] for row in out} == {
        "2 layers are too few for 4 parts of a pipeline",
        "2 layers are too few for 8 parts of a pipeline",
    }
    assert (document["chip"], document["devices"], document["topology"]) == ("v5e", 4, "cpu:4")


def test_infeasible_candidates_are_counted_by_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output counts infeasible candidates by reason, with an example; with --all it lists every candidate."""
    monkeypatch.setattr("benchmarks.commandline.tables.PLAIN_WIDTH", 400)
    run(tmp_path, *FOUR, "--compile=0")
    brief = capsys.readouterr().out
    assert "14 candidates: 6 fit, 0 are too large, 8 are infeasible" in brief
    assert "8 infeasible, as pipeline pipeline=4 microbatches=4: 2 layers are too few for" in brief
    run(tmp_path, *FOUR, "--compile=0", "--all")
    every = capsys.readouterr().out
    assert brief.count("\n") < every.count("\n")
    assert all(every.count(f"{name}=4") >= count for name, count in (("data", 2), ("fsdp", 4), ("pipeline", 8)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topology=cpu:4", *TINY], "cpu:4 has no specifications to rank by; name a chip, such as --chip v5e"),
        ([*FOUR, "--mesh=tensor=4"], "no selected strategy has such a mesh of 4 devices"),
        ([*FOUR, "--heads=3"], "heads=3 does not divide embed=16"),
        (["--topology=v9:4", *TINY], "'v9' is not known"),
        (
            ["--topology=v5p:2x2x1", "--chip=v5e", *TINY],
            "v5p:2x2x1 has its own specifications; leave --chip out, or take cpu:4 as v5e",
        ),
        ([*FOUR, "--mesh=data=4", "--mesh=fsdp=8"], "--mesh fsdp=8 takes 8 devices, and must take all 4 of cpu:4"),
        ([*FOUR, "--option=sequence_parallel=false"], "--option sequence_parallel changes none of the selected steps"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options that make no sense are a usage error that says what to do instead."""
    with pytest.raises(SystemExit, match="2"):
        feasibility.main(arguments)
    assert message in capsys.readouterr().err


def test_without_a_compiler_there_are_formulas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a compiler the formulas rank, and the command to install it is printed; --compile is then an error."""
    monkeypatch.setattr(Topology, "compiler_version", None)
    rows = run(tmp_path, "--topology=h100:1x4", *TINY)["candidates"]
    assert {row["status"] for row in rows} == {"fits", "infeasible"}
    assert "pip install -e '.[gpu]'" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        feasibility.main(["--topology=h100:1x4", *TINY, "--compile=1"])
    assert "pip install -e '.[gpu]'" in capsys.readouterr().err


@pytest.mark.parametrize(("strategy", "named"), [("", True), ("--strategy=data", False)])
def test_strategies_without_formulas_are_named(strategy, named, tmp_path, capsys) -> None:
    """A strategy without formulas is named, with the command that compiles it, unless others were asked for."""
    run(tmp_path, "--topology=cpu:4", "--chip=v5e", *TINY, "--remat=dots", "--compile=0", *strategy.split())
    assert ("auto: it has no formulas; meshmark compile" in capsys.readouterr().out) == named


def test_a_long_enumeration_prints_its_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long enumeration of candidates prints its progress."""
    monkeypatch.setattr(feasibility, "PROGRESS_SECONDS", 0.0)
    run(tmp_path, *FOUR, "--compile=0")
    assert "1 tried so far, now data data=4" in capsys.readouterr().err
