"""docs/reference/which-optimizer-placement.md: what Muon sends, computes and takes, by model, mesh and placement.

python docs/reference/optimizers.py --add RUN.json ...
python docs/reference/optimizers.py > docs/reference/which-optimizer-placement.md
python docs/reference/optimizers.py --curves FOLDER

The first puts runs into the table next to the page, in place of former ones of the same devices and model. They are of
`pytest benchmarks --strategy fsdp --mesh fsdp=8 --option optimizer=adamw,muon --option matrices=gather,deal,gram` with
one batch size: measured, or compiled with --topology. The second writes the page. The third draws the loss curves of
runs of `meshmark train --option optimizer=...`, whose folders FOLDER has, such as muon-fsdp.
"""

import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cases.case import Case
from benchmarks.devices.topology import Topology
from benchmarks.program.explanations import cost_of
from benchmarks.run.publish import UNTIMED
from benchmarks.simulate.machines import nearest_machine
from benchmarks.simulate.step import predict_seconds
from results.figures.frame import PLAIN, legend, opened, themed
from results.figures.palette import STRATEGY_COLOURS
from results.formats import as_markdown
from strategies import PRESETS, Infeasible, TrainConfig
from strategies.core.newton_schulz import Matrices
from strategies.costs.predict import Cost, predict
from strategies.mesh import MeshSpec

FOLDER, PICTURE = Path(__file__).parent, "muon-losses.png"
PAGE = FOLDER / "which-optimizer-placement.md"
TABLE = PAGE.with_suffix(".csv")
FIELDS = ["devices", "preset", "dtype", "sequences", "mesh", "options", "jax", "sent_bytes", "seconds", "low", "high"]
"""Columns of the table: seconds of a step as replayed, or with the ends of their interval as measured."""
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
BY_CASE, LAST = ("model", "devices", "optimizer", "MB sent", "by formula"), ("ms by replay", "ms (95% interval)")
HEADER = "model", "mesh", "matrices", "MiB", "TFLOPs", "state GiB", "step on H100s", "on v5p"
OF_DEVICES = "equal matrices", "N=2", "N=8", "N=64"
PAGE_TEXT = """# Which placement of Muon's matrices

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
unless there are fewer than three, or N is two. Summing Gram matrices sends less than gathering only if the split dim is
10 times as long as the other, and less than dealing out only if it is 5 N times as long. If the shorter dim is split,
as by fsdp here, the Gram matrices have the size of the longer one, and take more FLOPs than a gather.

## By formula

{tokens:,} tokens a device and step, in bfloat16. MiB and TFLOPs are what the optimizer adds on a device, in a step;
tests hold programs that are compiled for CPUs to these formulas exactly. The step is predicted, and compared with
AdamW's. `by head`: tensor has more devices than there are KV heads, and each head has its own matrices.

{formula}

## Where dealing out beats gathering

MiB that a device sends for M float32 matrices of 1024 x 1024, which N devices split: gathered, then dealt out.

{crossover}

## Compiled

Programs that compilers made for absent devices. nano-llama has {nano_llama}. gpt2-xl has
all its layers, in bfloat16 and with {tokens:,} tokens a device. Milliseconds are
[replayed](../guides/topologies.md#replay). **Beyond AdamW, each program sends what the formulas say, to the byte.**
What compilers change is in AdamW's step, too: for v5e libtpu pads shards, for v5p it sends reduce-scatters as
all-reduces, and on H100s XLA scatters 282 MB less of gpt2-xl's gradients, as much as one of the two of its tied table.

{compiled}

## Measured

nano with 16 sequences in float32, on eight virtual CPU devices of a shared machine with two cores, where other programs
ran all the time. The placements of Muon were timed interleaved, in 20 rounds; AdamW before them, not interleaved with
them. All devices share the cores, so the column shows work, not links: a gather has eight devices orthogonalise all
matrices, dealing out has each matrix orthogonalised once. The measured steps
still gathered biases again, 18 kB.

{measured}

## Loss curves

![Losses of nano-llama with AdamW and Muon under three strategies: one curve for each optimizer](muon-losses.png)

nano-llama on the default corpus, 300 steps under single, fsdp=8 and fsdp=2,pipeline=2,tensor=2: the strategies' curves
lie on each other. Both optimizers have the default learning rate, which was chosen for AdamW.

## What others measured

torchtitan's pull request 3719 compares, on 8 GPUs, owners of whole weights, two gathers, and FSDP2 with Muon and with
AdamW. The index of public threads that was searched on 2026-11-28 has its methods, but not the cells of its tables, so
its overheads are not compared here. Owners of whole weights send nothing for the optimizer, as zero1 and zero2 here;
under FSDP they turn the gathers of layers into broadcasts, which meshmark does not have.
"""


class Row(NamedTuple):
    """A placement of a model on a mesh."""

    cost: Cost
    topology: str

    @property
    def sent_bytes(self) -> int:
        """Bytes that the optimizer sends, in addition to what AdamW's step sends."""
        return int(sum(each.sent_bytes for each in self.cost.traffic if each.what.endswith("matrices")))

    def seconds(self) -> float:
        """The predicted step."""
        topology = Topology.parse(self.topology)
        return predict_seconds(self.cost, nearest_machine(topology.kind, "meshmark"), topology).step_seconds


