"""Which steps are measured: a selection of strategies, meshes and batch sizes, multiplied out into cases."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from benchmarks.devices.topology import Topology
from strategies import STRATEGIES, GPTConfig, MeshSpec, TrainConfig
from strategies.config import Dtype, Remat
from strategies.mesh import Devices, first_devices
from strategies.step import Step

ONE_DEVICE = MeshSpec.parse("data=1")
COMMON = ("attention", "unroll", "logits_bytes", "z_loss")
"""Options of every strategy, `single` too."""

Options = tuple[tuple[str, Any], ...]
"""Fields of `TrainConfig` by name, with values."""
CompilerOptions = tuple[tuple[str, str], ...]
"""By XLA's names, with values as XLA reads them."""


@dataclass(frozen=True)
class Case:
    """One step to measure: a strategy on a mesh, with a model and a global batch of `batch_size` sequences.

    `options` are those that were asked for, of its strategy or of every one; `compiler_options` are the compiler's own;
    `topology` is that of devices that are not there, all of which it takes.
    """

    strategy: str
    mesh: MeshSpec
    preset: str
    config: GPTConfig
    batch_size: int
    microbatches: int
    dtype: Dtype
    remat: Remat
    options: Options = ()
    topology: Topology | None = None
    compiler_options: CompilerOptions = ()

    def __str__(self) -> str:
        """The test id, such as `fsdp-fsdp=8-b16` or `pipeline-pipeline=8-b16-schedule=gpipe`.

        It says how many microbatches there are where they are not as many as there are by default.
        """
        usual = default_microbatches(self.strategy, self.mesh, self.batch_size)
        parts = () if self.microbatches == usual else (("microbatches", self.microbatches),)
        return "-".join([self.strategy, str(self.mesh), f"b{self.batch_size}", *spelled((*parts, *self.options))])

    def build(self, **training: Any) -> Step:
        """The step, on its `devices`; `training` is what else is to be in its `TrainConfig`.

        Raises:
            Infeasible: strategy, mesh, model and batch do not fit together.
        """
        return STRATEGIES[self.strategy].build(self.config, self.mesh, self.training(**training), self.devices)

    @property
    def devices(self) -> Devices:
        """The first of those that are there, or those of its topology."""
        return self.topology.devices() if self.topology else first_devices(self.mesh.size)

    def training(self, **others: Any) -> TrainConfig:
        """How it is trained; `others` is what else is to be in it."""
        return TrainConfig(
            self.batch_size,
            self.microbatches,
            **{"dtype": self.dtype, "remat": self.remat, **dict(self.options), **others},
        )

    @property
    def single(self) -> "Case":
        """The same work on one device, whole: what this case is checked against and compared with."""
        return replace(self._by("single"), mesh=ONE_DEVICE, microbatches=1)

    @property
    def twin(self) -> "Case | None":
        """The same work on the same mesh by hand, where it is the compiler who partitions this case's step."""
        strategy = STRATEGIES.get(self.strategy)  # rows are kept of others, too
        name = strategy and strategy.twins.get(tuple(self.mesh.sizes))
        return self._by(name) if name else None

    def _by(self, strategy: str) -> "Case":
        """The same work by another strategy, with the options that it has."""
        has = options_of(strategy)
        return replace(self, strategy=strategy, options=tuple(each for each in self.options if each[0] in has))


