"""`meshmark search` prints and writes the ranking of candidates."""

import json
import re

import pytest

from benchmarks.devices.chips import CHIPS
from benchmarks.simulate.intervals import interval
from benchmarks.simulate.machine import MEMORY_FRACTION
from benchmarks.simulate.machines import machine
from strategies import PRESETS
from tests.benchmarks.search.searching import ARGUMENTS, fitting, found
from tests.benchmarks.simulate.host import FILE
from tests.commands import assert_refused, command

main = command("search")
pytestmark = pytest.mark.usefixtures("_wide")


def test_the_document_has_every_candidate(tmp_path, capsys):
    """Those that fit are ranked from 1 by predicted seconds, whose parts add up; the others have a reason.

    All rows have the same keys, and the report counts as many. With --all it has an example for each reason.
    """
    told = found(tmp_path, "--all")
    rows, others = fitting(told), [row for row in told["candidates"] if row["status"] != "fits"]
    assert told["candidates"] == [*rows, *others]
    assert len({tuple(row) for row in told["candidates"]}) == 1
    assert [row["rank"] for row in rows] == list(range(1, len(rows) + 1))
    seconds = [row["predicted_seconds"] for row in rows]
    assert seconds == sorted(seconds)
    for row in rows:
        assert sum(row["parts"].values()) == pytest.approx(row["predicted_seconds"])
        assert 0 < row["bound_seconds"] <= row["predicted_seconds"]
        assert row["tokens_per_second"] * row["predicted_seconds"] == pytest.approx(64 * 1024)
    assert {row["strategy"] for row in rows} == {"fsdp", "pipeline"}  # 12 heads are not split by 8
    assert all(row["reason"] and row["rank"] is row["predicted_seconds"] is None for row in others)
    assert {row["strategy"] for row in others} == {"tensor", "pipeline"}
    counts = f"{len(rows)} candidates fit, 0 are too large, {len(others)} infeasible"
    assert counts in (said := capsys.readouterr().out)
    same = sum(row["strategy"] == "tensor" for row in others)
    assert f"{same}, such as tensor tensor=8 microbatches=1: tensor=8 does not divide heads=12; tensor can be" in said


def test_an_option_takes_all_values_that_it_is_given(tmp_path):
    """--option may be repeated, for one option or several, and every value is a candidate."""
    given = ["--option=schedule=1f1b", "--option=gather=step", "--option=schedule=zb-h1"]
    rows = found(tmp_path, *given, "--strategy=fsdp,pipeline")["candidates"]
    options = {json.dumps(row["options"]) for row in rows if row["strategy"] != "tensor"}
    assert options == {'{"gather": "step"}', '{"schedule": "1f1b"}', '{"schedule": "zb-h1"}'}


def test_bytes_that_do_not_divide_are_numbers(tmp_path):
    """A third of the gradients is no whole number of bytes; seconds are numbers all the same, which JSON takes."""
    sizes = ("--model=layers=3,embed=48,heads=3,vocab=63,sequence=24", "--batch-size=6")
    for devices in (3, 24):
        topology = f"--topology=h100:{-(-devices // 8)}x{min(devices, 8)}"
        more = (topology, *sizes, "--strategy=data", "--batch-size=24")
        assert {type(row["bound_seconds"]) for row in fitting(found(tmp_path, *more))} == {float}


def test_ties_are_marked(tmp_path, capsys):
    """The report marks the ranks of as many candidates as the document says are tied."""
    told = found(tmp_path, "--all")
    lines = capsys.readouterr().out.splitlines()
    ranks = [line.split()[0] for line in lines if re.match(r"\d+=? +(fsdp|pipeline) ", line)]
    assert len(ranks) == len(fitting(told))
    assert sum(rank.endswith("=") for rank in ranks) == told["tied"] > 1


def test_the_report_says_what_limits_the_best(tmp_path, capsys):
    """A network that is a thousand times slower is named, and a machine's source and error are stated."""
    slow = ("--topology=h100:2x8", "--set=inter_host_bandwidth=0.001x")
    found(tmp_path, *slow)
    said = capsys.readouterr().out
    (share,) = re.findall(
        r"bottlenecks of the best \(time saved if infinitely fast\): network between hosts (\d+)%", said
    )
    assert int(share) > 50
    assert "machine meshmark_gpus: Not fitted" in said
    assert "with a probability of 80%" in said
    assert "no source has measured such devices" in said
    assert "where its time goes: gathers 99%" in said


