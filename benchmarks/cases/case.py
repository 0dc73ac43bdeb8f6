"""Cases, and the selection of strategies, meshes, batch sizes and options that expands into them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

import jax

from benchmarks.devices.topology import Topology
from strategies import STRATEGIES, GPTConfig, Infeasible, MeshSpec, TrainConfig
from strategies.backends.backend import Backend, backend_for, backend_of
from strategies.backends.device_mesh import first_devices
from strategies.config import Dtype, Remat, with_effect
from strategies.core.plan import Plan
from strategies.mesh import Devices
from strategies.registry import distinct_meshes
from strategies.step import Step

RematOrAuto = Remat | Literal["auto"]
ONE_DEVICE = MeshSpec.parse("data=1")
COMMON_OPTIONS = (
    *("attention", "unroll", "logits_bytes", "z_loss", "loss_scale", "loss_scale_growth_steps"),
    *("optimizer", "by_head", "matrix_scale", "momentum", "nesterov", "momentum_dtype"),
)
"""Options that every strategy has, including `single`."""
Options = tuple[tuple[str, Any], ...]
CompilerOptions = tuple[tuple[str, str], ...]
"""Names of `TrainConfig` fields and of XLA's options, with values; XLA parses its own."""
ALL_TO_ALL = "dispatch", "all_to_all"  # how `auto` exchanges tokens, as an option of strategies by hand


@dataclass(frozen=True)
class Case:
    """One step to measure: a strategy on a mesh, with a model and a global batch of sequences.

    Attributes:
        preset: name of the model, with the sizes that were overridden.
        remat: "auto" until it is resolved (run/remat.py).
        options, compiler_options: those that were given.
        topology: topology of devices that need not be present, all of which are used; None for this machine's devices.
    """

    strategy: str
    mesh: MeshSpec
    preset: str
    config: GPTConfig
    batch_size: int
    microbatches: int
    dtype: Dtype
    remat: RematOrAuto
    options: Options = ()
    topology: Topology | None = None
    compiler_options: CompilerOptions = ()

    def __str__(self) -> str:
        """The test id, such as `fsdp-fsdp=8-b16` or `pipeline-pipeline=8-b16-schedule=gpipe`.

        It contains microbatches, experts, the attention and the routing only if they are not the default. Options are
        in alphabetical order, in whichever order they were given.
        """
        default = STRATEGIES[self.strategy].default_microbatches(self.mesh, self.batch_size)
        parts = () if self.microbatches == default else (("microbatches", self.microbatches),)
        parts += ((("experts", self.config.experts),) if self.config.experts else ()) + model_options(self.config)
        texts = option_texts((*parts, *sorted(self.options)))
        return "-".join([self.strategy, str(self.mesh), f"b{self.batch_size}", *texts])

    def build(self, **training: Any) -> Step:
        """Build the step on the case's devices, with some fields of its `TrainConfig` overridden."""
        return STRATEGIES[self.strategy].build(self.config, self.mesh, self.training(**training), self.devices)

    @property
    def devices(self) -> Devices:
        """The first devices of this machine, or those of the topology."""
        return self.topology.devices() if self.topology else first_devices(self.mesh.size)

    @property
    def backend(self) -> Backend:
        """The record of the devices."""
        absent = self.topology
        return backend_for(absent.platform, absent.device_kind) if absent else backend_of(jax.devices()[0])

    def training(self, **others: Any) -> TrainConfig:
        """Its training configuration as it was asked for, with the fields in `others` overridden."""
        given = {"dtype": self.dtype, "remat": self.remat, **dict(self.options), **others}
        return TrainConfig(self.batch_size, self.microbatches, **given)

    @property
    def resolved(self) -> TrainConfig:
        """Its training configuration, without "auto"; it raises `Infeasible` if a given option is impossible there."""
        strategy = STRATEGIES[self.strategy]
        if not strategy.has_formulas:
            return self.training()
        return Plan.of(strategy.axes, self.config, self.mesh, self.training(), self.backend, checked=False).train

    @property
    def has_formulas(self) -> bool:
        """Whether formulas are of its own step; if not, those of its twin are."""
        return STRATEGIES[self.strategy].has_formulas

    @property
    def single(self) -> "Case":
        """The same work on one device: the reference that this case is checked against and compared with."""
        parts = self.microbatches if self.config.balance_loss else 1  # experts are balanced over each microbatch
        return replace(self._with_strategy("single"), mesh=ONE_DEVICE, microbatches=parts)

    @property
    def twin(self) -> "Case | None":
        """The same work on the same mesh by a hand-written strategy; None unless the step is written on whole arrays.

        Where devices split experts the twin of `auto` has `dispatch="all_to_all"`, as the compiler exchanges tokens.
        """
        name = STRATEGIES[self.strategy].twins.get(tuple(self.mesh.sizes))
        twin = self._with_strategy(name) if name else None
        own = "dispatch" in options_of(self.strategy)
        exchanges = self.config.experts and "expert" in self.mesh.sizes and not own
        return replace(twin, options=(*twin.options, ALL_TO_ALL)) if twin and exchanges else twin

    @property
    def step_key(self) -> "tuple[Case, TrainConfig]":
        """Equal for two cases of the same step, however their options are given. An infeasible case has its own."""
        try:
            return replace(self, options=()), self.resolved
        except Infeasible:
            return self, self.training()

    def _with_strategy(self, strategy: str) -> "Case":
        """The same work by another strategy, with the options that it has."""
        options = tuple((name, value) for name, value in self.options if name in options_of(strategy))
        return replace(self, strategy=strategy, options=options)


