"""The search space: strategies, meshes, microbatches, rematerialisation and options for a number of devices."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol, TypeVar, get_args

from benchmarks.cases import Case, CompilerOptions, Options, batch_shards, distinct_meshes, options_of
from benchmarks.devices.placement import device_count
from benchmarks.devices.topology import Topology
from strategies import STRATEGIES, GPTConfig, MeshSpec
from strategies.config import Dtype, Gather, PipelineSchedule, Remat
from strategies.costs.predict import known

VARIED = {"schedule": get_args(PipelineSchedule), "gather": get_args(Gather)}
"""Options that are varied by default."""

AXIS = {
    "schedule": "pipeline",
    "chunks": "pipeline",
    "gather": "fsdp",
    "regather": "fsdp",
    "prefetch": "fsdp",
    "sequence_parallel": "tensor",
    "halves": "tensor",
    "context_attention": "context",
}
"""The mesh axis that an option requires to have an effect."""

DOUBLINGS = 4
"""Largest number of microbatch counts to try per mesh."""


@dataclass(frozen=True)
class SearchSpace:
    """The search space for one model, batch and topology. Empty fields mean all choices.

    Attributes:
        topology: all of its devices are used.
        preset, config, batch_size, dtype: the work, as in `Case`.
        strategies: names; empty for all hand-written strategies with formulas.
        meshes: empty for all.
        microbatches: numbers of microbatches; empty for those of `microbatch_choices`.
        remats: what is recomputed in the backward pass.
        options: values of strategy options; they replace the default variation of that option.
        compiler_options: of every case.
    """

    topology: Topology
    preset: str
    config: GPTConfig
    batch_size: int
    dtype: Dtype
    strategies: tuple[str, ...] = ()
    meshes: tuple[MeshSpec, ...] = ()
    microbatches: tuple[int, ...] = ()
    remats: tuple[Remat, ...] = get_args(Remat)
    options: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    compiler_options: CompilerOptions = ()

    def cases(self) -> Iterator[Case]:
        """All cases of the space, feasible or not, each once."""
        for name, mesh in self.strategy_meshes():
            for parts in self.microbatches or microbatch_choices(name, mesh, self.batch_size):
                for options, remat in product(self._variations(name, mesh), self.remats):
                    work = self.preset, self.config, self.batch_size, parts, self.dtype, remat
                    yield Case(name, mesh, *work, options, self.topology, self.compiler_options)

    def strategy_meshes(self) -> Iterator[tuple[str, MeshSpec]]:
        """Pairs of strategies that have formulas, and their distinct meshes of all devices."""
        for name in self.strategies or tuple(known()):
            for mesh in distinct_meshes(name, device_count(self.topology)):
                if mesh in self.meshes or not self.meshes:
                    yield name, mesh

    @property
    def without_formulas(self) -> list[str]:
        """Strategies that are left out because there are no formulas of their communication."""
        return [name for name in STRATEGIES if name not in known() and name not in self.strategies]

    def _variations(self, name: str, mesh: MeshSpec) -> list[Options]:
        """All combinations of option values that have an effect on this strategy and mesh."""
        values_by_option = {
            option: values
            for option, values in (VARIED | dict(self.options)).items()
            if option in options_of(name) and (option not in AXIS or AXIS[option] in mesh.sizes)
        }
        variations = [
            tuple(zip(values_by_option, values, strict=True)) for values in product(*values_by_option.values())
        ]
        return list(dict.fromkeys(map(without_unused_chunks, variations)))


class HasCase(Protocol):
    """What is ranked in a search."""

    @property
    def case(self) -> Case:
        """The candidate."""
        ...


Ranked = TypeVar("Ranked", bound=HasCase)


def first_per_layout(ranked: Iterable[Ranked]) -> list[Ranked]:
    """The first of each strategy and set of mesh axes, in the same order."""
    first: dict[tuple[str, ...], Ranked] = {}
    for each in ranked:
        first.setdefault((each.case.strategy, *each.case.mesh.sizes), each)
    return list(first.values())


def without_unused_chunks(options: Options) -> Options:
    """The options without chunks, if the schedule has none.

    >>> without_unused_chunks((("schedule", "1f1b"), ("chunks", 4)))
    (('schedule', '1f1b'),)
    """
    unused = dict(options).get("schedule", "interleaved") != "interleaved"
    return tuple((name, value) for name, value in options if not (unused and name == "chunks"))


def microbatch_choices(name: str, mesh: MeshSpec, batch_size: int) -> list[int]:
    """Numbers of microbatches to try: from one, or from the number of pipeline stages, in powers of two.

    They divide a device's share of the batch. If none does, one number is returned all the same, and its row says why
    it is infeasible.

    >>> meshes = map(MeshSpec.parse, ("fsdp=16", "pipeline=8", "data=16,pipeline=8", "data=5"))
    >>> [microbatch_choices("three_d", mesh, 64) for mesh in meshes]
    [[1, 2, 4], [8, 16, 32, 64], [4], [1]]
    """
    stages, shards = mesh.sizes.get("pipeline", 1), batch_shards(name, mesh)
    if batch_size % shards:
        return [1]
    sequences, doubled = batch_size // shards, [stages << times for times in range(DOUBLINGS)]
    return [parts for parts in doubled if sequences % parts == 0] or [math.gcd(sequences, stages)]
