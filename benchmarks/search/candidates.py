"""The search space: strategies, meshes, microbatches, rematerialisation and options for a number of devices."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, product
from typing import Any, get_args

from benchmarks.cases.case import COMMON_OPTIONS, Case, CompilerOptions, Options, default_strategies
from benchmarks.devices.placement import device_count
from benchmarks.devices.topology import Topology
from strategies import STRATEGIES, GPTConfig, MeshSpec
from strategies.config import Dtype, Gather, PipelineSchedule, Remat, with_effect
from strategies.registry import distinct_meshes

VARIED = {"schedule": tuple(each for each in get_args(PipelineSchedule) if each != "gpipe"), "gather": get_args(Gather)}
"""Options that are varied by default. GPipe takes as long as eager-1f1b, and holds more."""


@dataclass(frozen=True)
class SearchSpace:
    """The search space for one model, batch and topology, all of whose devices are used; fields are as in `Case`.

    Without strategies, all hand-written ones with formulas are tried; without meshes, all; without microbatches, the
    `microbatch_choices`. Values of strategy options replace the default variation of that option.
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
        for name in self.strategies or [each for each in default_strategies() if STRATEGIES[each].has_formulas]:
            for mesh in distinct_meshes(name, device_count(self.topology), self.config):
                if mesh in self.meshes or not self.meshes:
                    yield name, mesh

    def _variations(self, name: str, mesh: MeshSpec) -> list[Options]:
        """All combinations of option values that have an effect on this strategy and mesh."""
        of_axes = (axis.options for axis in STRATEGIES[name].axes if axis.name in mesh.sizes)
        known = {*COMMON_OPTIONS, *chain.from_iterable(of_axes)}
        varied = {option: values for option, values in (VARIED | dict(self.options)).items() if option in known}
        variations = (tuple(zip(varied, values, strict=True)) for values in product(*varied.values()))
        return list(dict.fromkeys(with_effect(options, self.dtype) for options in variations))


def microbatch_choices(name: str, mesh: MeshSpec, batch_size: int) -> list[int]:
    """Numbers of microbatches to try: from one, or from the number of pipeline stages, in powers of two.

    They divide a device's share of the batch, down to microbatches of one sequence. If none does, one number is
    returned all the same, and its row says why it is infeasible.

    >>> meshes = map(MeshSpec.parse, ("fsdp=16", "pipeline=8", "data=16,pipeline=8", "data=5"))
    >>> [microbatch_choices("three_d", mesh, 128) for mesh in meshes]
    [[1, 2, 4, 8], [8, 16, 32, 64, 128], [8], [1]]
    """
    stages, shards = mesh.sizes.get("pipeline", 1), STRATEGIES[name].batch_shards(mesh)
    if batch_size % shards:
        return [1]
    sequences = batch_size // shards
    doubled = [stages << times for times in range((sequences // stages).bit_length())]
    return [parts for parts in doubled if sequences % parts == 0] or [math.gcd(sequences, stages)]