@dataclass(frozen=True)
class Selection:
    """What a run should measure. Fields that `Case` has, too, are values of it, one or several.

    Attributes:
        strategies: empty for all.
        meshes: empty for the usual ones of each strategy on each of `devices`.
        microbatches: empty for `Strategy.default_microbatches`.
        sparse: measure a part that shows how time depends on devices and on the batch size (`_shown`).
        options: values to vary of further `TrainConfig` fields, for the strategies that have them.
        windows: attention windows of the model, None for dense attention; empty for that of `config`.
        routings: of tokens to experts; empty for that of `config`.
        mixture: of a mixture of experts, of which `single` and `expert` are measured besides.
    """

    strategies: tuple[str, ...]
    meshes: tuple[MeshSpec, ...]
    devices: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    microbatches: tuple[int, ...]
    preset: str
    config: GPTConfig
    dtype: Dtype
    remat: RematOrAuto
    sparse: bool = False
    options: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    topology: Topology | None = None
    compiler_options: CompilerOptions = ()
    windows: tuple[int | None, ...] = ()
    routings: tuple[str, ...] = ()
    mixture: "Selection | None" = None

    def cases(self) -> list[Case]:
        """All cases, ordered by model, by attention window and routing, then by batch size and then by strategy."""
        cases, mixture = self._varied(), self.mixture._varied() if self.mixture else []
        experts = [case for case in mixture if case.strategy in ("single", "expert")]
        further = _of_default_runs(cases) if self.mixture and not self.options else []
        return [*cases, *_missing_twins(cases), *further, *(experts if len(experts) > 1 else ())]

    def _varied(self) -> list[Case]:
        """The cases of this model."""
        strategy_meshes, common = list(self._strategy_meshes()), (self.topology, self.compiler_options)
        windows, routings = self.windows or [self.config.attention_window], self.routings or [self.config.routing]
        return [
            Case(name, mesh, self.preset, config, size, parts, self.dtype, self.remat, options, *common)
            for window, routing in product(windows, routings)
            for config in [replace(self.config, attention_window=window, routing=routing)]
            for size in self.batch_sizes
            for name, mesh in (self._shown(strategy_meshes, size) if self.sparse else strategy_meshes)
            for parts in self.microbatches or [STRATEGIES[name].default_microbatches(mesh, size)]
            for options in self._variations(name)
        ]

    def _shown(self, pairs: list[tuple[str, MeshSpec]], batch_size: int) -> list[tuple[str, MeshSpec]]:
        """The strategies and meshes that a sparse selection measures with a batch size.

        Named strategies have all their meshes with the largest batch, and with smaller ones the mesh with the most
        devices, then the most axes. By default a strategy has one mesh for each number of devices, the one with the
        most axes; smaller batches are measured on one device, and on the largest mesh of each single axis that splits
        the batch, for the first strategy that has it.
        """
        by_axes = sorted(pairs, key=lambda pair: len(pair[1].sizes))
        widest = dict(sorted(by_axes, key=lambda pair: pair[1].size))
        if batch_size == max(self.batch_sizes):
            of_each_size = {(name, mesh.size): mesh for name, mesh in by_axes}
            return [pair for pair in pairs if self.strategies or pair[1] == of_each_size[pair[0], pair[1].size]]
        splitting = [
            (name, mesh)
            for name, mesh in reversed(pairs)
            if len(mesh.sizes) == 1
            and (STRATEGIES[name].batch_shards(mesh) > 1 or STRATEGIES[name].default_microbatches(mesh, batch_size) > 1)
        ]
        first = {mesh: name for name, mesh in splitting} | {ONE_DEVICE: "single"}
        shown = [pair for pair in pairs if pair[1] == widest[pair[0]]]
        return shown if self.strategies else [(name, mesh) for name, mesh in shown if first.get(mesh) == name]

    def _strategy_meshes(self) -> Iterator[tuple[str, MeshSpec]]:
        """Pairs of strategies and meshes. If both were given, all pairs are returned, feasible or not; rows say why."""
        # `single` first, as the reference of all others.
        for name in sorted(self.strategies or default_strategies(), key=lambda name: name != "single"):
            for mesh in self.meshes or self._meshes(name):
                if self.strategies or not self.meshes or mesh in distinct_meshes(name, mesh.size):
                    yield name, mesh

    def _meshes(self, name: str) -> list[MeshSpec]:
        """Usual meshes of a strategy on each number of devices.

        A strategy with twins that was not asked for gets one mesh per set of axes, on the largest number of devices:
        its comparison with hand-written strategies is most visible there.
        """
        strategy, model = STRATEGIES[name], None if self.strategies else self.config
        if strategy.twins and not self.strategies:
            meshes = distinct_meshes(name, max(self.devices), model)
            return list({tuple(mesh.sizes): mesh for mesh in meshes}.values())
        meshes = (mesh for devices in self.devices for mesh in distinct_meshes(name, devices, model))
        return [mesh for mesh in meshes if strategy.is_usual(mesh)]

    def _variations(self, strategy: str) -> Iterator[Options]:
        """Combinations of values of the strategy's options that have an effect; one empty combination without any."""
        varied = [(name, values) for name, values in self.options if name in options_of(strategy)]
        combined = product(*([(name, value) for value in values] for name, values in varied))
        yield from dict.fromkeys(with_effect(options, self.dtype) for options in combined)


