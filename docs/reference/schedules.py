"""docs/reference/which-pipeline-schedule.md: what each schedule loses, holds and sends.

python docs/reference/schedules.py > docs/reference/which-pipeline-schedule.md
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from results.formats import as_markdown
from strategies import PRESETS, TrainConfig
from strategies.config import PipelineSchedule, Remat
from strategies.costs.predict import Cost, predict
from strategies.mesh import MeshSpec

FILE = Path(__file__).with_name("which-pipeline-schedule.md")
MODEL, SIZES = "gpt3-6.7b", ((4, 8), (8, 64))
REMATS: tuple[Remat, ...] = ("dots", "full")
HEADER = "schedule", "loses, free", "loses, in lockstep", "in lockstep, remat=full", "held", "GiB", "exchanges"
PAGE = """# Which pipeline schedule

Written by `python docs/reference/schedules.py`. `--option schedule=...` orders the passes of
[pipeline](../strategies/pipeline.md) stages. This page compares them by formula, for {model}.

One program runs all stages, and they exchange arrays at the end of each [tick](glossary.md#tick). So a tick lasts as
long as on the busiest stage: the stages are in [lockstep](glossary.md#lockstep). A backward pass takes about twice
as long as a forward pass. In 1F1B some stages run forward while others run backward, and the former wait. Three kinds
of schedules lose less:

- **Ticks in turn** (`eager-1f1b`, `eager-zb`): all stages run forward passes in one tick, backward
  passes in the next, and weight gradients in a third if they are separate. `gpipe` does so, too. Before
  its first backward pass stage s of S runs 2 (S - 1 - s) forward passes with `eager-1f1b`, where `1f1b` runs half of
  them, so that it has one for every forward tick. It loses in lockstep what 1F1B loses if stages wait only for what
  they need.
- **Pairs** (`dualpipe-v`): a tick has a forward pass and a backward pass of another microbatch on all stages. One loop
  runs a layer of each, so the compiler can run compute of one alongside collectives of the other, such as the
  all-to-alls of an `expert` axis ([measured as compiled](../experiments/2026-11-29-fused-pairs.md)). In lockstep S
  stages lose (S - 1) (F/2 + B), where B includes weight gradients, at any number of microbatches from 2 S.
- **Equal passes** (`zb-h1`, `zb-v`): the backward pass is split into gradients of inputs and of weights, which take
  about as long as a forward pass. The longer the sequence, the more they differ, and with `remat=full` they differ
  most.

In a V (`zb-v`, `dualpipe-v`) a stage has two chunks: of S stages stage s has the parts s and 2 S - 1 - s of the
model. The first stage has both ends. The middle is handed over within the last stage.

{tables}

*Loses* is the share of the step that a stage does not work, with passes as long as their FLOPs: if stages wait only
for what they need, and in lockstep. *Held* is the largest number of microbatches in flight on a stage, and *GiB* what
a device holds in activations and buffers of the stage for {tokens:,} tokens a microbatch in bfloat16. An *exchange*
sends the residual stream of a microbatch to a neighbour.

## Which one

- By default, `1f1b` holds least. If its memory leaves room, `eager-1f1b` is faster with nothing else changed.
- With `remat=dots` and no long sequences, `zb-v` loses least for the microbatches that it holds. It needs two layers
  a stage. With many microbatches `dualpipe-v` loses as little in a third less memory.
- With `remat=full` or long sequences, `eager-zb` loses least, and `dualpipe-v` least for the microbatches that it
  holds, if there are many. It needs at least two microbatches for each stage, and a number of layers that its parts
  divide, or else its two passes run one after the other.
- With experts on an `expert` axis, `dualpipe-v` runs most of their all-to-alls alongside matmuls on H100s, and about a
  third on v5p, as compiled.
- `interleaved` loses less than `1f1b`, but in lockstep more than the others.

`--option schedule=auto` takes the one that loses least in lockstep, of those that hold fewer than two microbatches for
each stage. `meshmark search` ranks them all, with their exchanges and memory. `meshmark schedule zb-v --stages 4
--microbatches 8` prints one.

## What others published

Their stages are programs of their own, without lockstep.

- Zero bubble: up to 23% more tokens/s than 1F1B in the same memory, and 31% with more (Qi et al. 2023, abstract).
- V-shaped schedules with less memory: 7% to 55% more than 1F1B with pipelines alone, 16% after a search over other
  parallelism (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory", abstract).
- JaxPP, a program for each stage in JAX: hardware utilization up to 1.16 times that of the best configuration in one
  program (Xhebraj et al. 2025, MLSys; 1.11 times in the preprint).
- torchtitan: interleaved zero bubble was a tenth as fast as interleaved 1F1B with recomputation on 512 GPUs
  ([#773](https://github.com/pytorch/torchtitan/issues/773)).

A V's orders are those of `ScheduleZBVZeroBubble` and `ScheduleDualPipeV` of torch 2.13. torch's DualPipe-V also defers
weight gradients of the last microbatches; in lockstep that gains nothing, so none are deferred here.
"""


def costs(stages: int, microbatches: int, remat: Remat) -> Iterator[tuple[str, Cost]]:
    """Yield the predicted cost of each schedule."""
    for name in get_args(PipelineSchedule):
        train = TrainConfig(microbatches, microbatches, dtype="bfloat16", remat=remat, schedule=name)
        yield name, predict("pipeline", PRESETS[MODEL], MeshSpec.parse(f"pipeline={stages}"), train)


def rows(stages: int, microbatches: int) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table, without its header."""
    by_remat = [dict(costs(stages, microbatches, remat)) for remat in REMATS]
    for name, cost in by_remat[0].items():
        schedule, stacked = cost.plan.schedule, cost.temporaries["activations"] + cost.temporaries["stages"]
        lost = [schedule.lost(each.passes) for each in (cost, by_remat[1][name])]
        shares = (f"{share:.1%}" for share in (cost.bubble, *lost))
        yield name, *shares, f"{schedule.most_in_flight:g}", f"{stacked / 2**30:.1f}", str(cost.plan.ticks.exchanges)


def page() -> str:
    """The page."""
    tables = "\n\n".join(
        f"{stages} stages, {microbatches} microbatches:\n\n"
        + as_markdown([HEADER, *rows(stages, microbatches)], "<>>>>>>")
        for stages, microbatches in SIZES
    )
    return PAGE.format(model=MODEL, tables=tables, tokens=PRESETS[MODEL].sequence)


if __name__ == "__main__":
    sys.stdout.write(page())
