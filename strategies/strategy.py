"""A strategy: a name, the mesh axes that it uses, and a function that builds its step."""

import functools
import math
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any

from msgspec import Meta

from strategies.arguments import require_count, require_instance
from strategies.backends.xla_options import xla_options
from strategies.config import GPTConfig, Infeasible, TrainConfig
from strategies.mesh import MeshSpec, factorisations
from strategies.names import in_a_line
from strategies.schema import Count, require_types
from strategies.sharding.layout import Layout, size_of
from strategies.step import Step

OPTIONS = frozenset(each.name for each in fields(TrainConfig))


@dataclass(frozen=True)
class Strategy:
    """A way to train the GPT on a mesh: a name, the mesh axes it uses, and a function that builds its step.

    `build(config, mesh, train, devices=None)` returns a `Step`. `config` is a `GPTConfig`, `mesh` a `MeshSpec` or its
    text, `train` a `TrainConfig`. `devices` are by default the first of `jax.devices()`. It raises `Infeasible`, before
    anything is compiled, if model, mesh and batch do not fit together.

    Attributes:
        name: the value of `--strategy`.
        axes: mesh axes that it can use.
        build: builds a `Step`, as above.
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
    axes: Annotated[tuple[str, ...], Meta(min_length=1)]
    build: Callable[..., Step]
    options: tuple[str, ...] = ()
    layout: Layout | None = None
    most_devices: Annotated[float, Meta(ge=0)] = math.inf
    microbatches: Count = 1
    usual_axes: tuple[str, ...] | None = None
    traffic: tuple[Callable[..., Iterator[Any]], ...] = ()
    replica_sums: Callable[..., Iterator[Any]] | None = None
    twins: Mapping[tuple[str, ...], str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Check types, axes and options, and complete `build` (see `completed`)."""
        require_types(self)
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]{0,49}", self.name):  # it stands in commands and in file names
            problem = f"a strategy cannot be called {reprlib.repr(self.name)}"
            raise ValueError(f"{problem}; take up to 50 letters, digits, dots, hyphens and underscores, a letter first")
        if unknown := [name for name in self.options if name not in OPTIONS]:
            raise ValueError(f"{self.name} has the option {unknown[0]!r}; it can have {', '.join(sorted(OPTIONS))}")
        if self.layout and (strange := sorted(self.layout.axes - {*self.axes})):
            raise ValueError(f"the layout of {self.name} splits over {strange[0]}; its axes are {', '.join(self.axes)}")
        object.__setattr__(self, "build", completed(self.name, self.build))

    def meshes(self, devices: int) -> list[MeshSpec]:
        """The strategy's meshes of exactly this many devices.

        Raises:
            Infeasible: `devices` is no count.
        """
        devices = require_count(devices, "devices")
        meshes = factorisations(self.axes, devices) if devices <= self.most_devices else ()
        return [mesh for mesh in meshes if not self.twins or tuple(mesh.sizes) in self.twins]

    def batch_shards(self, mesh: MeshSpec) -> int:
        """Into how many parts the batch is split on a mesh; one, if the strategy states no layout."""
        return size_of(self.layout.batch, mesh.sizes) if self.layout else 1

    def default_microbatches(self, mesh: MeshSpec | str, batch_size: int) -> int:
        """Two for each pipeline stage, for a smaller bubble; without stages `microbatches`; fewer for a small batch."""
        mesh = MeshSpec.of(mesh)
        stages = mesh.sizes.get("pipeline", 1)
        sequences = require_count(batch_size, "batch_size") // self.batch_shards(mesh)
        return math.gcd(sequences, 2 * stages if stages > 1 else self.microbatches)

    def is_usual(self, mesh: MeshSpec) -> bool:
        """Whether a mesh is measured by default."""
        return self.usual_axes is None or set(mesh.sizes) <= set(self.usual_axes)


def completed(name: str, build: Callable[..., Step]) -> Callable[..., Step]:
    """Wrap a strategy's `build`: check what goes in and comes out, accept a mesh as text, and set XLA options.

    A `build` that raises what ends a program, such as SystemExit, raises a ValueError instead.
    """

    @functools.wraps(build)
    def built(config: GPTConfig, mesh: MeshSpec | str, train: TrainConfig, *others: Any, **named: Any) -> Step:
        if isinstance(config, str):
            raise Infeasible(f"the model is the text {config!r}; give a GPTConfig, as PRESETS[{config!r}]")
        require_instance(config, GPTConfig, "the model")
        require_instance(train, TrainConfig, "train")
        try:
            step = build(config, MeshSpec.of(mesh), train, *others, **named)
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:
            problem = f"the build of {name} raised {in_a_line(error)}"
            raise ValueError(f"{problem}; it must return a Step, or raise Infeasible") from error
        require_instance(step, Step, f"what the build of {name} returned", ValueError)
        device = [*step.mesh.local_devices, *step.mesh.devices.flat][0]
        return replace(step, xla_options=xla_options(device, name, step.train))

    return built