def default_strategies() -> list[str]:
    """Names of the strategies of a run or a search that names none."""
    return [name for name, strategy in STRATEGIES.items() if strategy.by_default]


def _of_default_runs(cases: Sequence[Case]) -> Iterator[Case]:
    """Further cases of default runs: `explicit` on auto's mesh of two axes, and Muon on the largest mesh of fsdp."""
    batch_size = max(case.batch_size for case in cases)
    of_fsdp = [case for case in cases if case.strategy == "fsdp" and case.batch_size == batch_size]
    yield from (replace(case, strategy="explicit") for case in cases if case.strategy == "auto" and case.mesh.axes[1:])
    if of_fsdp:
        yield replace(max(of_fsdp, key=lambda case: case.mesh.size), options=(("optimizer", "muon"),))


def _missing_twins(cases: Sequence[Case]) -> list[Case]:
    """Twins of cases, where the same without `ALL_TO_ALL` is among them and gathers tokens."""
    twins = dict.fromkeys(twin for case in cases if (twin := case.twin) and ALL_TO_ALL in twin.options)
    plain = {twin: replace(twin, options=twin.options[:-1]) for twin in twins}
    given = [twin for twin in twins if plain[twin] in cases]
    # What is sent does not depend on `remat`, which may be "auto".
    return [twin for twin in given if replace(plain[twin], remat="dots").step_key[1].dispatch == "all_gather"]


def attention_of(config: GPTConfig) -> dict[str, int | str | None]:
    """Options of a model's sparse attention, by their names in `GPTConfig`; None for what it does not have.

    >>> attention_of(GPTConfig(layers=1, embed=1, heads=1, attention_stride=8))
    {'attention_window': None, 'attention_stride': 8, 'attention_pattern': 'strided', 'attention_summary': None}
    """
    strided, fixed = config.attention_stride is not None, config.attention_pattern == "fixed"
    return {
        "attention_window": config.attention_window,
        "attention_stride": config.attention_stride,
        "attention_pattern": config.attention_pattern if strided else None,
        "attention_summary": config.attention_summary if fixed else None,
    }


def model_options(config: GPTConfig) -> Options:
    """The options of a model that ids have: those of its sparse attention, and a routing that is forced."""
    forced = {"routing": config.routing} if config.routing != "learned" else {}
    return tuple((name, value) for name, value in (attention_of(config) | forced).items() if value is not None)


def options_of(strategy: str) -> tuple[str, ...]:
    """Options that affect a strategy's step."""
    return (*COMMON_OPTIONS, *STRATEGIES[strategy].options)


def option_texts(options: Options) -> list[str]:
    """Options as written on the command line.

    >>> option_texts((("schedule", "gpipe"), ("sequence_parallel", False)))
    ['schedule=gpipe', 'sequence_parallel=false']
    """
    return [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in options]
