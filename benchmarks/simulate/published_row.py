"""Columns of tables of measured training runs, as in results/published, and the steps of rows, as none here has."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from benchmarks.devices.topology import CLOUD_NAMES, Topology
from strategies import context, expert, tensor, zero
from strategies.config import TrainConfig
from strategies.core.axis import Axis
from strategies.core.layer_reduction import resolve_reduce
from strategies.core.plan import Plan, applicable
from strategies.core.traffic import Traffic
from strategies.costs.predict import Cost, predict_axes
from strategies.gpt_config import GPTConfig
from strategies.infeasible import Infeasible
from strategies.mesh import MeshSpec
from strategies.schema import Count, Positive, Whole, checked
from strategies.strategy import vocabulary_traffic
from strategies.three_d import THREE_D

ZeroStage = Literal["none", "zero1", "zero2", "zero3"]
Seconds = Annotated[float, Meta(ge=1e-6, le=1e7)]
TableRow = Mapping[str, Any]
"""A row of a table, with strings or values; other columns than those of `Published` mean nothing here."""
AXES = "data", "fsdp", "pipeline", "context", "tensor"
"""Columns of mesh axes whose product is the number of devices, unless experts have an axis of their own."""
BLOCKS = {"gpt3": "gpt2", "qwen3": "qwen3", "qwen2": "qwen2", "gpt-oss": "gpt_oss"}
"""How the name of a model begins -> its block. Of other names the block is "llama" if the row has `kv_heads`, as only
tables of such models do, and otherwise "gpt2"."""
LATENT = "deepseek", "kimi", "moonlight"
"""How names of models with multi-head latent attention begin."""
OTHER_BLOCKS = "gemma", "gemma2", "gemma3", "gemma4", "nemotron"
"""Names of models, up to the first "-", whose blocks have other norms, MLPs or attention than any here."""


class Published(msgspec.Struct, frozen=True):
    """The columns of a row (results/published/README.md). Empty cells have defaults, if there are any."""

    stack: str
    device: str
    devices: Count
    devices_per_host: Count
    layers: Count
    embed: Count
    heads: Count
    vocab: Count
    sequence: Count
    batch_size: Count
    data: Count
    fsdp: Count
    tensor: Count
    pipeline: Count
    dtype: str
    context: Count = 1
    model: str = ""
    kv_heads: Count | None = None
    head_dim: Count | None = None
    mlp: Count | None = None
    experts: Count | None = None
    experts_per_token: Count | None = None
    expert_mlp: Count | None = None
    shared_experts: Whole | None = None
    dense_layers: Whole | None = None
    mtp_layers: Whole = 0
    capacity_factor: Positive | None = None
    expert: Count | None = None
    tied: bool | None = None
    microbatch_size: Count | None = None
    microbatches: Count | None = None
    recompute: str | None = None
    sequence_parallel: bool | None = None
    optimizer_sharded: ZeroStage | None = None
    schedule: Literal["gpipe", "1f1b", "interleaved", "zb-h1"] = "1f1b"
    virtual_stages: Count = 1
    step_seconds: Seconds | None = None
    tokens_per_second_per_device: Positive | None = None
    contradicts: str = ""

    @classmethod
    def of(cls, row: TableRow) -> "Published":
        """The columns of a row."""
        return checked({name: cell for name, cell in row.items() if cell != ""}, cls, "the row", texts=True)

    @property
    def kind(self) -> str:
        """The kind of devices, as machine files name it: without a remark in brackets, and in one spelling.

        >>> row = {"stack": "torchtitan", "devices": 8, "devices_per_host": 8, "layers": 1, "embed": 1, "heads": 1}
        >>> row |= dict.fromkeys(["vocab", "sequence", "batch_size", "data", "fsdp", "tensor", "pipeline"], 1)
        >>> [Published.of({**row, "dtype": "bf16", "device": it}).kind for it in ("H100 96GB (500W)", "TPU7x core")]
        ['h100_96gb', 'tpu7x']
        """
        kind = self.device.lower().partition("(")[0].strip().removeprefix("tpu ").removesuffix(" core")
        kind = kind.replace("-", "_").replace(" ", "_")
        return CLOUD_NAMES.get(kind, kind)

    @property
    def block(self) -> str:
        """The kind of the model's blocks; it raises `Infeasible` if there are no formulas for it."""
        if (family := self.model.partition("-")[0]) in OTHER_BLOCKS:
            raise Infeasible(f"there are no formulas for the blocks of {family}")
        named = next((block for name, block in BLOCKS.items() if self.model.startswith(name)), None)
        return named or ("llama" if self.kv_heads or self.is_latent else "gpt2")

    @property
    def is_latent(self) -> bool:
        """Whether it has multi-head latent attention."""
        return self.model.startswith(LATENT)

    @property
    def replicas(self) -> int:
        """Parts of the batch."""
        return self.data * self.fsdp * self.own_experts

    @property
    def own_experts(self) -> int:
        """Devices that split experts and are not counted along other axes; 1 if they are."""
        experts = self.expert or 1
        return experts if experts * math.prod(getattr(self, axis) for axis in AXES) == self.devices else 1

    @property
    def measured_seconds(self) -> float | None:
        """Measured seconds of a step; None if there are none, or if the row contradicts itself."""
        if self.contradicts:
            return None
        if self.step_seconds or not self.tokens_per_second_per_device:
            return self.step_seconds
        return self.batch_size * self.sequence / self.tokens_per_second_per_device / self.devices


