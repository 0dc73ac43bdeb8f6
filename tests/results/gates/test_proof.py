"""The proof of the gates: it plants what it says, counts correctly, and fails if a claim is refuted."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cases.selection import selected
from benchmarks.cli.commands import COMMANDS
from results.gates.counters import read_snapshot
from results.gates.verdict import Finding, Report, Word
from tests.processes import ROOT
from tests.results.gates import proof as gate
from tests.results.gates.proof import CASES, PAIRED, SELECTION, Tally, exact_trial, main
from tests.results.gates.source_edits import (
    COMPILED,
    DATA,
    ELSEWHERE,
    EXACT,
    FOR_GPU,
    FOR_TPU,
    FSDP,
    ON_TPU,
    SINGLE,
    TIMED,
    Edit,
    Plant,
    copied,
    edited,
    rows,
    said,
)
from tests.results.synthetic import failed, row, write_run

NOTHING, _, TEN = PAIRED


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of the table do not fold."""
    monkeypatch.setattr("benchmarks.cli.tables.PLAIN_WIDTH", 400)


EDITS = {edit.name: edit for edit in EXACT}
ALL_REDUCE = EDITS["an extra all-reduce"]
EXTRA = {"compiled.collectives.all_reduce.outside_loops": 1}


@pytest.mark.parametrize(
    ("options", "cases"),
    [
        (SELECTION, CASES),
        (COMPILED, (DATA, FSDP)),
        (TIMED, (SINGLE,)),
        pytest.param(FOR_TPU, (ON_TPU,), marks=pytest.mark.libtpu),
        pytest.param(FOR_GPU, (SINGLE,), marks=pytest.mark.cuda),
    ],
    ids=["paired", "compiled", "timed", "for TPUs", "for GPUs"],
)
def test_the_cases_are_those_that_are_selected(options: tuple[str, ...], cases: tuple[str, ...]) -> None:
    """The case ids of the plants are those that their options select."""
    option, _ = COMMANDS["measure"].parser("measure").parse_known_args(options)
    assert tuple(map(str, selected(option).cases())) == cases


@pytest.mark.parametrize("edit", [edit for edit in EXACT if edit.changes], ids=lambda edit: edit.name)
def test_what_is_edited_is_there(edit: Edit) -> None:
    """Every string that an edit replaces occurs once in its file, and the edited file is valid Python and differs."""
    plain = (ROOT / edit.file).read_text()
    assert all(plain.count(text) == 1 for text, _ in edit.changes)
    assert ast.dump(ast.parse(edited(ROOT, edit))) != ast.dump(ast.parse(plain))


@pytest.mark.parametrize("edit", EXACT, ids=lambda edit: edit.name)
def test_every_exact_plant_is_claimed_each_time(edit: Edit) -> None:
    """One miss, or one false alarm, in 100 trials refutes the claim of an exact plant."""
    usual, other = ("red", "green") if edit.cases else ("green", "red")
    assert bool(edit.cases) == bool(edit.evidence)
    assert not Tally.of(edit, [usual] * 100).refutes
    for word in (other, "not comparable", "broken input"):
        assert Tally.of(edit, [usual] * 99 + [word]).refutes


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of this checkout."""
    return copied(ROOT, tmp_path / "checkout")


@pytest.mark.parametrize(("more", "times"), [("", 0), (ALL_REDUCE.changes[0][0] * 2, 2)], ids=["gone", "twice"])
def test_a_plant_whose_text_is_gone_is_refused(
    checkout: Path, more: str, times: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plant whose text no longer occurs once is refused with its file, before anything is compiled."""
    monkeypatch.setattr(gate, "trials", lambda *_: pytest.fail("something was compiled"))
    (checkout / ALL_REDUCE.file).write_text(f"# {more}\n")
    with pytest.raises(SystemExit, match="2"):
        main([f"--checkout={checkout}", f"--plant={ALL_REDUCE.name}"])
    message = f"{ALL_REDUCE.file} says {ALL_REDUCE.changes[0][0]!r} {times} times, not once"
    assert message in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["--gate=exact", "--plant=5% slower"])
    assert "--gate exact has no '5% slower'" in capsys.readouterr().err


