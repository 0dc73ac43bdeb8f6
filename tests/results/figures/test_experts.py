"""The figures of mixtures of experts: a sweep over routings, and `expert` and `fsdp` against tokens on a device."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from results import load
from results.figures import imbalance, tokens
from results.figures.frame import PLAIN
from results.records.documents import NUMBERS, SCHEMA_VERSION, read_search
from results.records.reading import RecordError
from strategies import PRESETS, MeshSpec, TrainConfig
from strategies.costs.predict import predict
from tests.commands import command
from tests.results.pictures import counted, drawn, names_of, points_of
from tests.results.synthetic import edited, row, write_run

main = command("plot")

CONFIG = dataclasses.replace(PRESETS["nano-moe"], sequence=128, capacity_factor=1.0)
PLACES = (("single", "data=1"), ("fsdp", "fsdp=2"), ("fsdp", "fsdp=8"))


def test_a_sweep_over_routings_is_drawn_against_the_load(tmp_path: Path) -> None:
    """Time, memory and what is dropped, of each strategy on most devices, at the largest load that was counted."""
    loads = {"zipf=1.2": (3.4375, 0.3), "one": (4.0, 0.7), "learned": (None, None)}
    rows = []
    for routing, (largest, dropped) in loads.items():
        facts = {"routing": routing, "experts.largest_over_mean": largest, "experts.dropped_fraction": dropped}
        made = [row(*place, **facts) for place in PLACES]
        rows += [each | {"name": f"{each['name'][:-1]}-routing={routing}]"} for each in made]
    every = load(write_run(tmp_path / "run.json", rows))
    name = imbalance.FIGURE.name
    assert name in names_of(every)
    assert "time_and_memory_vs_window" not in names_of(every)
    assert drawn(every, name).axes[0].get_ylabel() == "time of a step (ms)"
    points = counted(points_of(every, name))
    assert {(each["mesh"], each["imbalance"], each["dropped"]) for _, each in points.iterrows()} == {
        (mesh, round(largest, 3), 100 * dropped)
        for mesh in ("data=1", "fsdp=8")
        for largest, dropped in loads.values()
        if largest is not None and dropped is not None
    }


def sent(strategy: str, batch: int) -> int:
    """Bytes that a step sends on eight devices."""
    mesh = MeshSpec.parse(f"{strategy}=8")
    train = TrainConfig(batch, dispatch="all_to_all" if strategy == "expert" else "auto")
    return predict(strategy, CONFIG, mesh, train).sent_bytes


def searched(batch: int, dtype: str = "bfloat16") -> dict[str, Any]:
    """The document of a search, in which `expert` takes as long as it has tokens, and `fsdp` always as long."""
    facts = {"preset": "nano-moe", "param_count": 124, "sequence_tokens": 128, "dtype": dtype, "topology": "h100:1x8"}
    known = {"devices": 8, "capacity_bytes": 80, "usable_bytes": 68, "machine": "meshmark_gpus"}
    layout = {"microbatches": 1, "remat": "dots", "options": {}, "scaling": None, "devices": 8, "waits_for": None}
    candidates = [
        {"strategy": strategy, "mesh": f"{strategy}=8", "global_batch_sequences": batch, "status": "fits"}
        | dict.fromkeys(NUMBERS)
        | {"predicted_seconds": seconds, "sent_bytes": sent(strategy, batch)}
        | layout
        for strategy, seconds in (("expert", batch / 1000), ("fsdp", 0.1))
    ]
    shared = {"interval": [0.5, 2.0], "global_batch_sequences": batch, "candidates": candidates}
    return {"kind": "search", "schema_version": SCHEMA_VERSION, **facts, **known, **shared}


def test_a_line_is_where_expert_and_fsdp_send_the_same_bytes(tmp_path: Path) -> None:
    """For nano-moe near 2.25 E F / k tokens, in the figure of a run and in that of searches, without other meshes."""
    rows = []
    quick = {f"step_seconds_{end}": 1e-6 for end in ("low", "median", "high")}
    for batch in (16, 256):
        for strategy in tokens.COMPARED:
            made = row("fsdp", "fsdp=8", batch)
            facts = {"strategy": strategy, "mesh": f"{strategy}=8", "predicted.sent_bytes": sent(strategy, batch)}
            other = {"strategy": strategy, "mesh": f"data=2,{strategy}=4", **quick}
            rows += [edited(made, each) | {"name": f"{each['mesh']}-b{batch}"} for each in (facts, other)]
    run = load([write_run(tmp_path / "run.json", rows)])
    figure = drawn(run, tokens.FIGURE.name)
    line = next(line for line in figure.axes[0].lines if "same bytes" in str(line.get_label()))
    at = np.asarray(line.get_xdata())[0]
    rule = 2.25 * CONFIG.dim_sizes["experts"] * CONFIG.dim_sizes["expert_mlp"] / CONFIG.experts_per_token
    assert at == pytest.approx(rule, rel=0.05)
    assert f"{at:,.0f} tokens" in str(line.get_label())
    assert set(counted(tokens.measured_points(run))["tokens"]) == {256, 4096}

    documents = [searched(batch) for batch in (16, 64, 256)]
    searches = [tmp_path / f"{document['global_batch_sequences']}.json" for document in documents]
    for path, document in zip(searches, documents, strict=True):
        path.write_text(json.dumps(document))
    figure = tokens.predicted([*map(read_search, searches)], PLAIN)
    assert np.asarray(figure.axes[0].lines[-1].get_xdata())[0] == pytest.approx(at)
    searches[0].write_text(json.dumps(searched(16, "float32")))
    with pytest.raises(RecordError, match="dtype differs: float32 and bfloat16; plot them apart"):
        tokens.predicted([*map(read_search, searches)], PLAIN)


def test_rows_against_tokens_have_the_same_microbatches(tmp_path: Path) -> None:
    """Also where another number of microbatches is faster for a batch: each number of tokens has its own batch."""
    rows = []
    for strategy in tokens.COMPARED:
        for batch, parts, seconds in ((16, 1, 1.0), (32, 1, 3.0), (32, 2, 2.0)):
            times = {f"step_seconds_{end}": seconds for end in ("low", "median", "high")}
            facts = {"strategy": strategy, "mesh": f"{strategy}=8", "microbatches": parts, **times}
            rows.append(edited(row("fsdp", "fsdp=8", batch), facts) | {"name": f"{strategy}-b{batch}-m{parts}"})
    points = counted(tokens.measured_points(load(write_run(tmp_path / "run.json", rows))))
    shown = points[["strategy", "tokens", "step_seconds_median"]].itertuples(index=False, name=None)
    assert {*shown} == {(name, *at) for name in tokens.COMPARED for at in ((256, 1.0), (512, 3.0))}


def test_one_batch_is_not_drawn_against_tokens(tmp_path: Path) -> None:
    """Nor is a strategy without the other."""
    rows = load([write_run(tmp_path / "run.json", [row("fsdp", "fsdp=8", batch) for batch in (16, 32)])])
    assert counted(tokens.measured_points(rows)).empty
