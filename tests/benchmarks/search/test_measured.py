"""`meshmark search --measure` times candidates that differ, here, and says what the predicted best loses."""

import json
import re
from typing import Any

import jax
import pytest

from benchmarks.cases import case as cases
from benchmarks.cases.row import Row
from benchmarks.search import measured as module
from benchmarks.search.measured import ROUNDS, here, lines, measured, to_measure
from benchmarks.search.ranking import fastest_first
from results.figures.search import figure_of
from results.records.documents import read_search
from tests.benchmarks.search.rankings import ranking
from tests.commands import command
from tests.strategies.wrong_gradients import strategy_with

main = command("search")

TINY = ("--model=layers=2,embed=16,heads=2,vocab=256,sequence=8", "--batch-size=8", "--dtype=float32")


def test_steps_that_differ_are_measured_first() -> None:
    """The best, the best of each other rematerialisation, of each strategy, and of each set of axes."""
    found = ranking()
    best, some = found.fitting, to_measure(found, 8)
    assert some[0] is best[0]
    assert {each.case.remat for each in some[:3]} == {each.case.remat for each in best}
    assert len({id(each) for each in some}) == 8
    assert {each.case.strategy for each in to_measure(found, 12)} == {each.case.strategy for each in best}
    assert len(to_measure(found, 10**6)) == len(best)


def test_candidates_of_any_rematerialisation_are_compared_with_one_step() -> None:
    """Their cases have ids of their own, the same step on one device, and recompute what the candidates do."""
    some = to_measure(ranking(), 12)
    cases = [here(each.case) for each in some]
    assert len({each.case.remat for each in some}) == 3
    assert len({str(case) for case in cases}) == len(cases)
    assert len({case.single for case in cases}) == 1
    assert [case.training() for case in cases] == [each.case.training() for each in some]


def test_the_report_says_what_the_predicted_best_loses() -> None:
    """Results are in the order of their time, and those without one are last, with the reason."""
    ranked, seconds = ranking(), (8.0, None, 1.0, 2.0, 3.0)
    facts: list[dict[str, Any]] = [{"status": "ok", "reason": None, "check.float32": "equal"} for _ in seconds]
    facts[1]["reason"], facts[4]["check.float32"] = "too large", "not compared: oom"
    rows = [Row("", own, (time,) * ROUNDS if time else (), 1) for own, time in zip(facts, seconds, strict=True)]
    found = fastest_first(map(measured, ranked.fitting, rows))
    assert [ranked.ranks[each.candidate.case] for each in found] == [3, 4, 5, 1, 2]
    reasons = [each.columns["measured.reason"] for each in found]
    assert reasons == ["", "", "float32 not compared: oom", "", "too large"]
    said = "\n".join(lines(found, ranked, predicted=True))
    assert "the predicted best takes 700.0% longer than the fastest that was measured" in said
    assert "(95% interval of rounds: +700.0% to +700.0%)" in said


def test_a_step_that_differs_from_one_device_is_not_timed(tmp_path, capsys, monkeypatch) -> None:
    """A candidate with wrong gradients has no time, and the reason says what differs."""
    wrong = strategy_with("data", lambda grads: jax.tree.map(lambda dw: 0.25 * dw, grads))
    monkeypatch.setattr(cases, "STRATEGIES", {**cases.STRATEGIES, "data": wrong})
    path = tmp_path / "found.json"
    main(("--topology=here", *TINY, "--measure=1", "--strategy=data", f"--json={path}"))
    (row,) = [row for row in json.loads(path.read_text())["candidates"] if row.get("measured.reason")]
    assert row["measured.seconds"] is None
    assert re.search(r"gradient norm .* where one device has .*; rounding explains", row["measured.reason"])


@pytest.mark.factorisations
@pytest.mark.usefixtures("_short_blocks")
def test_real_steps_are_timed(tmp_path, capsys, monkeypatch) -> None:
    """On virtual devices there are measured seconds alone; the report and the document have them."""
    monkeypatch.setattr(module, "ROUNDS", 6)
    path = tmp_path / "found.json"
    assert main(("--topology=here", *TINY, "--measure=2", "--strategy=data", f"--json={path}")) == 0
    said = capsys.readouterr().out
    assert "measured, not predicted" in said
    told = json.loads(path.read_text())
    assert told["machine"] is None
    assert all(row["predicted_seconds"] is None for row in told["candidates"])
    rows = [row for row in told["candidates"] if row["measured.seconds"]]
    assert len(rows) == 2
    assert all(0 < row["measured.seconds"] < 60 for row in rows)
    assert all(re.search(rf"^{row['strategy']} +{row['mesh']} ", said, re.MULTILINE) for row in rows)
    facts, table = read_search(path)
    assert f"2 of {len(table)} candidates drawn" in str(figure_of(facts, table).get_label())
