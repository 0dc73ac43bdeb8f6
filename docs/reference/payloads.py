"""docs/reference/which-context-payload.md: bytes, FLOPs and predicted seconds of what a context axis sends of latent
attention.

python docs/reference/payloads.py > docs/reference/which-context-payload.md
"""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.devices.topology import Topology
from benchmarks.simulate.machines import nearest_machine
from benchmarks.simulate.step import predict_seconds
from results.formats import as_markdown
from strategies import PRESETS, TrainConfig
from strategies.config import ContextAttention, ContextPayload
from strategies.costs.predict import Cost, predict
from strategies.mesh import MeshSpec

FILE = Path(__file__).with_name("which-context-payload.md")
MODELS, LAYERS = ("deepseek-v2-lite", "deepseek-v3"), 8
SEQUENCES, CLUSTERS = (4096, 32_768, 131_072), {8: "h100:1x8", 64: "h100:8x8"}
WAYS: tuple[tuple[ContextAttention, ContextPayload], ...] = tuple(
    (attention, payload) for attention in ("ring", "ulysses") for payload in ("latent", "expanded")
)
ABOUT = "model", "tokens", "devices"
HEADER = tuple(f"{attention}, {payload}" for attention, payload in WAYS)
PAGE = """# Which payload of context parallelism

Written by `python docs/reference/payloads.py`. With multi-head latent attention (`latent_rank`, as in DeepSeek-V3) the
devices of a [context](../strategies/context.md) axis can exchange keys and values of all heads, or the latents from
which they are computed. `--option context_payload=latent|expanded` says which.

- **A ring** (`context_attention=ring`) sends what each token needs once around. Latents and the rotary key are
  C + R features a token, keys and values H (K + V), which is {ratios} times that. (H heads; K features
  of a key and V of a value; C latents, R rotary features.) But each device computes the keys and values of all tokens,
  forward and again backward.
- **Ulysses** gathers latents on each of n devices, where keys and values are only exchanged. So latents have
  n (C + R) / H (K + V) of the bytes. There is nothing more to compute: a device expands the latents for its own
  heads. Queries and results are sent in both cases.

`auto` picks the payload with fewer bytes.

Megabytes that a device sends in a layer and step, of activations, for one sequence in bfloat16; and the matmul FLOPs
by which a step around a ring grows with latents. Ulysses needs a head for each device:

{sent}

Predicted milliseconds of a step of {layers} layers on H100s, 8 to a node. The step has all weights on each device,
which are too many for an H100 with deepseek-v3. So only differences within a row mean something:

{seconds}

## Which one

- Around a ring, steps with latents take {inside} less time within a node, and {across} less across nodes.
- Ulysses with latents takes at most {ulysses} more time than the fastest way in each row that has it.
- With Ulysses keys and values are fewer bytes than latents on many devices: on more than
  {most}.

These are formulas. The bytes and FLOPs are held to compiled programs ([laws](../contribute/testing.md)); the
milliseconds are not measured. Others measured 5.3 times the tokens/s with latents, for V2-Lite at 32k tokens on four
hosts of 8 H100s with pipeline=2, context=8 and expert=2, and 1.02 times at 16k with rings of 4 devices
([pith-train #43](https://github.com/mlc-ai/pith-train/pull/43)). The predictions for rings within a node do not
explain a gain of that size.
"""


def costs(model: str, tokens: int, devices: int) -> Iterator[Cost]:
    """Yield the predicted cost of each way."""
    config = dataclasses.replace(PRESETS[model], sequence=tokens, layers=LAYERS)
    for attention, payload in WAYS:
        if attention == "ulysses" and config.heads % devices:
            continue
        train = TrainConfig(1, dtype="bfloat16", context_attention=attention, context_payload=payload)
        yield predict("context", config, MeshSpec.parse(f"context={devices}"), train, "gpu")


def sent(cost: Cost) -> float:
    """Bytes of activations that a device sends in a layer."""
    return float(sum(sum(parts.values()) for (kind, _), parts in cost.sent.items() if kind != "all_reduce")) / LAYERS


def rows() -> Iterator[tuple[tuple[str, int, int], list[Cost], list[float]]]:
    """Yield model, tokens and devices, with the cost of each way and its predicted seconds."""
    for model, tokens, devices in product(MODELS, SEQUENCES, CLUSTERS):
        found, topology = [*costs(model, tokens, devices)], Topology.parse(CLUSTERS[devices])
        machine = nearest_machine(topology.kind, "meshmark")
        times = [predict_seconds(cost, machine, topology).step_seconds for cost in found]
        yield (model, tokens, devices), found, times


def table(header: tuple[str, ...], cells: Sequence[tuple[str, ...]]) -> str:
    """A table. Ways that there are not have dashes."""
    padded = [(*row, *["-"] * (len(header) - len(row))) for row in cells]
    return as_markdown([header, *padded], "<" + ">" * (len(header) - 1))


def saved(found: Sequence[tuple[Any, ...]], devices: int) -> str:
    """The range of the share of time that latents save around a ring."""
    shares = [1 - times[0] / times[1] for (_, _, count), _, times in found if count == devices]
    return f"{min(shares):.0%} to {max(shares):.0%}"


def fewer(model: str) -> float:
    """Features of keys and values over features of latents."""
    config = PRESETS[model]
    return (config.query_features + config.head_features) / config.dim_sizes["latents_and_key"]


def page() -> str:
    """The page."""
    found, sizes, seconds = [*rows()], [], []
    for (model, tokens, devices), made, times in found:
        about, more = (model, f"{tokens:,}", str(devices)), made[0].hardware_flops / made[1].hardware_flops - 1
        sizes.append((*about, f"{more:+.1%}", *(f"{sent(cost) / 1e6:,.0f}" for cost in made)))
        seconds.append((*about, *(f"{1e3 * each:,.0f}" for each in times)))
    inside, across = CLUSTERS
    return PAGE.format(
        sent=table((*ABOUT, "more FLOPs", *HEADER), sizes),
        seconds=table((*ABOUT, *HEADER), seconds),
        layers=LAYERS,
        ratios=" and ".join(f"{fewer(model):.1f} ({model})" for model in MODELS),
        most=" and ".join(f"{int(fewer(model))} for {model}" for model in MODELS),
        inside=saved(found, inside),
        across=saved(found, across),
        ulysses=f"{max(times[2] / min(times) - 1 for *_, times in found if len(times) > 2):.1%}",
    )


if __name__ == "__main__":
    sys.stdout.write(page())