def test_a_report_that_cannot_be_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An --out that is a folder ends with 5, before anything is compiled."""
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(SystemExit, match="5"):
        main([f"--out={tmp_path / 'folder.png'}"])
    assert "folder.png cannot be written: Is a directory" in capsys.readouterr().err


def test_a_copy_that_does_not_run_ends_the_proof(checkout: Path) -> None:
    """A copy whose benchmarks write no rows ends the proof with their last output, and counts as nothing found."""
    (checkout / "benchmarks" / "conftest.py").write_text("raise RuntimeError('no such thing')\n")
    with pytest.raises(SystemExit, match=r"'an extra all-reduce': the benchmarks ended with 4:[\s\S]*no such thing"):
        rows(checkout, ALL_REDUCE)


def finding(case: str, word: Word, metric: str = "", note: str = "") -> Finding:
    """A finding of the exact gate on one case."""
    return Finding(f"test_step[{case}] nano float32", word, metric, note=note)


EVIDENT = finding(DATA, "worse", *EXTRA)


@pytest.mark.parametrize(
    ("plant", "findings", "word"),
    [
        (ALL_REDUCE.name, [EVIDENT, finding(DATA, "worse", "memory.temp_bytes"), finding(FSDP, "same")], "red"),
        (ALL_REDUCE.name, [finding(DATA, "same"), finding(FSDP, "same")], "green"),
        (ALL_REDUCE.name, [finding(DATA, "worse", "memory.temp_bytes")], ELSEWHERE),
        (ALL_REDUCE.name, [finding(DATA, "same"), finding(FSDP, "worse", *EXTRA)], ELSEWHERE),
        (ALL_REDUCE.name, [EVIDENT, finding(FSDP, "worse", "memory.temp_bytes")], ELSEWHERE),
        ("a retrace", [finding(DATA, "worse", "compiled.compilations"), finding(FSDP, "same")], ELSEWHERE),
        ("a case gone", [finding(FSDP, "vanished"), finding(DATA, "same")], "red"),
        ("a case renamed", [finding(FSDP, "vanished"), finding("zero-fsdp=2-b8", "new")], ELSEWHERE),
        ("a loss that is NaN", [finding(SINGLE, "worse", note="nan_loss: loss nan")], "red"),
        ("a loss that is NaN", [finding(SINGLE, "worse", note="error: ValueError")], ELSEWHERE),
        ("nothing", [finding(DATA, "same"), finding(FSDP, "same")], "green"),
        ("nothing", [finding(DATA, "worse", "memory.temp_bytes")], "red"),
        ("nothing", [finding(DATA, "new")], "not comparable"),
    ],
)
def test_a_plant_is_found_only_by_its_own_evidence(plant: str, findings: list[Finding], word: str) -> None:
    """A plant is found if each of its cases is red with the planted evidence and no other case is red."""
    assert said(EDITS[plant], Report("exact", tuple(findings))) == word


def test_a_base_that_cannot_be_read_ends_the_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base whose rows have another schema ends the proof before anything is planted."""
    old = write_run(tmp_path / "old.json", [row(schema_version=1)])
    monkeypatch.setattr(gate, "rows", lambda checkout, edit: old)
    monkeypatch.setattr(gate, "exact_trial", lambda *_: pytest.fail("something was planted"))
    with pytest.raises(SystemExit, match=r"nothing can be planted: .*old.json has schema_version 1"):
        main(["--gate=exact", f"--checkout={ROOT}"])


