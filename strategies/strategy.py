"""A strategy: a name, the mesh axes that it uses, and a function that builds its step."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from strategies.config import GPTConfig, Infeasible
from strategies.mesh import MeshSpec, factorisations
from strategies.sharding.layout import Layout, size_of
from strategies.step import Step
from strategies.xla_options import xla_options


@dataclass(frozen=True)
class Strategy:
    """A way to train the GPT on a mesh: a name, the mesh axes it uses, and a function that builds its step.

    `build(config, mesh, train, devices=None)` returns a `Step`. `config` is a `GPTConfig`, `mesh` a `MeshSpec` or its
    text, `train` a `TrainConfig`. `devices` are by default the first of `jax.devices()`. It raises `Infeasible`, before
    anything is compiled, if model, mesh and batch do not fit together.

    Attributes:
        options: fields of `TrainConfig` that change the step of this strategy, besides those that change every step.
        layout: which axes split what. costs/ derives from it what a step sends and holds, unless there are `twins`.
        most_devices: the largest mesh that it runs on.
        microbatches: the default number of microbatches, without pipeline stages.
        usual_axes: axes of the meshes that are measured by default; None for all.
        traffic: terms for what the strategy's own hooks send, besides what follows from the layout: functions like
            those of `TERMS` in costs/traffic.py.
        replica_sums: the term for what `Implementation.sum_replicas` sends, in place of the layout's all-reduce of loss
            and gradients; None if the strategy leaves that as it is, or sends as much.
        twins: for a strategy that the compiler partitions, the mesh axes that may be combined, and the hand-written
            strategy that does the same on them.
    """

    name: str
    axes: tuple[str, ...]
    build: Callable[..., Step]
    options: tuple[str, ...] = ()
    layout: Layout | None = None
    most_devices: float = math.inf
    microbatches: int = 1
    usual_axes: tuple[str, ...] | None = None
    traffic: tuple[Callable[..., Iterator[Any]], ...] = ()
    replica_sums: Callable[..., Iterator[Any]] | None = None
    twins: Mapping[tuple[str, ...], str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Refuse a layout with axes that are not the strategy's, and complete `build` (see `completed`)."""
        if self.layout and (strange := sorted(self.layout.axes - {*self.axes})):
            raise ValueError(f"the layout of {self.name} splits over {strange[0]}; its axes are {', '.join(self.axes)}")
        object.__setattr__(self, "build", completed(self.name, self.build))

    def meshes(self, devices: int) -> list[MeshSpec]:
        """The strategy's meshes of exactly this many devices."""
        meshes = factorisations(self.axes, devices) if devices <= self.most_devices else ()
        return [mesh for mesh in meshes if not self.twins or tuple(mesh.sizes) in self.twins]

    def batch_shards(self, mesh: MeshSpec) -> int:
        """Into how many parts the batch is split on a mesh; one, if the strategy states no layout."""
        return size_of(self.layout.batch, mesh.sizes) if self.layout else 1

    def default_microbatches(self, mesh: MeshSpec, batch_size: int) -> int:
        """Two for each pipeline stage, for a smaller bubble; without stages `microbatches`; fewer for a small batch."""
        stages = mesh.sizes.get("pipeline", 1)
        return math.gcd(batch_size // self.batch_shards(mesh), 2 * stages if stages > 1 else self.microbatches)

    def is_usual(self, mesh: MeshSpec) -> bool:
        """Whether a mesh is measured by default."""
        return self.usual_axes is None or set(mesh.sizes) <= set(self.usual_axes)


def completed(name: str, build: Callable[..., Step]) -> Callable[..., Step]:
    """Wrap a strategy's `build`: it accepts a mesh as text, refuses a model given as text, and sets XLA options."""

    @functools.wraps(build)
    def built(config: GPTConfig, mesh: MeshSpec | str, *others: Any, **named: Any) -> Step:
        if isinstance(config, str):
            raise Infeasible(f"the model is the text {config!r}; give a GPTConfig, as PRESETS[{config!r}]")
        step = build(config, MeshSpec.of(mesh), *others, **named)
        device = [*step.mesh.local_devices, *step.mesh.devices.flat][0]
        return replace(step, xla_options=xla_options(device, name, step.train))

    return built
