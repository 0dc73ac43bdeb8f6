"""The laws of the proof: it counts right, keeps its counts, and fails where a claim is refuted."""

import argparse
import json
from pathlib import Path

import pytest

from benchmarks.options import declare, selected
from results import gate
from results.gate import CASES, PLANTS, SELECTION, Tally, main

NOTHING, _, TEN = PLANTS


def test_the_cases_are_those_that_are_selected() -> None:
    """The ids to plant something in are the ids of the selection, or nothing would be planted."""
    parser = argparse.ArgumentParser()
    declare(parser.add_argument)
    assert tuple(map(str, selected(parser.parse_args(SELECTION)).cases())) == CASES


@pytest.mark.parametrize(
    ("words", "low", "high"),
    [
        (["same"] * 20, 0.0, 0.1684),
        (["same"] * 10 + ["slower"] * 5 + ["faster"] * 5, 0.2720, 0.7280),
        (["slower"] * 20, 0.8316, 1.0),
    ],
)
def test_bounds_are_exact(words: list[str], low: float, high: float) -> None:
    """The bounds of 0, 10 and 20 of 20 are those of Clopper and Pearson's tables."""
    tally = Tally.of(NOTHING, words)
    assert (tally.low, tally.high) == pytest.approx((low, high), abs=1e-4)


def test_bounds_refute_a_claim() -> None:
    """A claim falls when the bounds exclude it, and not a comparison earlier."""
    assert not Tally.of(NOTHING, ["slower"] + ["same"] * 19).refutes
    assert Tally.of(NOTHING, ["slower", "faster"] + ["same"] * 18).refutes
    assert not Tally.of(TEN, ["slower"] * 17 + ["same"] * 3).refutes
    assert Tally.of(TEN, ["slower"] * 16 + ["same"] * 4).refutes


@pytest.mark.parametrize(("word", "exit_code"), [("same", 0), ("slower", 1)])
def test_counts_are_shown_and_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    word: str,
    exit_code: int,
) -> None:
    """Every comparison is in the table and in the file, and a refuted claim is in the exit code."""
    monkeypatch.setattr(
        gate, "trial", lambda *_: [{"plant": "nothing", "word": word}, {"plant": "10% slower", "word": "slower"}]
    )
    out = tmp_path / "runs" / "gate.json"
    assert main(["--trials=3", f"--out={out}"]) == exit_code
    _, nothing, ten = capsys.readouterr().out.splitlines()
    assert nothing.split()[:4] == ["paired", "nothing", "3", word]
    assert nothing.endswith("REFUTED") == bool(exit_code)
    assert "100.0% (29.2% to 100.0%) slower" in ten
    written = json.loads(out.read_text())
    assert len(written["findings"]) == 6
    assert [tally["plant"]["name"] for tally in written["tallies"]] == ["nothing", "10% slower"]