def test_each_edit_is_judged_by_its_own_base(tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timed edits are compared with the timed base, others with the compiled one; no rows are broken input."""
    data, single = row("data", "data=2", 8), row("single", "data=1", 8)
    bases = {
        COMPILED: read_snapshot(write_run(tmp_path / "compiled.json", [data])),
        TIMED: read_snapshot(write_run(tmp_path / "timed.json", [single])),
    }
    worse = row("data", "data=2", 8, **EXTRA)
    heads: dict[str, list[dict[str, Any]]] = {
        "nothing": [data],
        "nothing, timed": [single],
        ALL_REDUCE.name: [worse],
        "a loss that is NaN": [failed("nan_loss", "single", "data=1", 8)],
        "a case gone": [],
    }

    def written(folder: Path, edit: Edit) -> Path:
        texts = [(folder / edit.file).read_text()] if edit.changes else []
        assert all(planted in text for text in texts for _, planted in edit.changes)
        return write_run(folder / "rows.json", heads[edit.name])

    monkeypatch.setattr(gate, "rows", written)
    found = exact_trial(3, checkout, [EDITS[name] for name in heads], bases)
    assert {each["plant"]: each["word"] for each in found} == {
        "nothing": "green",
        "nothing, timed": "green",
        ALL_REDUCE.name: "red",
        "a loss that is NaN": "red",
        "a case gone": "broken input",
    }
    assert {(each["trial"], each["gate"]) for each in found} == {(3, "exact")}
    (change,) = found[2]["changed"]
    assert (change["word"], change["metric"], change["base"], change["head"]) == ("worse", *EXTRA, 0, 1)


@pytest.mark.parametrize(
    ("words", "low", "high"),
    [
        (["same"] * 20, 0.0, 0.1684),
        (["same"] * 10 + ["slower"] * 5 + ["faster"] * 5, 0.2720, 0.7280),
        (["slower"] * 20, 0.8316, 1.0),
    ],
)
def test_bounds_are_exact(words: list[str], low: float, high: float) -> None:
    """The bounds for 0, 10 and 20 of 20 are those of Clopper and Pearson's tables."""
    tally = Tally.of(NOTHING, words)
    assert (tally.low, tally.high) == pytest.approx((low, high), abs=1e-4)


def test_bounds_refute_a_claim() -> None:
    """A claim is refuted as soon as the bounds exclude it, and not one comparison earlier."""
    assert not Tally.of(NOTHING, ["slower"] + ["same"] * 19).refutes
    assert Tally.of(NOTHING, ["slower", "faster"] + ["same"] * 18).refutes
    assert not Tally.of(TEN, ["slower"] * 17 + ["same"] * 3).refutes
    assert Tally.of(TEN, ["slower"] * 16 + ["same"] * 4).refutes


@pytest.mark.parametrize(
    ("harmless", "regression", "exit_code"), [("same", "red", 0), ("slower", "red", 1), ("same", ELSEWHERE, 1)]
)
def test_counts_are_shown_and_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    harmless: str,
    regression: str,
    exit_code: int,
) -> None:
    """Every comparison is in the table and in the file, and a refuted claim sets the exit code."""
    found = [
        {"gate": "paired", "plant": "nothing", "word": harmless},
        {"gate": "exact", "plant": "nothing", "word": "green"},
        {"gate": "exact", "plant": "a retrace", "word": regression},
    ]
    monkeypatch.setattr(gate, "trials", lambda checkout, chosen, options: [found] * options.trials)
    out = tmp_path / "runs" / "gate.json"
    assert main(["--trials=3", f"--out={out}"]) == exit_code
    _, exact, retrace, paired, footer = capsys.readouterr().out.splitlines()
    assert exact.split()[:4] == ["exact", "nothing", "3", "green"]
    assert exact.endswith("at most 0%")
    assert paired.split()[:4] == ["paired", "nothing", "3", harmless]
    assert paired.endswith("REFUTED") == (harmless == "slower")
    assert ("100.0% (29.2% to 100.0%) red" in retrace) == (regression == "red")
    assert retrace.endswith("at least 100% REFUTED" if regression == ELSEWHERE else "at least 100%")
    assert "not thereby shown" in footer
    written = json.loads(out.read_text())
    assert len(written["findings"]) == 9
    assert [tally["plant"]["name"] for tally in written["tallies"]] == ["nothing", "a retrace", "nothing"]


@pytest.mark.parametrize(
    ("arguments", "bases", "trials"),
    [
        (["--gate=exact"], [COMPILED, TIMED, FOR_TPU, FOR_GPU], [("exact", len(EXACT))]),
        (["--gate=paired"], [], [("paired", len(PAIRED))]),
        (["--plant=nothing"], [COMPILED], [("exact", 1), ("paired", 1)]),
        (["--plant=nothing", "--plant=10% slower", "--gate=paired"], [], [("paired", 2)]),
        (["--plant=a loss that is NaN"], [TIMED], [("exact", 1)]),
    ],
)
def test_only_chosen_plants_are_tried(
    arguments: list[str],
    bases: list[tuple[str, ...]],
    trials: list[tuple[str, int]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Only the chosen gates and plants are tried, in every trial, and each base is made once."""
    made, tried = list[tuple[str, ...]](), list[tuple[str, int]]()

    def trial(number: int, checkout: Path, plants: list[Plant], _: object) -> list[dict[str, Any]]:
        tried.append((plants[0].gate, len(plants)))
        words = [each.counted[0] if each.at_least else "as claimed" for each in plants]
        return [{"gate": each.gate, "plant": each.name, "word": word} for each, word in zip(plants, words, strict=True)]

    monkeypatch.setattr(gate, "rows", lambda checkout, edit: made.append(edit.options))
    monkeypatch.setattr(gate, "read_snapshot", lambda path: None)
    monkeypatch.setattr(gate, "exact_trial", trial)
    monkeypatch.setattr(gate, "paired_trial", trial)
    assert main(["--trials=2", f"--checkout={ROOT}", *arguments]) == 0
    assert made == bases
    assert tried == trials * 2
    _, *lines, _ = capsys.readouterr().out.splitlines()
    assert len(lines) == sum(plants for _, plants in trials)
    assert all("  2 " in line for line in lines)
