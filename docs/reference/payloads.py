"""docs/reference/which-context-payload.md: what devices of a context axis send of latent attention, and what it takes.

python docs/reference/payloads.py > docs/reference/which-context-payload.md
"""

import dataclasses
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from benchmarks.devices.topology import Topology
from benchmarks.simulate.machines import machine_for
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
  C + R features a token, keys and values H (N + R + V): {ratios} times as many. But each device computes the keys and
  values of all tokens from them, forward and again backward.
- **Ulysses** gathers latents on each of N devices, where keys and values are only exchanged. So latents have
  N (C + R) / H (N + R + V) of the bytes. There is nothing more to compute: a device expands the latents for its own
  heads. Queries and results are sent in both cases.

`auto` takes what has fewer bytes.

Megabytes that a device sends in a layer and step, of activations, for one sequence in bfloat16; and the matmul FLOPs
by which a step around a ring grows with latents:

{sent}

Predicted milliseconds of a step of {layers} layers on H100s, 8 to a node, with the gradient sums of the replicated
weights:

{seconds}

## Which one

- Around a ring latents take less time in every row: within a node up to 7% less, across nodes up to two thirds less.
  Keys and values of {heads} heads are more than a ring's links carry while it computes attention.
- Ulysses with latents takes the least time, or as little as any, where its axis divides the heads. With more devices
  than heads there is only the ring.
- With Ulysses keys and values are fewer bytes than latents on many devices: on more than
  {most}.

These are formulas. The bytes and FLOPs are held to compiled programs ([laws](../contribute/testing.md)); the
milliseconds are not measured. Others measured 5.3 times the tokens/s with latents, for V2-Lite at 32k tokens on rings
of 8 H100s, and 1.02 times at 16k on rings of 4 ([pith-train #43](https://github.com/mlc-ai/pith-train/pull/43)).
"""


def costs(model: str, tokens: int, devices: int) -> Iterator[Cost]:
    """Yield the predicted cost of each way."""
    config = dataclasses.replace(PRESETS[model], sequence=tokens, layers=LAYERS)
    for attention, payload in WAYS:
        train = TrainConfig(1, dtype="bfloat16", context_attention=attention, context_payload=payload)
        yield predict("context", config, MeshSpec.parse(f"context={devices}"), train, "gpu")


def sent(cost: Cost) -> float:
    """Bytes of activations that a device sends in a layer."""
    return sum(sum(parts.values()) for (kind, _), parts in cost.sent.items() if kind != "all_reduce") / LAYERS


def tables() -> Iterator[str]:
    """Yield the tables of bytes and FLOPs, and of seconds."""
    rows: list[list[tuple[str, ...]]] = [[(*ABOUT, *HEADER, "more FLOPs")], [(*ABOUT, *HEADER)]]
    for model, tokens, devices in product(MODELS, SEQUENCES, CLUSTERS):
        if PRESETS[model].heads % devices:
            continue
        found, topology = [*costs(model, tokens, devices)], Topology.parse(CLUSTERS[devices])
        machine, about = machine_for(topology.kind, "meshmark"), (model, f"{tokens:,}", str(devices))
        times = (predict_seconds(cost, machine, topology).step_seconds for cost in found)
        more = found[0].hardware_flops / found[1].hardware_flops - 1
        rows[0].append((*about, *(f"{sent(cost) / 1e6:,.0f}" for cost in found), f"{more:+.1%}"))
        rows[1].append((*about, *(f"{1e3 * seconds:,.0f}" for seconds in times)))
    yield from (as_markdown(table, "<" + ">" * (len(table[0]) - 1)) for table in rows)


def fewer(model: str) -> float:
    """How many times as many features keys and values have as latents."""
    config = PRESETS[model]
    return (config.query_features + config.head_features) / config.dim_sizes["latents_and_key"]


def page() -> str:
    """The page."""
    found = [*tables()]
    return PAGE.format(
        sent=found[0],
        seconds=found[1],
        layers=LAYERS,
        ratios=" and ".join(f"{fewer(model):.1f} ({model})" for model in MODELS),
        heads=" and ".join(str(PRESETS[model].heads) for model in MODELS),
        most=" and ".join(f"{int(fewer(model))} for {model}" for model in MODELS),
    )


if __name__ == "__main__":
    sys.stdout.write(page())