def test_the_report_says_which_layers_stages_do_not_split(tmp_path, capsys):
    """Every stage of a pipeline runs the leading dense layers of a mixture. Without stages there is no such line."""
    for mesh, says in (("pipeline=2", True), ("tensor=2", False)):
        found(tmp_path, "--preset=nano-moe", "--model=dense_layers=2", "--topology=h100:1x2", f"--mesh={mesh}")
        assert ("dense_layers=2: every stage of a pipeline runs these layers" in capsys.readouterr().out) == says


def test_another_machine_may_be_named(tmp_path):
    """A machine file predicts instead of meshmark's own, with its interval."""
    other = found(tmp_path, "--topology=a100_80gb:1x8", "--machine=a100_fsdp")
    expected = [*interval(machine("a100_fsdp"), PRESETS["gpt2"])]
    assert (other["machine"], other["interval"]) == ("a100_fsdp", expected)


def test_four_hosts_need_a_network(tmp_path, capsys):
    """How fast it is must be known; with more of it no step is slower, and the assumed latency is named."""
    host, path = tmp_path / "host.json", tmp_path / "found.json"
    specifications = FILE["specifications"] | {"network_bytes_per_second": 0}
    constants = FILE["constants"] | {"network_seconds": 0}
    host.write_text(json.dumps(FILE | {"specifications": specifications, "constants": constants}))
    asked = ["--topology=cpu:4x1", "--preset=nano", "--batch-size=16", "--dtype=float32", f"--machine={host}"]
    for more, problem in (
        ([], "does not say how fast the network between hosts is; pass --set inter_host_bandwidth=10Gbit/s"),
        (["--set=inter_host_bandwidth=2x"], "'2x' is a multiple of what is not known; write an amount with its unit"),
    ):
        with pytest.raises(SystemExit) as ended:
            main([*asked, *more])
        assert ended.value.code == 2
        assert problem in capsys.readouterr().err
    seconds = []
    for bandwidth in ("1Gbit", "10Gbit/s"):
        assert main([*asked, f"--set=inter_host_bandwidth={bandwidth}", "--strategy=zero1", f"--json={path}"]) == 0
        assert "the latency between hosts is assumed to be 20 us" in capsys.readouterr().out
        seconds.append([row["predicted_seconds"] for row in fitting(json.loads(path.read_text()))])
    assert all(slow > fast for slow, fast in zip(*seconds, strict=True))


def test_one_host_needs_no_network(tmp_path, capsys):
    """A calibrated file predicts it as it is; beyond it, the network must be known."""
    host, path = tmp_path / "host.json", tmp_path / "scaling.json"
    host.write_text(json.dumps(FILE | {"specifications": FILE["specifications"] | {"network_bytes_per_second": 0}}))
    asked = ["--topology=cpu:1x1", "--preset=nano", "--batch-size=16", "--dtype=float32", f"--machine={host}"]
    assert main([*asked, "--scaling=1..1", f"--json={path}"]) == 0
    assert [row["topology"] for row in json.loads(path.read_text())["candidates"]] == ["cpu:1x1", "cpu:1x1"]
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([*asked, "--scaling=1..4"])
    assert ended.value.code == 2
    assert "does not say how fast the network between hosts is" in capsys.readouterr().err


def test_days_and_money(tmp_path, capsys):
    """Tokens over throughput are the days, times devices the hours, times a price the money; each is a range."""
    told = found(tmp_path, "--tokens=1T", "--price=2")
    rate, (low, high) = fitting(told)[0]["tokens_per_second"], told["interval"]
    days, hours, money = 1e12 / rate / 86400, 1e12 / rate * 8 / 3600, 2e12 / rate * 8 / 3600
    said = " ".join(capsys.readouterr().out.split())
    assert f"as predicted: {days:,.1f} days, {hours:,.0f} device-hours, {money:,.0f} in all at 2 a device-hour" in said
    assert f"1e+12 tokens take {days * low:,.1f} to {days * high:,.1f} days, " in said
    assert f"{money * low:,.0f} to {money * high:,.0f} in all at 2 a device-hour" in said


def test_a_margin_of_memory_is_stated(tmp_path, capsys):
    """What fits needs no more than the report says, which is less than the device has."""
    told = found(tmp_path, "--preset=gpt2-xl", "--strategy=data", "--remat=none")
    assert all(row["needed_bytes"] <= told["usable_bytes"] for row in fitting(told))
    assert told["usable_bytes"] == int(MEMORY_FRACTION * CHIPS["h100"].memory_bytes)
    assert (
        "a candidate fits if it needs at most 67.2 of 79.1 GiB, a margin of 15% for errors of formulas"
        in capsys.readouterr().out
    )


