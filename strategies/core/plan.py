"""Plan: a model, a batch and a mesh under a strategy's axes, with resolved options.

It resolves options that are "auto" and refuses what does not fit. The step (train_step.py) and the formulas (costs/)
both use it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from strategies.arguments import require_instance
from strategies.backends.backend import NO_DEVICES, Backend
from strategies.config import DEFAULTS, OF_AXES, OFF, TrainConfig, idle_options, needed_for, without_idle
from strategies.core.axis import Axis, placement_of
from strategies.core.expert_rows import fit_kernel
from strategies.core.placement import require_master, require_parts
from strategies.core.share import Share
from strategies.core.sizes import Sizes
from strategies.core.way_out import other_problems, way_out
from strategies.gpt_config import GPTConfig
from strategies.infeasible import Infeasible, WrongSize, legal
from strategies.mesh import MeshSpec
from strategies.model.attention import kernel_for
from strategies.model.grouped_matmul import GroupedMatmuls
from strategies.model.layers import is_loop
from strategies.model.pallas import grouped_kernel

MOST_WITHOUT_LOOP = 48
"""Upper bound on the blocks that run without a loop by default."""


def require_options(axes: Sequence[Axis], train: TrainConfig) -> None:
    """Refuse options without effect: of axes that a strategy does not have, or that need another value of an option.

    `require_master` explains more about `master`.
    """
    names = ", ".join(axis.name for axis in axes)
    where = f"with the {'axes' if len(axes) > 1 else 'axis'} {names}" if axes else "on one device"
    require_default(train, (name for name in _of_others(axes) if name != "master"), where)
    for name in idle_options(vars(train)):
        require_default(train, [name], f"without {needed_for(name)}")


def require_default(train: TrainConfig, names: Iterable[str], where: str) -> None:
    """Refuse options where they have no effect, unless they have their default value or "off"."""
    for name in names:
        if (value := getattr(train, name)) not in (DEFAULTS[name], OFF.get(name, DEFAULTS[name])):
            raise Infeasible(f"{name}={value} changes nothing {where}; omit it")


def applicable(axes: Sequence[Axis], train: TrainConfig) -> TrainConfig:
    """The options of a step with other axes, without those that have no effect with these."""
    return without_idle(replace(train, **{name: DEFAULTS[name] for name in _of_others(axes)}))


def _of_others(axes: Sequence[Axis]) -> list[str]:
    """The options that need an axis and that none of these axes has."""
    own = {option for axis in axes for option in axis.options}
    return [name for name in OF_AXES if name not in own]


@dataclass(frozen=True)
class Plan(Sizes):
    """The plan of a step, made by `of`. See `Sizes`."""

    @classmethod
    def of(
        cls,
        axes: Sequence[Axis],
        config: GPTConfig,
        mesh: MeshSpec,
        train: TrainConfig,
        backend: Backend = NO_DEVICES,
        *,
        checked: bool = True,
    ) -> "Plan":
        """Resolve options. Options without effect here are off. With `checked`, refuse a plan that does not fit."""
        try:
            return cls._of(axes, config, mesh, train, backend, checked=checked)
        except WrongSize as error:
            make = partial(cls._of, axes, backend=backend, checked=True)
            error.narrowed = partial(way_out, error, config, mesh, train, make)
            raise
        except Infeasible as error:
            error.narrowed = partial(other_problems, error, config, mesh, train, partial(cls.of, axes, backend=backend))
            raise

    @classmethod
    def _of(
        cls,
        axes: Sequence[Axis],
        config: GPTConfig,
        mesh: MeshSpec,
        train: TrainConfig,
        backend: Backend,
        checked: bool,
    ) -> "Plan":
        asked = cls(config, mesh, train, tuple(axes), backend)
        require_options(asked.axes, train)
        options: dict[str, Any] = {**OFF, "unroll": train.layers_in_loop}
        for axis in asked.active:
            what = f"what `resolve` of the axis {axis.name} returned"
            options |= require_instance(axis.resolve(asked), Mapping, what, TypeError)
        plan = replace(asked, train=replace(train, **options))
        if train.unroll == "auto" and plan.unrolls_all_layers:
            plan = replace(plan, train=replace(plan.train, unroll=plan.layers))
        if checked:
            plan.require_fit()
        return plan

    @cached_property
    def lead(self) -> "Plan | None":
        """The plan of the leading dense layers, whose weights are gathered and whose gradients are summed as they run.

        Pipeline stages do not split them: each stage runs all of them, as part of the embedding.
        """
        return self._of_stack(self.config.lead) if self.config.lead else None

    @cached_property
    def mtp(self) -> "Plan | None":
        """The plan of the MTP block, which runs as part of the head. Pipeline stages do not split it, as `lead`."""
        if not self.config.mtp:
            return None
        plan = self._of_stack(self.config.mtp)
        # The model has one hook for all mixtures. By itself the plan, which has no stages, might choose another.
        vars(plan)["grouped_matmuls"] = self.grouped_matmuls
        return plan

    def _of_stack(self, config: GPTConfig) -> "Plan":
        train = replace(self.train, prefetch="off", reduce="step")
        axes = tuple(axis for axis in self.axes if "layers" not in axis.dims)
        return replace(self, config=config, train=train, axes=axes)

    @property
    def stacks(self) -> tuple["Plan", ...]:
        """Plans of the blocks, and of leading dense layers and the MTP block if any."""
        return tuple(plan for plan in (self, self.lead, self.mtp) if plan)

    @property
    def all_layers(self) -> int:
        """Slots for layers on one device, plus the MTP block and the leading dense layers."""
        return self.layers_and_mtp + self.config.dense_layers

    @property
    def layers_and_mtp(self) -> int:
        """Slots for layers on one device, plus the MTP block, which has the same parts."""
        return self.layers + self.head_uses - 1

    @property
    def head_uses(self) -> int:
        """Times that the head runs for each token: twice with multi-token prediction."""
        return 2 if self.config.mtp else 1

    @property
    def recomputed_prefix_layers(self) -> int:
        """Leading dense layers whose forward pass runs twice: a pipeline repeats it for the backward pass."""
        return self.config.dense_layers if self.staged else 0

    @property
    def pairs_in_one_loop(self) -> bool:
        """Whether both passes of a pair are one loop, as where all slots of stages have layers (layer_backward.py)."""
        return self.schedule.pairs and self.layer_slots == self.config.blocks

    @property
    def run_by_all_stages(self) -> Sequence[str]:
        """The options of layers that all stages of a pipeline run: leading dense layers, and the MTP block."""
        options = {"dense_layers": self.config.dense_layers, "mtp_loss": self.config.mtp_loss}
        return [f"{name}={value}" for name, value in options.items() if value and self.staged]

    @cached_property
    def share(self) -> Share:
        """What one device computes of a layer for one microbatch."""
        return self._share(self.grouped_matmuls)

    def _share(self, grouped_matmuls: GroupedMatmuls | None) -> Share:
        tokens, contexts = self.tokens // self.train.microbatches, self.size(*self.placement.tokens)
        return Share(
            self.held_config,
            self.train,
            tokens,
            tensors=self.tensors,
            contexts=contexts,
            ulysses=self.ulysses,
            kernel=self.kernel(),
            experts=self.size(*self.axes_of("experts")),
            grouped_matmuls=grouped_matmuls,
            sends_ragged=self.backend.sends_ragged,
        )

    @property
    def blocks_rows(self) -> bool:
        """Whether experts' rows are sorted into blocks: if nothing is dropped and loops gather no weights.

        It also holds before options are resolved; `grouped_matmuls` needs them resolved.
        """
        drops, gathers = self.config.capacity_factor is not None, self.backend.gathers_in_loops and self.shards > 1
        return self.config.experts is not None and not drops and not gathers

    @cached_property
    def grouped_matmuls(self) -> GroupedMatmuls | None:
        """How blocks of rows are multiplied; None without blocks.

        Kernels must exist for the devices and the dtype, and fit the blocks. A compiler's scheduler that reorders
        matmuls does not see matmuls in kernels and conditionals.
        """
        if not self.blocks_rows:
            return None
        if self.staged and self.schedule.splits_backward:
            return "loop"
        exists = self.backend.grouped_kernel and self.train.dtype != "float32" and grouped_kernel.available()
        if exists and fit_kernel(self._share("kernel")):
            return "kernel"
        return "loop" if self.backend.waits_at_conditionals else "skipping_loop"

    @property
    def loops_layers(self) -> bool:
        """Whether the layers are a loop in the program."""
        return is_loop(self.layers, self.train.layers_in_loop, needed=self.needs_loop)

    @property
    def needs_loop(self) -> bool:
        """Whether the layers are a loop even if one iteration runs all of them.

        They need no loop where a loop copies what it stacks, if layers send nothing but their counts of choices
        (model/layers.py).
        """
        within = self.size(*self.placement.tokens) > 1 or self.shards > 1
        within = within or any(axis.dims or axis.needs_loop for axis in self.active)
        return within or self.train.reduce == "layer" or not self.backend.copies_into_stacks

    @property
    def unrolls_all_layers(self) -> bool:
        """Whether `unroll="auto"` means all layers: if they need no loop and keep more than their inputs.

        Compile time grows with the layers. With experts no gain was measured, and the formulas overestimate memory
        (docs/experiments/2026-11-26-gpu-seconds.md).
        """
        plain = self.config.experts is None and self.train.remat != "full"
        return plain and not self.needs_loop and self.layers <= MOST_WITHOUT_LOOP

    @property
    def casts_ahead(self) -> bool:
        """Whether pipeline stages cast their weights once a step instead of once a microbatch.

        They do not if weights are gathered layer by layer, because their gradients are summed before rounding.
        """
        narrow = self.train.dtype != "float32"
        return self.staged and narrow and self.backend.copies_into_stacks and self.shards == 1

    def kernel(self, *, partitioned: bool = False) -> str:
        """The attention kernel; `partitioned` if the compiler partitions the step."""
        ring = 1 if self.ulysses else self.size(*self.placement.tokens)
        return kernel_for(self.backend, self.config, self.train, partitioned=partitioned, ring=ring)

    def choose(self, option: str, problem: str, default: bool, on: str = "on", off: str = "off") -> str:
        """The value of an option. `problem` says why it cannot be `on`; `default` is whether "auto" means `on`."""
        asked = getattr(self.train, option)
        if problem and asked == on:
            raise Infeasible(f"{option}={on} {problem}")
        return on if asked == on or (asked == "auto" and default and not problem) else off

    def require_fit(self) -> None:
        """Refuse what does not fit."""
        placement = self.placement
        if strange := self.over(set(self.mesh.sizes) - placement.axes):
            raise Infeasible(f"mesh {self.mesh} has the axis {strange[0]}, which splits nothing here")
        _require_muon(self)
        require_master(placement_of(tuple(axis for axis in self.axes if axis.name in self.mesh.sizes)), self.train)
        for axis in reversed(self.active):
            axis.require(self)
        require_parts(placement, self.held_config, self.mesh.sizes)
        self._require_batch()
        _ = self.logits_tokens

    def _require_batch(self) -> None:
        batch_size, split = self.train.batch_size, self.placement.batch
        parts = self.size(*split) * self.train.microbatches
        if batch_size % parts:
            names = [*(f"{axis}={self.size(axis)}" for axis in split), f"microbatches={self.train.microbatches}"]
            multiples = [size for size in (batch_size // parts * parts, -(-batch_size // parts) * parts) if size]
            rest = f"; or {legal(batch_size, 'the product')}"
            raise WrongSize(
                f"{' x '.join(names)} does not divide batch_size={batch_size}", "batch_size", multiples, rest
            )


def _require_muon(plan: Plan) -> None:
    """Refuse matrices that devices hold several times, and blocks that are whole matrices."""
    if plan.train.optimizer == "muon" and plan.key_copies > 1 and not plan.train.by_head:
        keys = plan.config.key_heads
        problem = f"tensor={plan.tensors} replicates key_heads={keys}, and optimizer=muon takes all keys as one matrix"
        raise Infeasible(f"{problem}; use by_head=True, or tensor={keys}")
    if plan.train.matrices == "block" and plan.tensors == 1:
        raise Infeasible("matrices=block changes nothing without tensor; use deal")