COLUMNS = *(field.name for field in msgspec.structs.fields(Published) if field.required), "mlp", "recompute"
"""Columns that a table needs; some cells may be empty."""


def cost_of(row: Published, config: GPTConfig, train: TrainConfig, topology: Topology) -> Cost:
    """The step of a row by formulas."""
    sizes = sizes_of(row)
    mesh = MeshSpec(tuple((axis, size) for axis, size in sizes.items() if size > 1) or (("data", 1),))
    shards = row.optimizer_sharded if sizes["data"] > 1 and row.optimizer_sharded in ("zero1", "zero2") else None
    axes = _axes(shards)
    train = replace(train, master="float32") if shards else train  # gathered in the compute dtype
    return predict_axes(axes, config, mesh, applicable(axes, train), topology.platform)


@cache
def _axes(sharded: ZeroStage | None) -> tuple[Axis, ...]:
    """The axes of a published step.

    An optimizer may be sharded beside other axes: Megatron-LM's splits a flat buffer, so what tensor splits is not
    split again. A pipeline may have rings. Each device of the tensor axis sends its own tokens to experts, in place of
    gathering those of all for the MLP.
    """
    changes = {
        "context": replace(context.AXIS, resolve=lambda plan: {**resolve_reduce(plan), "context_attention": "ring"}),
        "expert": replace(expert.AXIS, traffic=(_exchanges,)),
        "tensor": replace(tensor.AXIS, traffic=(_layers, vocabulary_traffic)),
    }
    if sharded:
        shards = zero.AXIS2 if sharded == "zero2" else zero.AXIS1
        changes["data"] = replace(shards, may_split_dim_twice=False)
    return tuple(changes.get(axis.name, axis) for axis in THREE_D.axes)


def _exchanges(plan: Plan) -> Iterator[Traffic]:
    """Exchanges of tokens; each device of the tensor axis sends its own."""
    return _divided(expert.exchanges(plan), ("dispatch", "combine"), plan.tensors)


def _layers(plan: Plan) -> Iterator[Traffic]:
    """Sums of layers over the tensor axis. Those of a mixture have no sum of the MLP."""
    return _divided(tensor.layers(plan), ("layers",), 2 if plan.config.experts else 1)


def _divided(terms: Iterable[Traffic], names: tuple[str, ...], parts: int) -> Iterator[Traffic]:
    """Traffic in which terms with these names send 1 / `parts` of their bytes."""
    for term in terms:
        part = replace(term, operand_bytes=term.operand_bytes // parts, sent_bytes=Fraction(term.sent_bytes) / parts)
        yield part if term.what in names else term


def sizes_of(row: Published) -> dict[str, int]:
    """Sizes of the mesh axes. What shards parameters is called fsdp here, and what shards less is called data.

    Devices that a row counts along other axes, and that split experts, are taken from the tensor axis, which then
    splits each expert, and from data and fsdp.
    """
    sizes: dict[str, int] = {axis: getattr(row, axis) for axis in AXES}
    if (size := row.own_experts * math.prod(sizes.values())) != row.devices:
        raise Infeasible(f"{sizes} are {size} devices, and the row has {row.devices}")
    if row.optimizer_sharded != "zero3":
        sizes |= {"data": row.data * row.fsdp, "fsdp": 1}
    elif row.fsdp == 1:
        sizes |= {"data": 1, "fsdp": row.data}
    experts = row.expert or 1
    if row.experts and row.own_experts == 1:
        experts //= math.gcd(experts, row.tensor)
        of_data = math.gcd(experts, sizes["data"])
        of_fsdp = math.gcd(experts // of_data, sizes["fsdp"])
        sizes |= {"data": sizes["data"] // of_data, "fsdp": sizes["fsdp"] // of_fsdp}
        experts = of_data * of_fsdp
    sizes["expert"] = experts if row.experts else 1
    return {axis.name: sizes[axis.name] for axis in THREE_D.axes}
