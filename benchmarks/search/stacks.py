"""The search space of another stack: its meshes, chunks of layers on a stage, and devices that split the experts.

A candidate is priced as a published run with these columns would be (benchmarks/simulate/published.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from benchmarks.cases.case import Case
from benchmarks.devices.placement import device_count
from benchmarks.search.candidates import SearchSpace
from benchmarks.simulate.machine import Machine
from benchmarks.simulate.machines import machine, machine_for, machine_kinds
from benchmarks.simulate.published import DTYPES, PublishedRun, run_under
from benchmarks.simulate.published_row import AXES, Published
from benchmarks.simulate.stack import Stack
from benchmarks.simulate.stacks import KEMPNERFORGE, MAXTEXT, MEGATRON_BRIDGE, MEGATRON_CORE, MESHMARK, TORCHTITAN
from strategies.config import Remat
from strategies.core.placement import size_of
from strategies.gpt_config import GPTConfig
from strategies.infeasible import divisors
from strategies.mesh import MeshSpec, factorisations

MODELS = {"gpt2": "gpt3", "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""Kinds of blocks -> the name of a model in a row that says so."""
SEARCHED: Mapping[str, tuple[Stack, ...]] = {
    "megatron": (MEGATRON_BRIDGE, MEGATRON_CORE),
    "megatron-core": (MEGATRON_CORE,),
    "torchtitan": (TORCHTITAN,),
    "maxtext": (MAXTEXT,),
    "kempnerforge": (KEMPNERFORGE,),
}
"""What `--stack` can be besides meshmark -> the stack; of several, the first with constants for the devices."""
RECOMPUTE: dict[Remat, str] = {"none": "none", "dots": "selective", "full": "full"}