@dataclass(frozen=True)
class Selection:
    """What a run is asked to measure.

    Attributes:
        strategies: names asked for; none for all.
        meshes: meshes asked for; none for the usual ones that the strategies have on each of `devices`.
        devices: how many devices to spread over, one count after another.
        batch_sizes: sequences in a global batch.
        microbatches: parts of a batch, one number after another; none lets `default_microbatches` choose.
        preset: the name of `config`, with the sizes that were overridden.
        sparse: batch sizes below the largest have `single`, and of each other strategy the mesh of the most devices
            with the most axes: how time depends on the batch is seen there.
        options: what else of `TrainConfig` to vary, and over which values, for the strategies that have it.
        topology: of the devices, where they are not there.
        compiler_options: of every case.
    """

    strategies: tuple[str, ...]
    meshes: tuple[MeshSpec, ...]
    devices: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    microbatches: tuple[int, ...]
    preset: str
    config: GPTConfig
    dtype: Dtype
    remat: Remat
    sparse: bool = False
    options: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    topology: Topology | None = None
    compiler_options: CompilerOptions = ()

    def cases(self) -> list[Case]:
        """Every strategy on its meshes, one batch size after another."""
        spreads, common = list(self._spreads()), (self.topology, self.compiler_options)
        widest = dict(sorted(spreads, key=lambda each: (each[1].size, len(each[1].sizes))))
        return [
            Case(name, mesh, self.preset, self.config, size, parts, self.dtype, self.remat, options, *common)
            for size in self.batch_sizes
            for name, mesh in spreads
            if not self.sparse or size == max(self.batch_sizes) or mesh == widest[name]
            for parts in self.microbatches or [default_microbatches(name, mesh, size)]
            for options in self._variations(name)
        ]

    def _spreads(self) -> Iterator[tuple[str, MeshSpec]]:
        """Strategies with meshes. Where both are asked for they go together, fit or not: the row will say why."""
        for name in sorted(self.strategies or STRATEGIES, key=lambda name: name != "single"):  # the others refer to it
            if self.strategies and self.meshes:
                yield from ((name, mesh) for mesh in self.meshes)
            elif self.meshes:
                yield from ((name, mesh) for mesh in self.meshes if mesh in own_meshes(name, mesh.size))
            else:
                yield from ((name, mesh) for mesh in self._meshes(name))

    def _meshes(self, name: str) -> list[MeshSpec]:
        """Its usual ones on each count of devices; if it was not asked for and has twins, those of the largest count.

        Of these one for each set of axes: what is by hand and what is the compiler's is compared once, where it shows.
        """
        strategy = STRATEGIES[name]
        if strategy.twins and not self.strategies:
            return list({tuple(mesh.sizes): mesh for mesh in own_meshes(name, max(self.devices))}.values())
        return [mesh for devices in self.devices for mesh in own_meshes(name, devices) if strategy.is_usual(mesh)]

    def _variations(self, strategy: str) -> Iterator[Options]:
        """Every combination of the values of its options; once without any, if none of these was asked for."""
        own = [(name, values) for name, values in self.options if name in options_of(strategy)]
        for chosen in product(*(values for _, values in own)):
            yield tuple((name, value) for (name, _), value in zip(own, chosen, strict=True))


def options_of(strategy: str) -> tuple[str, ...]:
    """The options that make another step of a strategy."""
    return (*COMMON, *STRATEGIES[strategy].options)


def spelled(options: Options) -> list[str]:
    """As they are given on the command line.

    >>> spelled((("schedule", "gpipe"), ("sequence_parallel", False)))
    ['schedule=gpipe', 'sequence_parallel=false']
    """
    return [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in options]


def own_meshes(name: str, devices: int) -> list[MeshSpec]:
    """A strategy's meshes of that many devices, without those on which it is only a simpler strategy again.

    One that the compiler partitions is none again, and no other is it.

    >>> [str(mesh) for mesh in own_meshes("hsdp", 8)]
    ['data=2,fsdp=4', 'data=4,fsdp=2']
    >>> [str(mesh) for mesh in own_meshes("auto", 4)]
    ['tensor=4', 'fsdp=2,tensor=2', 'fsdp=4', 'data=4']
    >>> own_meshes("fsdp", 1)
    []
    """
    strategy = STRATEGIES[name]
    if devices == 1 and strategy.most_devices > 1:
        return []
    by_hand = [] if strategy.twins else [other for other in STRATEGIES.values() if not other.twins]
    simpler = [other for other in by_hand if set(other.axes) < set(strategy.axes)]
    return [
        mesh for mesh in strategy.meshes(devices) if not any(set(mesh.sizes) <= set(other.axes) for other in simpler)
    ]


def default_microbatches(name: str, mesh: MeshSpec, batch_size: int) -> int:
    """As `Strategy.default_microbatches`, of the strategy of this name.

    >>> [default_microbatches("pipeline", MeshSpec.parse("pipeline=4"), batch) for batch in (16, 4, 6)]
    [8, 4, 2]
    """
    return STRATEGIES[name].default_microbatches(mesh, batch_size)


def batch_parts(name: str, mesh: MeshSpec) -> int:
    """As `Strategy.batch_parts`, of the strategy of this name.

    >>> batch_parts("three_d", MeshSpec.parse("data=2,fsdp=2,tensor=2"))
    4
    """
    return STRATEGIES[name].batch_parts(mesh)
