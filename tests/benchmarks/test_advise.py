"""`meshmark advise` prints and writes the ranking that `benchmarks.search.advised` makes."""

import json
import re

import pytest

from benchmarks.advise import main
from benchmarks.seconds.machines import machine

ASKED = ("--preset=gpt2", "--topology=h100:1x8", "--batch-size=64", "--remat=dots", "--strategy=fsdp,tensor,pipeline")


def advice(tmp_path, *more):
    """The document that the command writes."""
    path = tmp_path / "advice.json"
    assert main([*ASKED, f"--json={path}", *more]) == 0
    return json.loads(path.read_text())


def test_the_document_has_every_choice(tmp_path, capsys):
    """All that fit, ranked from 1 by predicted seconds, whose parts add up; the report counts as many."""
    told = advice(tmp_path)
    rows = told["choices"]
    assert [row["rank"] for row in rows] == list(range(1, len(rows) + 1))
    seconds = [row["predicted_seconds"] for row in rows]
    assert seconds == sorted(seconds)
    for row in rows:
        assert sum(row["parts"].values()) == pytest.approx(row["predicted_seconds"])
        assert 0 < row["bound_seconds"] <= row["predicted_seconds"]
        assert row["tokens_per_second"] * row["predicted_seconds"] == pytest.approx(64 * 1024)
    counts = f"{len(rows)} candidates fit, {told['too_large']} are too large, {told['infeasible']} infeasible"
    assert counts in capsys.readouterr().out
    assert {row["strategy"] for row in rows} == {"fsdp", "pipeline"}  # 12 heads are not split by 8


def test_ties_are_marked(tmp_path, capsys):
    """The report marks the ranks of as many candidates as the document says are tied."""
    told = advice(tmp_path, "--all")
    lines = capsys.readouterr().out.splitlines()
    ranks = [line.split()[0] for line in lines if re.match(r"\d+=? +(fsdp|pipeline) ", line)]
    assert len(ranks) == len(told["choices"])
    assert sum(rank.endswith("=") for rank in ranks) == told["tied"] > 1


def test_the_report_says_what_limits_the_best(tmp_path, capsys):
    """A network that is a thousand times slower is named, and a machine's source and error are stated."""
    slow = ("--topology=h100:2x8", "--set=inter_host_bandwidth=0.001x")
    advice(tmp_path, *slow)
    said = capsys.readouterr().out
    saved = re.findall(r"without waiting for (.+) the best would save (\d+)%", said)
    assert saved[0][0] == "network between hosts"
    assert int(saved[0][1]) > 50
    assert "machine meshmark_gpus: Not fitted" in said
    assert "predictions are off by 20% on average" in said
    assert "of its step: gathers 99%" in said


def test_another_machine_may_be_named(tmp_path):
    """A machine file predicts instead of meshmark's own, with its error."""
    other = advice(tmp_path, "--topology=a100_80gb:1x8", "--machine=a100_fsdp")
    assert (other["machine"], other["error"]) == ("a100_fsdp", machine("a100_fsdp").error)


def test_days_and_money(tmp_path, capsys):
    """Tokens over throughput are the days, times devices the hours, times a price the money."""
    rate = advice(tmp_path, "--tokens=1e12", "--price=2")["choices"][0]["tokens_per_second"]
    days, hours, money = 1e12 / rate / 86400, 1e12 / rate * 8 / 3600, 2e12 / rate * 8 / 3600
    expected = f"1e+12 tokens take {days:,.1f} days and {hours:,.0f} device-hours, {money:,.0f} at 2 an hour"
    assert expected in capsys.readouterr().out


def test_nothing_fits(capsys):
    """The report says so and what to do, and the status is 1."""
    assert main(["--preset=gpt3-175b", "--topology=h100:1x8", "--batch-size=8", "--strategy=fsdp"]) == 1
    assert "no candidate fits; take more devices" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--set=luck=2x"], "luck cannot be set; what can be is flops, hbm"),
        (["--set=hbm=many"], "'many' cannot be read; write a multiple such as 2x, or an amount such as 100GB"),
        (["--set=hbm"], "'hbm' is not NAME=VALUE"),
        (["--machine=abacus"], "machine 'abacus' is not known; known are a100_40gb_fsdp, a100"),
        (["--topology=cpu:8"], "no machine has devices 'cpu' under meshmark"),
        (["--mesh=fsdp=4"], "fsdp=4"),
    ],
)
def test_what_cannot_be_asked_is_refused(more, problem, capsys):
    """With a message that says what can be."""
    with pytest.raises(SystemExit) as ended:
        main([*ASKED, *more])
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_refused(tmp_path, capsys):
    """Before anything is predicted."""
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        main([*ASKED, f"--json={tmp_path}/file/advice.json"])
    assert ended.value.code == 5
    assert "cannot be written" in capsys.readouterr().err
