"""A strategy: a name and a list of mesh axes. `build` composes them into the training step of a model on a mesh."""

import functools
import math
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Annotated, Any

from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array
from msgspec import Meta

from strategies.arguments import require_count, require_instance
from strategies.backends.backend import backend_of
from strategies.backends.device_mesh import device_mesh, mark_varying
from strategies.backends.xla_options import xla_options
from strategies.config import DEFAULTS, TrainConfig
from strategies.core.axis import Axis, placement_of
from strategies.core.placement import Axes, Placement, size_of
from strategies.core.plan import Plan, applicable, require_options
from strategies.core.shards import reduce_scatter
from strategies.core.traffic import Traffic, traffic
from strategies.core.train_step import assemble
from strategies.gpt_config import GPTConfig
from strategies.infeasible import Infeasible
from strategies.mesh import Devices, MeshSpec, all_axes, factorisations
from strategies.model.gpt import weight_specs
from strategies.model.hooks import ONE_DEVICE, Hooks, head_first
from strategies.model.layers import after
from strategies.names import in_a_line
from strategies.schema import Count, require_types
from strategies.step import Implementation, Step


def compose(plan: Plan, mesh: Mesh) -> Implementation:
    """All axes' functions of a step. Each field, and each hook, belongs to one axis."""
    of_all = {"grouped_matmuls": plan.grouped_matmuls, "needs_loop": plan.needs_loop, **vocabulary_hooks(plan)}
    sums = {"batch_sum": (*plan.placement.batch, *plan.placement.tokens), "sequence_sum": plan.placement.tokens}
    of_all |= {name: partial(_sum, axes=split) for name, axes in sums.items() if (split := plan.over(axes))}
    hooks, functions = dict.fromkeys(of_all, ""), dict[str, str]()
    found: dict[str, Any] = {}
    for axis in plan.active:
        what = f"what `implement` of the axis {axis.name} returned"
        own = require_instance(axis.implement(plan), Implementation, what, TypeError)
        for name, hook in _claimed(own.hooks, hooks, axis.name).items():
            of_all[name] = _returning(hook, f"`{name}` of the axis {axis.name}") if callable(hook) else hook
        found |= _claimed(own, functions, axis.name)
    of_all = {**ordering_hooks(plan), **of_all}
    return Implementation(**{**found, "hooks": replace(ONE_DEVICE, **of_all)})


def _sum(x: Array, axes: Axes) -> Array:
    return mark_varying(lax.psum(x, axes), axes)


def ordering_hooks(plan: Plan) -> Mapping[str, Callable[..., Any]]:
    """Hooks that order collectives of the head and of the MTP block, which could deadlock on virtual devices."""
    return {"head": head_first, "order": after} if plan.virtual and plan.mtp else {}


def _returning(hook: Callable[..., Any], what: str) -> Callable[..., Any]:
    """A hook that raises if it returns None, as a function without `return` does."""

    @functools.wraps(hook)
    def checked(*given: Any) -> Any:
        if (found := hook(*given)) is None:
            raise TypeError(f"{what} returned None; return an array, or what else it is for")
        return found

    return checked


def _claimed(own: Hooks | Implementation, owners: dict[str, str], axis: str) -> dict[str, Any]:
    """The fields that an axis sets; it becomes their owner."""
    values = {each.name: (getattr(own, each.name), each.default) for each in fields(own) if each.name != "hooks"}
    claimed = {name: value for name, (value, default) in values.items() if value is not default}
    for name in claimed:
        if (other := owners.setdefault(name, axis)) != axis:
            both = f"the axes {other} and {axis} both set `{name}`; set it in one of them"
            raise Infeasible(both if other else f"the step sets `{name}` itself; remove it from the axis {axis}")
    return claimed