def stated(preset: str, strategy: str, mesh: str, **options: Any) -> Cost:
    """The cost of a step with `TOKENS` on each device."""
    config, size = PRESETS[preset], MeshSpec.parse(mesh).size
    train = TrainConfig(max(1, TOKENS // config.sequence) * size, dtype="bfloat16", **options)
    return predict(strategy, config, mesh, train, "cuda")


def rows() -> Iterator[Sequence[str]]:
    """Rows of the table by formula."""
    for preset, strategy, mesh, options in CASES:
        sizes = MeshSpec.parse(mesh)
        clusters = f"h100:{sizes.size // 8}x8", f"v5p:{TORI[sizes.size]}"
        adamw = stated(preset, strategy, mesh, **options)
        plain = [Row(adamw, cluster).seconds() for cluster in clusters]
        yield line(preset, mesh, "adamw", Row(adamw, ""), ["", ""])
        by_head = (PRESETS[preset].key_heads or PRESETS[preset].heads) < sizes.sizes.get("tensor", 1)
        for placement in ("auto",) if strategy == "zero1" else PLACEMENTS:  # zero1's devices have whole matrices
            muon = {"optimizer": "muon", "matrices": placement, "by_head": by_head}
            try:
                found = [Row(stated(preset, strategy, mesh, **options, **muon), cluster) for cluster in clusters]
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


def read() -> list[Mapping[str, str]]:
    """Rows of the table next to the page."""
    return list(csv.DictReader(TABLE.read_text().splitlines()))


def add(paths: Sequence[Path]) -> None:
    """Put the rows of runs into the table."""
    for path in paths:
        content = json.loads(path.read_text())
        found = [each["extra_info"] for each in (*content["benchmarks"], *content[UNTIMED])]
        version = content["machine_info"]["versions"]["jax"]
        new = [row_of(info, version) for info in found if info["status"] == "ok" and info["strategy"] == "fsdp"]
        kept = [row for row in read() if group(row) != group(new[0])]
        with TABLE.open("w", newline="") as file:
            table = csv.DictWriter(file, FIELDS, lineterminator="\n")
            table.writeheader()
            table.writerows(sorted([*kept, *new], key=group))


def group(row: Mapping[str, Any]) -> tuple[str, str]:
    """Rows of one run."""
    return row["devices"], row["preset"]


def row_of(info: Mapping[str, Any], version: str) -> Mapping[str, Any]:
    """A row of the table from a row of a run."""
    measured = {"seconds": "step_seconds_median", "low": "step_seconds_low", "high": "step_seconds_high"}
    columns = {"seconds": "replay.step_seconds"} if info["topology"] else measured
    return {
        "devices": info["topology"] or f"{info['platform']}:{info['devices']}",
        "sequences": info["global_batch_sequences"],
        "jax": version,
        "sent_bytes": info["compiled.sent_bytes"],
        **{name: info[name] for name in ("preset", "dtype", "mesh", "options")},
        **{name: f"{info[column]:.4g}" for name, column in columns.items()},
    }


def by_formula(row: Mapping[str, str]) -> int:
    """Bytes that a device sends in the step of a row of the table."""
    options = tuple((name, value) for name, _, value in (each.partition("=") for each in row["options"].split(",")))
    work: Any = PRESETS[row["preset"]], int(row["sequences"]), 1, row["dtype"], "dots", options
    absent = None if row["low"] else Topology.parse(row["devices"])
    cost = cost_of(Case("fsdp", MeshSpec.parse(row["mesh"]), row["preset"], *work, topology=absent))
    assert cost
    return cost.sent_bytes


def runs(*, measured: bool) -> Iterator[Sequence[str]]:
    """Rows of the table of what was compiled for absent devices, or measured."""
    yield *BY_CASE, LAST[measured]
    for row in read():
        if bool(row["low"]) == measured:
            seconds, *ends = (in_ms(row[name]) for name in ("seconds", "low", "high") if row[name])
            optimizer = row["options"].removeprefix("optimizer=").replace("muon,matrices=", "")
            sent = (f"{each / 1e6:,.3f}" for each in (int(row["sent_bytes"]), by_formula(row)))
            yield (
                row["preset"],
                row["devices"],
                optimizer,
                *sent,
                f"{seconds} ({' to '.join(ends)})" if ends else seconds,
            )


def in_ms(seconds: str) -> str:
    """Milliseconds, with at least three digits."""
    found = 1e3 * float(seconds)
    return f"{found:,.0f}" if found >= 1000 else f"{found:.3g}"


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


def page() -> str:
    """The page in Markdown."""
    small = PRESETS["nano-llama"]
    return PAGE_TEXT.format(
        tokens=TOKENS,
        nano_llama=f"{small.layers} layers of {small.embed} features, in float32",
        formula=as_markdown([HEADER, *rows()], "<<<>>>>>"),
        crossover=as_markdown([OF_DEVICES, *crossover()], "<>>>"),
        compiled=as_markdown([*runs(measured=False)], "<<<>>>"),
        measured=as_markdown([*runs(measured=True)], "<<<>>>"),
    )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--curves", folder]:
            draw(Path(folder))
        case ["--add", *paths]:
            add([*map(Path, paths)])
        case _:
            print(page(), end="")
