"""Every way to train a model on so many devices: strategies, meshes, microbatches, rematerialisation, options."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, get_args

from benchmarks.cases import Case, CompilerOptions, Options, batch_parts, options_of, own_meshes
from benchmarks.devices.placement import device_count
from benchmarks.devices.topology import Topology
from strategies import STRATEGIES, GPTConfig, MeshSpec
from strategies.config import Dtype, Gather, PipelineSchedule, Remat
from strategies.costs.predict import known

VARIED = {"schedule": get_args(PipelineSchedule), "gather": get_args(Gather)}
"""Options that are varied unless their values are asked for."""

AXIS = {
    "schedule": "pipeline",
    "chunks": "pipeline",
    "gather": "fsdp",
    "regather": "fsdp",
    "sequence_parallel": "tensor",
    "context_attention": "context",
}
"""The mesh axis without which an option makes no other step."""

DOUBLINGS = 4
"""How many numbers of microbatches are tried with each mesh at most."""


@dataclass(frozen=True)
class Space:
    """What is left open.

    Attributes:
        topology: all of whose devices are taken.
        strategies: names; none for all that are written by hand.
        meshes: none for all.
        microbatches: parts of a batch; none for those that `choices` tells.
        options: values of other options, besides those that are varied anyway, or instead.
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
        """All of them, whether they fit together or not, each once."""
        for name, mesh in self.spreads():
            for parts in self.microbatches or choices(name, mesh, self.batch_size):
                for options, remat in product(self._variations(name, mesh), self.remats):
                    work = self.preset, self.config, self.batch_size, parts, self.dtype, remat
                    yield Case(name, mesh, *work, options, self.topology, self.compiler_options)

    def spreads(self) -> Iterator[tuple[str, MeshSpec]]:
        """Strategies of which formulas are known, with their own meshes of all devices."""
        for name in self.strategies or tuple(known()):
            for mesh in own_meshes(name, device_count(self.topology)):
                if mesh in self.meshes or not self.meshes:
                    yield name, mesh

    @property
    def without_formulas(self) -> list[str]:
        """Strategies that are left out, for nothing is known of what they send."""
        return [name for name in STRATEGIES if name not in known() and name not in self.strategies]

    def _variations(self, name: str, mesh: MeshSpec) -> list[Options]:
        """Every combination of the values of options that make another step there."""
        own = {
            option: values
            for option, values in (VARIED | dict(self.options)).items()
            if option in options_of(name) and (option not in AXIS or AXIS[option] in mesh.sizes)
        }
        chosen = [tuple(zip(own, values, strict=True)) for values in product(*own.values())]
        return list(dict.fromkeys(map(without_idle, chosen)))


def without_idle(options: Options) -> Options:
    """The same without chunks where the schedule has none.

    >>> without_idle((("schedule", "1f1b"), ("chunks", 4)))
    (('schedule', '1f1b'),)
    """
    idle = dict(options).get("schedule", "interleaved") != "interleaved"
    return tuple((name, value) for name, value in options if not (idle and name == "chunks"))


def choices(name: str, mesh: MeshSpec, batch_size: int) -> list[int]:
    """Numbers of microbatches: from one on, or from as many as there are stages, each the double of the one before.

    They divide what a device gets of the batch. Where none does there is one number all the same, which says why not.

    >>> meshes = map(MeshSpec.parse, ("fsdp=16", "pipeline=8", "data=16,pipeline=8", "data=5"))
    >>> [choices("three_d", mesh, 64) for mesh in meshes]
    [[1, 2, 4], [8, 16, 32, 64], [4], [1]]
    """
    stages, shards = mesh.sizes.get("pipeline", 1), batch_parts(name, mesh)
    if batch_size % shards:
        return [1]
    sequences, doubled = batch_size // shards, [stages << times for times in range(DOUBLINGS)]
    return [parts for parts in doubled if sequences % parts == 0] or [math.gcd(sequences, stages)]