@dataclass(frozen=True)
class Strategy:
    """A way to train the GPT on a mesh: a name, and a list of mesh axes (core/axis.py).

    Attributes:
        name: the value of `--strategy`.
        axes: outermost first; empty for one device.
        implement: (plan, mesh) -> `Implementation`; default: the composition of the axes.
        most_devices: upper bound on the number of devices.
        microbatches: default number of microbatches without pipeline stages.
        usual_axes: names of the axes of meshes that are measured by default; None: all axes.
        twins: of a strategy that is written on whole arrays: combinations of mesh axes -> the hand-written strategy
            with the same sharding.
        compiler_communicates: whether the compiler decides what is sent, so that no formulas can.
        by_default: whether a run or a search that names no strategies has it.
        make_step: (config, mesh, train, devices) -> the step, for a strategy that is not composed of axes; such a
            strategy has no formulas.

    Raises:
        ValueError: a field has a wrong type, an option is unknown, or axes exclude each other.
    """

    name: str
    axes: tuple[Axis, ...]
    implement: Callable[..., Implementation] = compose
    most_devices: Annotated[float, Meta(ge=0)] = math.inf
    microbatches: Count = 1
    usual_axes: tuple[str, ...] | None = None
    twins: Mapping[tuple[str, ...], str] = field(default_factory=dict, hash=False)
    compiler_communicates: bool = False
    by_default: bool = True
    make_step: Callable[..., Step] | None = None

    def __post_init__(self) -> None:
        require_types(self)
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]{0,49}", self.name):  # used in commands and file names
            problem = f"a strategy cannot be called {reprlib.repr(self.name)}"
            raise ValueError(f"{problem}; take up to 50 letters, digits, dots, hyphens and underscores, a letter first")
        if unknown := [name for name in self.options if name not in DEFAULTS]:
            raise ValueError(f"{self.name} has the option {unknown[0]!r}; it can have {', '.join(sorted(DEFAULTS))}")
        placement_of(self.axes)

    @property
    def axis_names(self) -> tuple[str, ...]:
        """Names of the mesh axes that it supports, outermost first; "data" for one device, whose mesh is data=1."""
        return tuple(axis.name for axis in self.axes) or ("data",)

    @functools.cached_property
    def options(self) -> tuple[str, ...]:
        """Fields of `TrainConfig` that it has and not every strategy has."""
        return tuple(dict.fromkeys(option for axis in self.axes for option in axis.options))

    def applicable(self, train: TrainConfig) -> TrainConfig:
        """The options of another strategy's step for the same work by this strategy: without options that it does not
        have.

        `build` refuses an option without effect. So the reference of a step is
        `STRATEGIES["single"].applicable(train)`.
        """
        return applicable(self.axes, require_instance(train, TrainConfig, "train"))

    @property
    def placement(self) -> Placement:
        """The placement by all of its axes."""
        return placement_of(self.axes)

    @property
    def has_formulas(self) -> bool:
        """Whether formulas predict its communication and memory: not if the compiler or `make_step` decides them."""
        return not self.compiler_communicates and self.make_step is None

    def build(
        self, config: GPTConfig, mesh: MeshSpec | str, train: TrainConfig, devices: Devices | None = None
    ) -> Step:
        """Build the step. Nothing is compiled yet.

        Args:
            config: the model.
            mesh: a `MeshSpec`, or a string.
            train: the options of the step.
            devices: one for each device of the mesh; default: the first of `jax.devices()`.

        Raises:
            Infeasible: model, mesh and batch do not fit together; the message names the numbers and what would fit.
            TypeError: `config` is a string.
            ValueError: `make_step` ends the program, or does not return a `Step`.
        """
        if isinstance(config, str):
            raise TypeError(f"config must be a GPTConfig, got str {config!r}; use PRESETS[{config!r}]")
        require_instance(config, GPTConfig, "the model")
        require_instance(train, TrainConfig, "train")
        mesh = self._mesh(mesh)
        if not self.axes and str(mesh) != "data=1":
            raise Infeasible(f"{self.name} runs on one device; its mesh is data=1, not {mesh}")
        return (
            self._made(config, mesh, train, devices) if self.make_step else self._composed(config, mesh, train, devices)
        )

    def _mesh(self, mesh: MeshSpec | str) -> MeshSpec:
        try:
            return MeshSpec.of(mesh)
        except Infeasible as error:
            if not (new := [name for name in self.axis_names if name not in all_axes()]):
                raise
            problem = f"{error}; {new[0]} is an axis of {self.name}, which is not registered"
            raise Infeasible(f"{problem}: call `strategies.register` with it first") from error

    def _composed(self, config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Devices | None) -> Step:
        arranged = device_mesh(mesh, self.axis_names, devices)
        plan = Plan.of(self.axes, config, mesh, train, backend_of(arranged.devices.flat[0]))
        what = f"what `implement` of {self.name} returned"
        implementation = require_instance(self.implement(plan, arranged), Implementation, what, TypeError)
        step = assemble(plan, arranged, implementation)
        return replace(step, xla_options=xla_options(_local_device(step), plan))

    def _made(self, config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Devices | None) -> Step:
        assert self.make_step
        require_options(self.axes, train)
        try:
            step = self.make_step(config, mesh, train, devices)
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:
            problem = f"the build of {self.name} raised {in_a_line(error)}"
            raise ValueError(f"{problem}; it must return a Step, or raise Infeasible") from error
        step = require_instance(step, Step, f"what the build of {self.name} returned", ValueError)
        # A step that another strategy built has options of its plan.
        return replace(step, xla_options=step.xla_options or xla_options(_local_device(step), None))

    def meshes(self, devices: int) -> list[MeshSpec]:
        """The strategy's meshes of exactly this many devices.

        Raises:
            Infeasible: `devices` is not a positive whole number.
        """
        devices = require_count(devices, "devices")
        meshes = factorisations(self.axis_names, devices) if devices <= self.most_devices else ()
        return [mesh for mesh in meshes if not self.twins or tuple(mesh.sizes) in self.twins]

    def idle_axes(self, config: GPTConfig) -> set[str]:
        """Axes that shard none of a model's weights, such as `expert` in a dense model. They only split the batch."""
        require_instance(config, GPTConfig, "the model")
        dims = {dim for spec in weight_specs(config).values() for dim in spec.dims}
        return {axis.name for axis in self.axes if axis.dims and dims.isdisjoint(axis.dims)}

    def batch_shards(self, mesh: MeshSpec | str) -> int:
        """Number of batch shards on a mesh."""
        return size_of(self.placement.batch, MeshSpec.of(mesh).sizes)

    def default_microbatches(self, mesh: MeshSpec | str, batch_size: int) -> int:
        """Default number of microbatches: 2 per pipeline stage, else `microbatches`; fewer for a small batch."""
        mesh = MeshSpec.of(mesh)
        stages = mesh.sizes.get("pipeline", 1)
        sequences = require_count(batch_size, "batch_size") // self.batch_shards(mesh)
        return math.gcd(sequences, 2 * stages if stages > 1 else self.microbatches)

    def equals(self, other: "Strategy", mesh: MeshSpec | str) -> bool:
        """Whether another strategy has all axes of a mesh, with the same placement along them."""
        require_instance(other, Strategy, "the other strategy", TypeError)
        axes = {*MeshSpec.of(mesh).sizes}
        return axes <= {*other.axis_names} and other.placement.along(axes) == self.placement.along(axes)

    def is_usual(self, mesh: MeshSpec | str) -> bool:
        """Whether a mesh is measured by default."""
        axes = {*MeshSpec.of(mesh).sizes}
        return self.usual_axes is None or axes <= {*self.usual_axes}


