"""docs/reference/which-optimizer-placement.md: what Muon sends, computes and takes, by model, mesh and placement.

python docs/reference/optimizers.py [runs/muon.json] > docs/reference/which-optimizer-placement.md

With a run of `pytest benchmarks` of these placements, the page also has its measured step times.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.devices.topology import Topology
from benchmarks.simulate.machines import machine_for
from benchmarks.simulate.step import predict_seconds
from results.formats import as_markdown
from strategies import PRESETS, Infeasible, TrainConfig
from strategies.costs.predict import Cost, predict
from strategies.mesh import MeshSpec

TOKENS = 16_384
"""Of a device and step. The share of the optimizer is inversely proportional to it."""
CLUSTERS = "h100:{}x8", "v5p:{}"
TORI = {8: "2x2x2", 64: "4x4x4", 512: "8x8x8"}
"""Shapes of v5p slices by their devices."""
CASES = (
    ("gpt2-xl", "fsdp", "fsdp=8"),
    ("gpt2-xl", "zero1", "data=8"),
    ("llama3-8b", "fsdp", "fsdp=8"),
    ("llama3-8b", "three_d", "fsdp=64,tensor=8"),
    ("qwen3-30b-a3b", "three_d", "fsdp=8,expert=8"),
    ("qwen3-30b-a3b", "three_d", "fsdp=64,tensor=8"),
)
PLACEMENTS = "gather", "deal", "gram", "block"
PAGE = """# Which placement of Muon's matrices

Muon orthogonalises whole matrices, and devices hold parts of them. `matrices` says how they work on them
(`strategies/core/matrices.py` has the collectives):

| `matrices` | what a device sends for the optimizer | what it computes |
|---|---|---|
| `gather` | all-gathers of the momentum | all matrices |
| `deal` | two all-to-alls, 2/N of a gather's bytes | 1/N of the matrices, rounded up |
| `gram` | five all-reduces of Gram matrices, and gathers along other dims | its part of all matrices, and all squares of Gram matrices |
| `block` | as `deal` along fsdp, nothing along tensor | its parts, as if they were whole: another optimizer |

Without parts, along data, pipeline and expert, Muon sends nothing: replicas repeat the work. With zero1 and zero2 the
devices hold whole matrices of some layers, if their number divides the layers: then `gather` and `deal` are the same,
and Muon sends what AdamW sends. `auto`, the default, is `deal`.

Use `deal`, unless a kind of matrix has fewer members than there are devices along its axes. Then some devices orthogonalise
nothing but zeros, which they send, too: with M matrices on N devices a gather sends less if N > 2 M.

## By formula, and by the predicted step

{tokens:,} tokens a device and step in bfloat16. Bytes and FLOPs are a device's, of a step, and exact: tests hold compiled
programs to them. `share` is the predicted time of the optimizer and of what it sends, of the step with it.

{formula}

{crossover}

{measured}

## What others measured

torchtitan's pull request 3719 compares five placements on 8 GPUs: owners of whole weights, whose optimizer sends nothing;
two kinds of gathers; and FSDP2 with Muon and with AdamW. Owned weights are here zero1 and zero2, cut along layers; along
fsdp they would turn the gathers of layers into broadcasts, which is not built. Its numbers are not reproduced here,
because the page does not state them as text.
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
    """The cost of a step with so many tokens on each device."""
    config, size = PRESETS[preset], MeshSpec.parse(mesh).size
    train = TrainConfig(max(1, TOKENS // config.sequence) * size, dtype="bfloat16", **options)
    return predict(strategy, config, mesh, train, "cuda")


def rows() -> Iterator[dict[str, str]]:
    """Rows of the table by formula."""
    for preset, strategy, mesh in CASES:
        sizes = MeshSpec.parse(mesh)
        devices = sizes.size
        # A step whose tensor devices hold copies of KV heads takes the matrices of each head.
        copies = (PRESETS[preset].key_heads or 64) < sizes.sizes.get("tensor", 1)
        adamw = cost_of(preset, strategy, mesh)
        clusters = f"h100:{devices // 8}x8", f"v5p:{TORI[devices]}"
        plain = [Row(adamw, cluster).seconds() for cluster in clusters]
        yield line(preset, mesh, "adamw", Row(adamw, ""), ["", ""])
        for placement in PLACEMENTS:
            if strategy == "zero1" and placement != "deal":
                continue  # the same, because devices hold whole matrices
            try:
                cost = cost_of(preset, strategy, mesh, optimizer="muon", matrices=placement, by_head=copies)
            except Infeasible:  # blocks without tensor
                continue
            found = [Row(cost, cluster) for cluster in clusters]
            longer = [f"{row.seconds() / without - 1:.1%}" for row, without in zip(found, plain, strict=True)]
            yield line(preset, mesh, f"muon, {placement}{', by head' if copies else ''}", found[0], longer)


def line(preset: str, mesh: str, optimizer: str, row: Row, longer: list[str]) -> dict[str, str]:
    """A row of the table."""
    return {
        "model": preset,
        "mesh": mesh,
        "optimizer": optimizer,
        "MiB sent": f"{row.sent_bytes / 2**20:,.0f}",
        "TFLOPs": f"{row.cost.optimizer_flops / 1e12:,.1f}",
        "state GiB": f"{row.cost.arguments['optimizer'] / 2**30:,.2f}",
        "step longer, H100s": longer[0],
        "step longer, v5p": longer[1],
    }


if __name__ == "__main__":
    found = [*rows()]
    print(as_markdown([[*found[0]], *([*row.values()] for row in found)], "<<<>>>>>"))
