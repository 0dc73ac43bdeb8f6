"""Tests of a page's sentences: they are true of the rows, and unknown values get no sentence."""

from pathlib import Path

import pandas as pd
import pytest

from results import load
from results.records.documents import read_search as read
from results.records.reading import read_run
from results.webpage.data import machine_facts
from results.webpage.words import heading, search_words, summary
from tests.results.synthetic import failed, row, sweep, write_run


def rows_of(tmp_path: Path, rows: list) -> pd.DataFrame:
    """Write rows to a run and load it."""
    return load([write_run(tmp_path / "run.json", rows)])


def test_a_run_is_summed_up(tmp_path: Path) -> None:
    """A summary states what ran, what counts, the fastest case and any overlapping it, the smallest, and the noise."""
    rows = rows_of(tmp_path, [*sweep(), failed("oom", "pipeline", "pipeline=16")])
    assert heading(rows) == "synthetic on 16 virtual CPU devices"
    assert summary(rows) == [
        "41 cases of 6 strategies on 1, 2, 4, 8 and 16 virtual CPU devices. The model is synthetic (10.0M parameters), "
        "128 tokens per sequence, float32, remat none; the global batch is 8 and 16 sequences.",
        "40 of 41 were timed after their losses and gradient norms agreed with those of one device; the curves leave "
        "out the others (1 oom).",
        "On 8 devices with a global batch of 16 sequences, data (data=8) has the highest throughput: 1,994 tokens/s "
        "(95% interval 1,917 to 2,055); a step takes 1.07 times as long as that of one device with the same work. Its "
        "interval overlaps with that of fsdp (fsdp=8): this run does not tell them apart.",
        "Of these cases, fsdp (fsdp=8) needs the least memory: 40.0 MiB per device; the case that needs the most has "
        "180.0 MiB.",
        "Exposed communication takes the largest share of a step in single (data=1) with a global batch of 8 "
        "sequences: 15%.",
        "Two copies of the same step, timed interleaved, differed by -2.0% to +4.0%; this run cannot resolve smaller "
        "differences.",
    ]


def test_noise_is_said_first_of_its_sentence(tmp_path: Path) -> None:
    """The sentence on noise begins with the warning. Without a second copy of a step, it calls the noise unknown."""
    loud = rows_of(tmp_path, [row(noisy=True, canary_ratio_low=0.88)])
    warning = "This run is noisy. Two copies of the same step, timed interleaved, differed by -12.0%"
    assert summary(loud)[-1].startswith(warning)
    unknown = rows_of(tmp_path, [row(canary_ratio_low=None, canary_ratio_high=None, noisy=None)])
    assert summary(unknown)[-1].startswith("The noise of this run is unknown")


@pytest.mark.parametrize(
    ("judged", "sentence"),
    [
        ([True, True], "All 2 compiled steps that have formulas send exactly the predicted bytes."),
        ([True, False], "1 of 2 compiled steps do not send the bytes that the formulas predict: data (data=2)."),
        ([None, None], None),
    ],
)
def test_bytes_are_compared_with_formulas(tmp_path: Path, judged: list, sentence: str | None) -> None:
    """Bytes sent are compared with formulas where there are any, and the cases that differ are named."""
    same, other = judged
    rows = rows_of(tmp_path, [row(sent_as_predicted=same), row("data", "data=2", sent_as_predicted=other)])
    about = [text for text in summary(rows) if "compiled steps" in text]
    assert about == ([sentence] if sentence else [])


def test_what_was_only_compiled_has_no_winner(tmp_path: Path) -> None:
    """The summary of cases that were only compiled states no throughput."""
    unknown = dict.fromkeys(("tokens_per_second", "step_seconds_median", "matches_single"))
    words = summary(rows_of(tmp_path, [row(kind="compiled", **unknown)]))
    assert words[1] == "1 of 1 cases were compiled; none was timed."
    assert not [text for text in words if "throughput" in text]


def test_a_search_is_summed_up(found: Path) -> None:
    """A summary states how many candidates fit by formula, the times of the predicted best, and how many were tried."""
    words = search_words(*read(found))
    assert words[1] == "By formula, 4 fit into 14.0 GiB, 2 need more memory, and 1 are infeasible."
    times = "1,000 ms by roofline, 2,000 ms as predicted, 2,500 ms as compiled"
    assert words[2] == f"The predicted best is fsdp (fsdp=16): a step takes {times}. It needs 12.0 GiB by formula."
    assert words[3] == "2 candidates were compiled; 1 of them did not fit. 1 were measured."
    assert words[4].endswith("times are -50% to +100% with a probability of 80%.")


def test_the_machine_is_said_once(tmp_path: Path) -> None:
    """The facts are devices, versions, settings and the time of each file. Empty settings are left out."""
    run = write_run(tmp_path / "run.json", [row()], node="host")
    facts = machine_facts({run: read_run(run)})
    assert facts["Devices"] == "8 × cpu, virtual: they share one machine"
    assert facts["Versions"].startswith("python 3.11.7, jax 0.10.2")
    assert facts["Host"] == "host"
    assert facts[str(run)] == "time and commit unknown"
    assert "XLA_FLAGS" not in facts
