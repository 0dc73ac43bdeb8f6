"""A folder with a valid file of each kind that commands read."""

import json
from pathlib import Path

from benchmarks.simulate.machines import FOLDER
from results.baseline import as_baseline
from results.gates.counters import read_snapshot
from strategies.costs.overview import overview
from tests.commands import command
from tests.processes import ROOT
from tests.results.documents import SCHEDULE, log, point, search, searches, spans, trace
from tests.results.synthetic import edited, failed, row, sweep, write_run

SPANS = ("compute", 0, 4), ("exposed", 4, 2), ("memory", 6, 1), ("between hosts", 1, 5), ("inside a host", 5, 3)
POINTS = point("strong", 8, 2.0, "matmuls"), point("strong", 16, None), point("weak", 8, 1.0, "latency")


def write_valid_files(folder: Path) -> None:
    """Write two runs, a baseline, searches, a trace, a schedule, overviews, a log, a machine, and tables."""
    rows = [each for each in sweep([8]) if each["extra_info"]["devices"] in (1, 2)]
    rows += [edited(row("data", "data=2", 32), {"compiled.flops": None}), failed("infeasible", "fsdp", "fsdp=16")]
    write_run(folder / "run.json", rows)
    write_run(folder / "other.json", [each | {"stats": {"data": [0.5]}} for each in rows])
    shown = overview("fsdp", "nano", mesh="fsdp=2").as_dict()
    contents = {
        "baseline": as_baseline(read_snapshot(folder / "run.json")),
        "found": searches()["found.json"],
        "scaling": search(*POINTS),
        "trace": trace(*spans(*SPANS)),
        "schedule": SCHEDULE,
        "overview": [shown],
        "machine": json.loads((FOLDER / "meshmark_gpus.json").read_text()),
    }
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    log(folder, "single").rename(folder / "log.jsonl")
    table = (ROOT / "results" / "published" / "mpt_fsdp_a100_80gb.csv").read_text().splitlines()
    (folder / "runs.csv").write_text("\n".join(table[:12]) + "\n")
    command("predict")([str(folder / "runs.csv"), f"--out={folder / 'predicted.csv'}"])
