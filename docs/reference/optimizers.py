"""docs/reference/which-optimizer-placement.md: what Muon sends, computes and takes, by model, mesh and placement.

python docs/reference/optimizers.py RUN.json ... > docs/reference/which-optimizer-placement.md

The runs are of `pytest benchmarks --option optimizer=adamw,muon --option matrices=gather,deal,gram`: measured, or
compiled with --topology. `python docs/reference/optimizers.py --curves FOLDER` draws the loss curves of runs of
`meshmark train --option optimizer=...`, whose folders FOLDER has, such as muon-fsdp.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.devices.topology import Topology
from benchmarks.run.publish import UNTIMED
from benchmarks.simulate.machines import machine_for
from benchmarks.simulate.step import predict_seconds
from results.figures.frame import PLAIN, legend, opened, themed
from results.figures.palette import STRATEGY_COLOURS
from results.formats import as_markdown
from strategies import PRESETS, Infeasible, TrainConfig
from strategies.core.newton_schulz import Matrices
from strategies.costs.predict import Cost, predict
from strategies.mesh import MeshSpec

FOLDER, PICTURE = Path(__file__).parent, "muon-losses.png"
TOKENS = 16_384
"""Of a device and step. The optimizer's part of a step is inversely proportional to it."""
TORI = {8: "2x2x2", 64: "4x4x4", 512: "8x8x8"}
"""Shapes of v5p slices by their devices."""
CASES = (
    ("gpt2-xl", "fsdp", "fsdp=8", {}),
    ("gpt2-xl", "zero1", "data=8", {"reduce": "step"}),
    ("llama3-8b", "fsdp", "fsdp=8", {}),
    ("llama3-8b", "three_d", "fsdp=64,tensor=8", {}),
    ("qwen3-30b-a3b", "three_d", "fsdp=8,expert=8", {}),
    ("qwen3-30b-a3b", "three_d", "fsdp=64,tensor=8", {}),
)
PLACEMENTS = "gather", "deal", "gram", "block"
COUNTS = 1, 2, 3, 4, 8, 12, 64
"""Numbers of equal matrices in the table of the crossover."""
HEADER = "model", "mesh", "matrices", "MiB", "TFLOPs", "state GiB", "step on H100s", "on v5p"
OF_DEVICES = "equal matrices", "N=2", "N=8", "N=64"
PAGE = """# Which placement of Muon's matrices

Written by `python docs/reference/optimizers.py`. Muon (`--option optimizer=muon`) orthogonalises whole matrices, and
devices hold parts of them. `--option matrices=...` says how they work on them (`strategies/core/newton_schulz.py`
has the collectives):

| `matrices` | a device sends | a device orthogonalises |
|---|---|---|
| `gather` | the momentum, gathered | all matrices |
| `deal` | the momentum to one device, and the update back | 1/N of the matrices, rounded up |
| `gram` | Gram matrices, summed in each of five iterations | its part of all, and all squares of Gram matrices |
| `block` | along fsdp as `deal`, along tensor nothing | blocks, as if they were whole: not the same optimizer |

`auto`, the default, is `deal`. Along data, pipeline and expert, devices have whole matrices and send nothing. With
zero1 and zero2 and `reduce=step` (on GPUs the default is `layer`), devices that divide the layers or the experts update
whole matrices, and Muon sends what AdamW sends.

**Use `deal`.** It sends 2/N of a gather's bytes if N devices divide the equal matrices, and no more than a gather
unless there are fewer than three, or N is two. Sums of Gram matrices send less than a gather only if matrices have 10
times as many features along the dim that is split as along the other, and less than dealing out only from 5 N times.
If the shorter dim is split, as by fsdp here, Gram matrices are those of the longer one, and take more FLOPs than a
gather.

## By formula

{tokens:,} tokens a device and step, in bfloat16. MiB and TFLOPs are what the optimizer adds on a device, in a step;
tests hold programs that are compiled for CPUs to these formulas exactly. The step is predicted, and compared with
AdamW's. `by head`: tensor has more devices than there are KV heads, and each head has its own matrices.

{formula}

## Where dealing out beats gathering

MiB that a device sends for M float32 matrices of 1024 x 1024, which N devices split: gathered, then dealt out.

{crossover}

{runs}
## Loss curves

![Losses of nano-llama with AdamW and Muon under three strategies: one curve for each optimizer](muon-losses.png)

nano-llama on the default corpus, 300 steps under single, fsdp=8 and fsdp=2,pipeline=2,tensor=2: the strategies' curves
lie on each other. Both optimizers have the default learning rate, which was chosen for AdamW.

## What others measured

torchtitan's pull request 3719 compares, on 8 GPUs, owners of whole weights, two gathers, and FSDP2 with Muon and with
AdamW. Its figures are not repeated here. Owners of whole weights send nothing for the optimizer, as zero1 and zero2
here; under FSDP they turn the gathers of layers into broadcasts, which meshmark does not have.
"""


class Row(NamedTuple):
    """A placement of a model on a mesh."""

    cost: Cost
    topology: str

    @property
    def sent_bytes(self) -> int:
        """Bytes that the optimizer sends, in addition to what AdamW's step sends."""
        whats = "matrices", "Gram matrices", "norms of matrices"
        return int(sum(each.sent_bytes for each in self.cost.traffic if each.what in whats))

    def seconds(self) -> float:
        """The predicted step."""
        topology = Topology.parse(self.topology)
        return predict_seconds(self.cost, machine_for(topology.kind, "meshmark"), topology).step_seconds


