"""The report of `meshmark search`: the answer first, few candidates, and the nearest published runs."""

import re

import pytest

from tests.benchmarks.search.searching import fitting, found

pytestmark = pytest.mark.usefixtures("_wide")


def test_the_answer_comes_first(tmp_path, capsys):
    """The first line is the best candidate with its time, its range, its speed and its memory."""
    told = found(tmp_path)
    best = fitting(told)[0]
    first = capsys.readouterr().out.splitlines()[0]
    seconds, rate = best["predicted_seconds"], best["tokens_per_second"] / 8
    low, high = (f"{1e3 * seconds * factor:.3g} ms" for factor in told["interval"])
    likely = f"{low} to {high} with a probability of 80%"
    assert first.startswith("Use fsdp=8, remat=dots, gather=layer: ")
    assert f": {1e3 * seconds:.3g} ms a step ({likely}), {rate:,.0f} tokens/s a device, " in first
    assert first.endswith(f"{best['needed_bytes'] / 2**30:.1f} of 79.1 GiB")


def test_few_candidates_are_shown(tmp_path, capsys):
    """They are at most five, each the best of another kind of parallelism; with --all there are more."""
    asked = "--strategy=fsdp,zero1,zero2,tensor,pipeline,three_d", "--preset=gpt2-xl", "--batch-size=64"
    row = re.compile(r"^(\d+)=? +(\w+) +(\w+=\S+) ", re.MULTILINE)
    ranks = {row["rank"]: row for row in fitting(found(tmp_path, *asked))}
    shown = [ranks[int(rank)] for rank, *_ in row.findall(capsys.readouterr().out)]
    kinds = [kind_of(one["strategy"], one["mesh"]) for one in shown]
    assert 3 <= len(shown) == len({*kinds}) <= 5
    for rank, one in ranks.items():  # those that are not shown are slower than the shown one of their kind
        kind = kind_of(one["strategy"], one["mesh"])
        assert kind not in kinds or shown[kinds.index(kind)]["rank"] <= rank
    found(tmp_path, *asked, "--all")
    assert len(row.findall(capsys.readouterr().out)) == len(ranks)


def kind_of(strategy, mesh):
    """The kind of parallelism of a row."""
    return next((axis for axis in ("pipeline", "tensor", "context") if f"{axis}=" in mesh), strategy)


def test_the_nearest_published_runs_are_shown(tmp_path, capsys):
    """Below are published runs of such a model on such devices, with their speed and source."""
    asked = "--preset=llama3-8b", "--batch-size=16", "--model=sequence=8192", "--strategy=fsdp"
    near = found(tmp_path, *asked)["nearest"]
    said = capsys.readouterr().out
    assert len({(run["stack"], run["device"]) for run in near}) == len(near) >= 3
    assert {run["stack"] for run in near} >= {"torchtitan", "MaxText"}
    for run in near:
        assert run["device"].lower().startswith("h100")
        assert f"{run['tokens_per_second_per_device']:,.0f}" in said
        assert run["source"] in said
    found(tmp_path, "--preset=nano")
    assert "no published run is near" in capsys.readouterr().out
