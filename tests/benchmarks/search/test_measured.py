"""`meshmark search --measure` times candidates that differ, here, and says what the predicted best loses."""

import json
import re
from typing import Any

import jax
import pytest

from benchmarks.cases import case as cases
from benchmarks.search import measured as module
from benchmarks.search.measured import MeasuredCandidate, in_order, measure_best, table, to_measure
from results.figures.search import figure_of
from results.records.documents import read_search
from tests.benchmarks.search.test_ranking import ranking
from tests.commands import command
from tests.strategies.wrong_gradients import strategy_with

main = command("search")

TINY = ("--layers=2", "--embed=16", "--heads=2", "--vocab=256", "--sequence=8", "--batch-size=8", "--dtype=float32")


class Timed:
    """A training run that takes as long as it is told, and notes its blocks."""

    def __init__(self, seconds: float, fails: bool = False) -> None:
        self.seconds, self.fails, self.blocks = seconds, fails, 0
        self.dispatch_seconds = 0.0

    def block(self, steps: int) -> float:
        """Take no time."""
        if self.fails and self.blocks > 2:
            raise RuntimeError("lost a device")
        self.blocks += 1
        return steps * self.seconds


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> list[Timed]:
    """Steps of 8, 7, 6 ... seconds in the order in which they begin; the third is too large, the fourth fails."""
    begun: list[Timed] = []

    def begin(case: Any, left: int | None, preparation: Any) -> tuple[Any, int, str]:
        begun.append(Timed(8.0 - len(begun), fails=len(begun) == 3))
        if len(begun) == 3:
            raise MemoryError("too large")
        return begun[-1], 0, ""

    monkeypatch.setattr(module, "started", begin)
    return begun


def test_steps_that_differ_are_measured_first() -> None:
    """The best, the best of each other rematerialisation, of each strategy, and of each set of axes."""
    found = ranking()
    best, some = found.fitting, to_measure(found, 8)
    assert some[0] is best[0]
    assert {each.case.remat for each in some[:3]} == {each.case.remat for each in best}
    assert len({id(each) for each in some}) == 8
    assert {each.case.strategy for each in to_measure(found, 12)} == {each.case.strategy for each in best}
    assert len(to_measure(found, 10**6)) == len(best)


def test_the_fastest_and_the_first_by_rank_are_in_the_final(pretended: list[Timed]) -> None:
    """The predicted best, which is the slowest, is in it, too; what fails or is too large says so, and comes last."""
    found = measure_best(ranking(), 8)
    final = [each for each in found if each.final]
    assert [each.step_seconds for each in final] == [1.0, 2.0, 3.0, 4.0, 7.0, 8.0][:6]
    assert final[-1].rank == 1
    reasons = {each.reason for each in found if each.step_seconds is None}
    assert reasons == {"MemoryError: too large", "RuntimeError: lost a device"}
    assert [each.step_seconds for each in found[-2:]] == [None, None]
    lines = "\n".join(table(found))
    assert (
        "the predicted best takes 700.0% longer than the fastest that was measured (95% interval of rounds: +700.0%"
        in lines
    )


def test_a_step_that_differs_from_one_device_is_not_timed(tmp_path, capsys, monkeypatch) -> None:
    """A candidate with wrong gradients has no time, and the reason says what differs."""
    wrong = strategy_with("data", lambda grads: jax.tree.map(lambda dw: 0.25 * dw, grads))
    monkeypatch.setattr(cases, "STRATEGIES", {**cases.STRATEGIES, "data": wrong})
    path = tmp_path / "found.json"
    main(("--topology=here", *TINY, "--measure=1", "--strategy=data", f"--json={path}"))
    (row,) = [row for row in json.loads(path.read_text())["candidates"] if row.get("measured.reason")]
    assert row["measured.seconds"] is None
    assert re.search(r"gradient norm .* where one device has .*; rounding explains", row["measured.reason"])


def test_those_of_the_final_come_first() -> None:
    """A time of the first rounds says less."""
    best = ranking().fitting
    some = [
        MeasuredCandidate(1, best[0], (3.0,), True),
        MeasuredCandidate(2, best[1], (1.0,)),
        MeasuredCandidate(3, best[2], (2.0,), True),
    ]
    assert [each.rank for each in in_order(some)] == [3, 1, 2]


@pytest.mark.factorisations
@pytest.mark.usefixtures("_short_blocks")
def test_real_steps_are_timed(tmp_path, capsys, monkeypatch) -> None:
    """On virtual devices there are measured seconds alone; the report and the document have them."""
    monkeypatch.setattr(module, "ROUNDS", 1)
    monkeypatch.setattr(module, "FINAL_ROUNDS", 1)
    path = tmp_path / "found.json"
    assert main(("--topology=here", *TINY, "--measure=2", "--strategy=data", f"--json={path}")) == 0
    said = capsys.readouterr().out
    assert "measured, not predicted" in said
    told = json.loads(path.read_text())
    assert told["machine"] is None
    assert all(row["predicted_seconds"] is None for row in told["candidates"])
    rows = [row for row in told["candidates"] if row["measured.seconds"]]
    assert [row["measured.final"] for row in rows] == [True, True]
    assert all(0 < row["measured.seconds"] < 60 for row in rows)
    assert all(re.search(rf"^{row['strategy']} +{row['mesh']} ", said, re.MULTILINE) for row in rows)
    facts, table = read_search(path)
    assert f"2 of {len(table)} candidates drawn" in figure_of(facts, table).get_supxlabel()


def test_steps_of_other_devices_are_not_timed(capsys) -> None:
    """They are not here."""
    with pytest.raises(SystemExit) as ended:
        main(["--topology=h100:1x8", *TINY, "--measure=2"])
    assert ended.value.code == 2
    assert "--measure times steps on the devices of this machine; give --topology here" in capsys.readouterr().err