def cost_of(preset: str, strategy: str, mesh: str, **options: Any) -> Cost:
    """The cost of a step with `TOKENS` on each device."""
    config, size = PRESETS[preset], MeshSpec.parse(mesh).size
    train = TrainConfig(max(1, TOKENS // config.sequence) * size, dtype="bfloat16", **options)
    return predict(strategy, config, mesh, train, "cuda")


def rows() -> Iterator[Sequence[str]]:
    """Rows of the table by formula."""
    for preset, strategy, mesh, options in CASES:
        sizes = MeshSpec.parse(mesh)
        clusters = f"h100:{sizes.size // 8}x8", f"v5p:{TORI[sizes.size]}"
        adamw = cost_of(preset, strategy, mesh, **options)
        plain = [Row(adamw, cluster).seconds() for cluster in clusters]
        yield line(preset, mesh, "adamw", Row(adamw, ""), ["", ""])
        by_head = (PRESETS[preset].key_heads or PRESETS[preset].heads) < sizes.sizes.get("tensor", 1)
        for placement in PLACEMENTS:
            if strategy == "zero1" and placement != "deal":
                continue  # the same, because devices have whole matrices
            muon = {"optimizer": "muon", "matrices": placement, "by_head": by_head}
            try:
                found = [Row(cost_of(preset, strategy, mesh, **options, **muon), cluster) for cluster in clusters]
            except Infeasible:  # blocks without tensor
                continue
            longer = [f"+{row.seconds() / without - 1:.1%}" for row, without in zip(found, plain, strict=True)]
            yield line(preset, mesh, f"{placement}{', by head' if by_head else ''}", found[0], longer)


def line(preset: str, mesh: str, optimizer: str, row: Row, longer: Sequence[str]) -> Sequence[str]:
    """A row of the table by formula."""
    sent, flops = row.sent_bytes / 2**20, row.cost.optimizer_flops / 1e12
    state = row.cost.arguments["optimizer"] / 2**30
    return preset, mesh, optimizer, f"{sent:,.0f}", f"{flops:,.1f}", f"{state:,.2f}", *longer


def crossover() -> Iterator[Sequence[str]]:
    """Rows of the table of the crossover."""
    for count in COUNTS:
        cells = []
        for devices in (2, 8, 64):
            dealt = Matrices((), (count,), 1024, 1024, ("fsdp",), (), "deal", {"fsdp": devices}).dealt
            gathered = 4 * count * (devices - 1) / devices
            cells.append(f"{gathered:.1f} / {2 * 4 * dealt * (devices - 1) / devices**2:.1f}")
        yield f"M={count}", *cells


def run_tables(paths: Sequence[Path]) -> Iterator[str]:
    """A table for each run: what was compiled, and what was measured."""
    for path in paths:
        content = json.loads(path.read_text())
        found = [each["extra_info"] for each in (*content["benchmarks"], *content[UNTIMED])]
        found = [info for info in found if info["status"] == "ok" and info["strategy"] != "single"]
        where = found[0]["topology"] or f"{found[0]['devices']} devices of {found[0]['device_kind']}"
        measured = found[0]["kind"] != "compiled"
        title = f"## {'Measured' if measured else 'Compiled'}: {found[0]['preset']} on {where}"
        yield "\n\n".join((title, as_markdown([*run_rows(found, measured=measured)], "<<>>>"), ""))


def run_rows(found: Sequence[dict[str, Any]], *, measured: bool) -> Iterator[Sequence[str]]:
    """Rows of the table of a run."""
    last = "ms (95% interval)" if measured else "ms by replay"
    yield "mesh", "options", "MB sent, compiled", "by formula", last
    for info in found:
        sent = [f"{info[name] / 1e6:,.3f}" for name in ("compiled.sent_bytes", "predicted.sent_bytes")]
        if measured:
            low, high = (1e3 * info[f"step_seconds_{end}"] for end in ("low", "high"))
            seconds = f"{1e3 * info['step_seconds_median']:.1f} ({low:.1f} to {high:.1f})"
        else:
            replay = info["replay.step_seconds"]
            seconds = "" if replay is None else f"{1e3 * replay:.2f}"
        yield info["mesh"], info["options"].replace("optimizer=", "") or "adamw", *sent, seconds


def draw(folder: Path) -> None:
    """Draw the losses of all runs in a folder: those of one optimizer lie on each other."""
    with themed():
        figure, (axes,) = opened(PLAIN, size=(6.4, 3.4))
        for path in sorted(folder.glob("*/log.jsonl")):
            entries = [json.loads(line) for line in path.read_text().splitlines()]
            steps = [entry for entry in entries if entry["kind"] == "step"]
            optimizer, _, strategy = path.parent.name.partition("-")
            dashes = "-" if optimizer == "adamw" else "--"
            look: dict[str, Any] = {"linestyle": dashes, "color": STRATEGY_COLOURS[strategy]}
            width = {"single": 4.0, "fsdp": 2.4, "three_d": 1.0}[strategy]
            losses = [entry["loss"] for entry in steps]
            axes.plot(
                [entry["step"] for entry in steps], losses, linewidth=width, label=f"{optimizer}, {strategy}", **look
            )
        axes.set(xlabel="step", ylabel="loss (nats per byte)")
        legend(figure)
        figure.savefig(FOLDER / PICTURE, dpi=120)


def main(paths: Sequence[str]) -> None:
    """Print the page."""
    text = PAGE.format(
        tokens=TOKENS,
        formula=as_markdown([HEADER, *rows()], "<<<>>>>>"),
        crossover=as_markdown([OF_DEVICES, *crossover()], "<>>>"),
        runs="\n".join(run_tables([*map(Path, paths)])),
    )
    print(text, end="")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--curves"]:
        draw(Path(sys.argv[2]))
    else:
        main(sys.argv[1:])