def _local_device(step: Step) -> Any:
    """One of the step's devices, preferably of this process."""
    return [*step.mesh.local_devices, *step.mesh.devices.flat][0]


def vocabulary_hooks(plan: Plan) -> Mapping[str, Callable[..., Any]]:
    """The hooks of the model (`Hooks`) by name; none if no axis splits the vocabulary."""
    axes = plan.vocab_axes
    if not axes:
        return {}
    tensors = plan.axes_of("head_features")
    others = tuple(axis for axis in axes if axis not in tensors)

    def scattered(x_BTD: Array) -> Array:
        return lax.psum(reduce_scatter(x_BTD, tensors, 1), others)

    return {
        "embed_sum": scattered if plan.sequence_parallel else partial(lax.psum, axis_name=axes),
        "vocab_start": lambda rows: rows * lax.axis_index(axes),
        "vocab_sum": partial(lax.psum, axis_name=axes),
        "vocab_max": partial(lax.pmax, axis_name=axes),
    }


def vocabulary_traffic(plan: Plan) -> Iterator[Traffic]:
    """Sums of embedding and loss over the split vocabulary; recomputed leading dense layers embed again.

    Multi-token prediction has an embedding and a loss more.
    """
    axes, dtype, times = plan.vocab_axes, plan.train.dtype, plan.head_uses + (plan.recomputed_prefix_layers > 0)
    if plan.sequence_parallel:
        tensors = plan.axes_of("head_features")
        other_axes = tuple(axis for axis in axes if axis not in tensors)
        yield from traffic(plan, "embedding", "reduce_scatter", tensors, times * plan.residual, dtype=dtype)
        yield from traffic(plan, "embedding", "all_reduce", other_axes, times * plan.own_residual, dtype=dtype)
        yield from traffic(plan, "embedding", "all_gather", tensors, plan.head_uses * plan.own_residual, dtype=dtype)
    else:
        yield from traffic(plan, "embedding", "all_reduce", axes, times * plan.residual, dtype=dtype)
    # Three numbers per token: the largest logit, the sum of exponentials, and the target's logit.
    yield from traffic(plan, "loss", "all_reduce", axes, plan.head_uses * 3 * plan.tokens, when="forward")