@dataclass(frozen=True, kw_only=True)
class StackSpace(SearchSpace):
    """The search space of a stack.

    Attributes:
        stack: its meshes are combined with all numbers of microbatches, of chunks and of devices that split experts.
    """

    stack: Stack

    def cases(self) -> Iterator[Case]:
        """All cases of the space, feasible or not, each once."""
        for name, mesh in self.strategy_meshes():
            chunks, experts = self.chunks(mesh), self.expert_sizes(mesh)
            for parts, count, size in product(self.microbatches or self.numbers(mesh), chunks, experts):
                chosen = {"virtual_stages": count, "expert": size}
                options = tuple((option, value) for option, value in chosen.items() if value)
                for remat in self.remats:
                    work = self.preset, self.config, self.batch_size, parts, self.dtype, remat
                    yield Case(name, mesh, *work, options, self.topology)

    def strategy_meshes(self) -> Iterator[tuple[str, MeshSpec]]:
        """The name of the stack, with each of its meshes of all devices. The tensor axis lies inside a host."""
        of_sets = (factorisations(axes, device_count(self.topology)) for axes in self.stack.meshes)
        for mesh in dict.fromkeys(mesh for meshes in of_sets for mesh in meshes):
            sizes = mesh.sizes
            if sizes.get("tensor", 1) > self.topology.shape[-1]:
                continue
            if sizes.get("expert", 1) > 1 and (self.config.experts or 1) % sizes["expert"]:
                continue
            # Devices that shard all that they can are along fsdp; along data there are replicas of those.
            if self.stack.recipe.optimizer_sharded == "zero3" and "data" in sizes and "fsdp" not in sizes:
                continue
            if mesh in self.meshes or not self.meshes:
                yield self.stack.name, mesh

    def numbers(self, mesh: MeshSpec) -> list[int]:
        """Numbers of microbatches: of 1, 2, 4, ... sequences, and without stages one of all sequences."""
        replicas = mesh.size // size_of(("pipeline", "context", "tensor"), mesh.sizes)
        if self.batch_size % replicas:
            return [1]
        sequences = self.batch_size // replicas
        sizes = [1 << power for power in range(sequences.bit_length()) if sequences % (1 << power) == 0]
        found = {sequences // size for size in sizes} | ({1} if "pipeline" not in mesh.sizes else set())
        return sorted(found)

    def chunks(self, mesh: MeshSpec) -> Sequence[int | None]:
        """Numbers of chunks of layers on a stage. Embedding and loss may count as layers; None without stages."""
        stages, layers = mesh.sizes.get("pipeline", 1), self.config.layers
        if stages == 1:
            return [None]
        counts = [count for total in (layers, layers + 2) if total % stages == 0 for count in divisors(total // stages)]
        return sorted({count for count in counts if stages * count <= layers}) or [1]

    def expert_sizes(self, mesh: MeshSpec) -> Sequence[int | None]:
        """Numbers of devices, of those along other axes, that split the experts; None if that is not a choice.

        They are along the tensor axis first. Without it there, this axis splits each expert.
        """
        if not self.config.experts or any("expert" in axes for axes in self.stack.meshes):
            return [None]
        tensor, replicas = mesh.sizes.get("tensor", 1), size_of(("data", "fsdp"), mesh.sizes)
        sizes = {tensor * size for size in divisors(replicas)} | {1}
        return [size for size in sorted(sizes) if self.config.experts % size == 0]


def row_of(case: Case, stack: Stack) -> Published:
    """A case of a stack as a published run would say it."""
    config, options, topology = case.config, dict(case.options), case.topology
    assert topology
    expert_mlp = config.expert_mlp or config.mlp_dim
    axes: dict[str, Any] = {axis: case.mesh.sizes.get(axis, 1) for axis in AXES}
    return Published(
        stack=stack.name,
        device=topology.kind,
        devices=case.mesh.size,
        devices_per_host=topology.shape[-1],
        model=MODELS[config.block],
        layers=config.layers,
        embed=config.embed,
        heads=config.heads,
        kv_heads=config.key_heads or config.heads,
        head_dim=config.head_dim,
        mlp=config.mlp_dim,
        vocab=config.vocab,
        tied=config.tied,
        sequence=config.sequence,
        experts=config.experts,
        experts_per_token=config.experts_per_token,
        expert_mlp=expert_mlp if config.experts else None,
        dense_layers=config.dense_layers if config.experts else None,
        shared_experts=config.shared_mlp // expert_mlp if config.shared_mlp else None,
        expert=options.get("expert") or case.mesh.sizes.get("expert"),
        batch_size=case.batch_size,
        microbatches=case.microbatches,
        virtual_stages=options.get("virtual_stages") or 1,
        recompute=RECOMPUTE[case.remat],
        dtype=case.dtype,
        capacity_factor=config.capacity_factor or 1.0,
        **axes,
    )


def run_of_case(case: Case, stack: Stack) -> PublishedRun:
    """A case of a stack as a run of it.

    Raises:
        Infeasible: model, mesh and batch do not fit together.
    """
    return run_under(row_of(case, stack), stack)


def stack_named(name: str, kind: str) -> Stack:
    """The stack of a name in `SEARCHED`: of several, the first with a machine file for the kind of devices.

    Raises:
        ValueError: there is none; the message names those that there are.
    """
    if name == MESHMARK.name:
        return MESHMARK
    if name not in SEARCHED:
        raise ValueError(f"--stack {name}: it can be {', '.join([MESHMARK.name, *SEARCHED])}")
    found = SEARCHED[name]
    return next((stack for stack in found if kind in machine_kinds(stack.fitted_as)), found[0])


def machine_under(stack: Stack, kind: str, hosts: int, path: str) -> Machine:
    """The machine of devices under a stack.

    Raises:
        ValueError: there is no machine file for such devices under the stack, or the one of the path is of another.
    """
    if path:
        chosen = machine(path, kind)
        if chosen.stack.name != stack.fitted_as:
            raise ValueError(f"machine {chosen.name} is one of {chosen.stack.name}, and --stack is {stack.name}")
    elif kind not in machine_kinds(stack.fitted_as):
        stacks = dict.fromkeys(one for several in SEARCHED.values() for one in several)
        known = "; ".join(f"{one.name} on {', '.join(machine_kinds(one.fitted_as))}" for one in stacks)
        raise ValueError(f"no machine file has {kind} under {stack.name}; there are: {known}; or give --machine FILE")
    else:
        chosen = machine_for(kind, stack.fitted_as, hosts)
    return chosen.running(stack)


def require_expressible(config: GPTConfig, dtype: str, stack: Stack) -> None:
    """Refuse a model that no published row could describe.

    Raises:
        ValueError: its blocks, attention, routing, experts or dtype are not known under other stacks than meshmark.
    """
    expert_mlp = config.expert_mlp or config.mlp_dim
    problems = {
        f"there are no formulas for {config.block} blocks; there are for {', '.join(MODELS)}": config.block
        not in MODELS,
        "attention is dense; leave window and stride out": config.attention_window or config.attention_stride,
        "all layers have full attention": config.full_attention_every,
        "experts are balanced; leave --routing out": config.experts and config.routing not in ("learned", "balanced"),
        "shared_mlp is that of whole experts": config.shared_mlp and config.shared_mlp % expert_mlp,
        f"dtype {dtype} is not known; {' and '.join(dict.fromkeys(DTYPES.values()))} are": dtype not in DTYPES,
    }
    for problem, occurs in problems.items():
        if occurs:
            raise ValueError(f"--stack {stack.name}: {problem}")