def test_the_best_is_drawn(tmp_path, capsys):
    """`--trace` writes the predicted step, a process for each stage, which all end with the step."""
    path = tmp_path / "new" / "step.json"
    stages = ("--strategy=pipeline", f"--trace={path}", "--option=schedule=1f1b", "--microbatches=16")
    best = fitting(found(tmp_path, "--mesh=pipeline=8", *stages))[0]
    told = json.loads(path.read_text())
    events = [each for each in told["traceEvents"] if each["ph"] == "X"]
    passes = {(each["pid"], each["name"]) for each in events if each["cat"] == "passes"}
    assert {(stage, f"{kind}{m}") for stage in range(8) for kind in "FB" for m in range(16)} <= passes
    ends = {pid: max(each["ts"] + each["dur"] for each in events if each["pid"] == pid) for pid, _ in passes}
    assert list(ends.values()) == pytest.approx([1e6 * best["predicted_seconds"]] * 8)
    assert told["otherData"]["case"].startswith("pipeline-pipeline=8-b64")
    assert f"meshmark plot {path}" in capsys.readouterr().err


def test_nothing_fits(capsys):
    """The report says so and what to do, or why nothing is feasible, and the status is 1."""
    assert main(["--preset=gpt3-175b", "--topology=h100:1x8", "--batch-size=8", "--strategy=fsdp"]) == 1
    least = "no candidate fits: the smallest needs .* GiB a device, fsdp fsdp=8; take more devices"
    assert re.match(rf"{least} or meshes with tensor or pipeline or context\n", capsys.readouterr().out)
    ways = "more devices, a smaller batch, meshes with tensor or pipeline or context or --remat full"
    assert (
        main(
            [
                "--preset=gpt3-13b",
                "--topology=h100:1x8",
                *["--batch-size=64", "--remat=none", "--mesh=fsdp=8"],
                "--microbatches=1",
            ]
        )
        == 1
    )
    assert f"take {ways}" in capsys.readouterr().out
    assert main(["--preset=gpt2", "--topology=h100:1x8", "--batch-size=63", "--strategy=fsdp,tensor"]) == 1
    said = capsys.readouterr().out
    assert "no candidate fits" not in said
    assert said.count(", such as ") == 2
    assert "tensor=8 does not divide heads=12; tensor can be 1, 2, 3, 4, 6 or 12" in said


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--set=luck=2x"], "luck cannot be set; what can be is flops, hbm"),
        (["--set=hbm=many"], "'many' cannot be read; write a multiple such as 2x, or an amount such as 100GB"),
        (["--set=hbm"], "'hbm' is not an option with a value; write it as NAME=VALUE"),
        (["--machine=abacus"], "machine 'abacus' is not known; known are a100_fsdp, a100"),
        (["--topology=cpu:4x1"], "measure yours: meshmark calibrate --out mine.json"),
        (["--topology=cpu:4x1", "--machine=h100_fsdp"], "machine h100_fsdp is one of cuda devices, and these are cpu"),
        (["--topology=cpu:8"], "pass --topology here --measure 8"),
        (["--trace=step.json", "--scaling=8..16"], "--trace is of one topology; remove --scaling"),
        (["--compile=2", "--scaling=8..16"], "--compile is of one topology; remove --scaling"),
        (["--price=2"], "--price is of --tokens; pass --tokens, too"),
        (["--sequences-per-device=2"], "--sequences-per-device is of --scaling; pass --scaling, too"),
        (["--workers=2"], "--workers is of --compile; pass --compile, too"),
        *((["--set", f"hbm={text}"], f"{text!r} cannot be read") for text in ("2", "0x", "141mB", "5GiB/s")),
        (["--set=inter_host_latency=50ks"], "'50ks' cannot be read"),
        (["--mesh=fsdp=4"], "fsdp=4"),
        (["--measure=2"], "--measure times steps on the devices of this machine; pass --topology here"),
        (["--scaling=8"], "'8' is not a range of devices such as 8..16384"),
        (["--scaling=16..8"], "'16..8' is not a range"),
        (["--scaling=8..16", "--mesh=fsdp=8"], "remove --mesh"),
        (["--scaling=8..1048576"], "devices; take 65,536 or fewer"),
        (["--topology=here"], "cpu:8: virtual CPU devices share the cores of a host, so their steps are measured, not"),
        (["--topology=here", "--machine=meshmark_gpus", "--measure=2"], "--machine is about predictions"),
        (["--topology=here", "--tokens=1e9", "--measure=2"], "--tokens is about predictions"),
        (["--topology=here", "--scaling=2..8", "--measure=2"], "--measure is of one topology"),
    ],
)
def test_what_cannot_be_asked_is_refused(more, problem):
    """With a message that says what can be."""
    assert_refused(["search", *ARGUMENTS, *more], 2, problem)
