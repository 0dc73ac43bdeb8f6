"""Columns of tables of measured training runs, as in results/published. One row is one run."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from benchmarks.devices.topology import CLOUD_NAMES
from strategies.infeasible import Infeasible
from strategies.schema import Count, Positive, Whole, checked

ZeroStage = Literal["none", "zero1", "zero2", "zero3"]
Seconds = Annotated[float, Meta(ge=1e-6, le=1e7)]
TableRow = Mapping[str, Any]
"""A row of a table, with texts or values; other columns than those of `Published` mean nothing here."""
AXES = "data", "fsdp", "pipeline", "context", "tensor"
"""Columns of mesh axes whose product is the number of devices, unless experts have an axis of their own."""
BLOCKS = {"gpt3": "gpt2", "qwen3": "qwen3", "qwen2": "qwen2", "gpt-oss": "gpt_oss"}
"""How the name of a model begins -> its block. Of other names the block is "llama" if the row has `kv_heads`, as only
tables of such models do, and otherwise "gpt2"."""
LATENT = "deepseek", "kimi"
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
