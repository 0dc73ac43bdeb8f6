"""The best on each number of devices: the search at that size, with the batch that scaling gives it."""

import json

import pytest

from benchmarks.devices.placement import device_count
from benchmarks.devices.topology import Topology
from benchmarks.search.candidates import SearchSpace
from benchmarks.search.ranking import ranked
from benchmarks.search.scaled import results, sized, usual
from benchmarks.simulate.machines import machine
from results.figures.palette import LIMIT_COLOURS
from results.records.documents import read_search
from strategies import PRESETS
from tests.commands import command

main = command("search")

H100S = machine("meshmark_gpus", "h100")
ARGUMENTS = ("--preset=gpt2", "--topology=h100:1x8", "--batch-size=64", "--strategy=fsdp,tensor", "--remat=dots")


def space(topology, **others):
    """A search space of gpt2 on devices."""
    restricted = {"strategies": ("fsdp", "hsdp", "three_d"), "remats": ("dots",), **others}
    return SearchSpace(Topology.parse(topology), "gpt2", PRESETS["gpt2"], 64, "bfloat16", **restricted)


def test_each_result_is_the_best_of_its_search():
    """On every number of devices, of the candidates whose meshes are usual."""
    found = list(results(space("h100:1x8"), Topology.parse("h100:1x8"), (8, 16), 4, H100S))
    sizes = [(result.scaling, device_count(result.space.topology), result.space.batch_size) for result in found]
    assert sizes == [
        ("strong", 8, 64),
        ("strong", 16, 64),
        ("weak", 8, 32),
        ("weak", 16, 64),
    ]
    options = (("schedule", ("1f1b", "zb-h1")), ("gather", ("layer",)))
    best = ranked(filter(usual, space("h100:2x8", options=options).cases()), H100S).fitting[0]
    for result in found:
        assert [each.case.mesh.size for each in result.ranking.fitting] == [device_count(result.space.topology)]
    assert found[1].ranking.fitting == found[3].ranking.fitting == (best,)


def test_hosts_are_those_of_the_topology():
    """Also if the smallest size is a part of one."""
    found = results(space("h100:1x2"), Topology.parse("h100:1x8"), (2, 16), 4, H100S)
    assert [str(result.space.topology) for result in found] == ["h100:1x2", "h100:2x8"] * 2


def test_leaving_out_unusual_meshes_loses_nothing_here():
    """On two hosts the best of all meshes is a usual one."""
    every = [*space("h100:2x8").cases()]
    some = [*filter(usual, every)]
    assert 0 < len(some) < len(every)
    assert ranked(some, H100S).fitting[0] == ranked(every, H100S).fitting[0]


@pytest.mark.parametrize(
    ("topology", "devices", "expected"),
    [
        ("h100:1x8", 64, "h100:8x8"),
        ("h100:8x8", 4, "h100:1x4"),
        ("v5e:4x4", 8, "v5e:2x4"),
        ("v5p:4x4x4", 512, "v5p:8x8x8"),
    ],
)
def test_topologies_of_other_sizes(topology, devices, expected):
    """Of the same kind and as large hosts; on a torus as cubic as can be."""
    assert str(sized(Topology.parse(topology), devices)) == expected
    with pytest.raises(ValueError, match="at most 256"):
        sized(Topology.parse("v5e:4x4"), 512)


def test_the_command_writes_a_row_for_each_point(tmp_path, capsys):
    """Strong and weak; where nothing fits, the row says so, and the limits are those that have colours."""
    path = tmp_path / "scaling.json"
    assert main([*ARGUMENTS, "--scaling=8..256", f"--json={path}", "--sequences-per-device=2"]) == 0
    document = json.loads(path.read_text())
    rows = document["candidates"]
    assert document["kind"] == "search"
    assert [(row["scaling"], row["devices"]) for row in rows] == [
        (scaling, 8 << times) for scaling in ("strong", "weak") for times in range(6)
    ]
    assert [row["global_batch_sequences"] for row in rows] == [64] * 6 + [2 * 8 << times for times in range(6)]
    fits = [row["status"] == "fits" for row in rows]
    assert fits == [row["devices"] <= row["global_batch_sequences"] for row in rows]  # 12 heads are not split by 8
    for row in rows:
        assert (row["status"] == "fits") is (row["predicted_seconds"] is not None) is not bool(row["reason"])
        assert {*(row["waits_for"] or LIMIT_COLOURS)} == {*LIMIT_COLOURS}
    assert rows[0]["waits_for"]
    read_search(path)
    assert capsys.readouterr().out.count("nothing fits") == fits.count(False)
