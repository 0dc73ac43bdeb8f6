"""Steps of one model, machines whose kernels or links take no time, and the seconds of a step by part."""

from dataclasses import replace

from benchmarks.devices.topology import Topology
from benchmarks.simulate.machines import machine
from benchmarks.simulate.step import predict_seconds
from strategies import STRATEGIES, TrainConfig
from strategies.costs.predict import predict
from strategies.gpt_config import GPTConfig

LAYERS, EMBED, TOKENS, VOCAB = 8, 2048, 1024, 50304
MODEL = GPTConfig(layers=LAYERS, embed=EMBED, heads=16, sequence=TOKENS)
MIXTURE = replace(MODEL, experts=8, capacity_factor=1.0)
DROPLESS = replace(MODEL, experts=8)
PARAMETERS = EMBED * (VOCAB + TOKENS) + LAYERS * (12 * EMBED**2 + 13 * EMBED) + 2 * EMBED
BATCH, TIMES = 64, 2
MICROBATCH = BATCH // TIMES * TOKENS
"""Tokens of a microbatch on one device."""

H100 = machine("meshmark_gpus", "h100")
CHIP = H100.chip
NO_LATENCY = {"kernel_seconds": 0.0, "link_seconds": 0.0, "network_seconds": 0.0, "step_seconds": 0.0}
WHOLE = {"matmul_efficiency": 1.0, "attention_efficiency": 1.0, "memory_efficiency": 1.0, "matmul_dim": 0.0}
IDEAL = replace(
    H100,
    chip=replace(CHIP, cores=0),
    constants=replace(H100.constants, link_efficiency=1.0, network_efficiency=1.0, **NO_LATENCY, **WHOLE),
)
"""An H100 that reaches all of its specifications."""
UNLIMITED = 1e30
COMPUTING = replace(IDEAL, chip=replace(IDEAL.chip, memory_bytes_per_second=UNLIMITED))
"""Its kernels take the time of their FLOPs alone."""
SENDING = replace(COMPUTING, chip=replace(COMPUTING.chip, flops_per_second=UNLIMITED))
"""Its kernels take no time."""
HIDES_NOTHING = {"overlaps": ()}

UNSTAGED = {
    "single": ("single", "data=1", {}),
    "data": ("data", "data=16", {}),
    "zero1": ("zero1", "data=16", {}),
    "fsdp": ("fsdp", "fsdp=16", {}),
    "fsdp that keeps weights": ("fsdp", "fsdp=16", {"regather": False}),
    "fsdp that gathers once": ("fsdp", "fsdp=16", {"gather": "step"}),
    "hsdp": ("hsdp", "data=2,fsdp=8", {}),
    "tensor": ("tensor", "tensor=16", {}),
    "ring": ("context", "context=8", {"context_attention": "ring"}),
    "ulysses": ("context", "context=8", {"context_attention": "ulysses"}),
    "three_d": ("three_d", "data=2,fsdp=2,tensor=4", {}),
    "experts, tokens sent": ("expert", "data=2,expert=8", {"dispatch": "all_to_all", "model": MIXTURE}),
    "experts, rows sent": ("expert", "data=2,expert=8", {"dispatch": "all_to_all", "model": DROPLESS}),
    "experts, tokens gathered": ("expert", "data=2,expert=8", {"dispatch": "all_gather", "model": MIXTURE}),
}


def step(strategy, mesh, model=MODEL, **options):
    """The cost of a step whose gradients are summed after the backward pass."""
    usual = {"batch_size": BATCH, "microbatches": TIMES, "dtype": "bfloat16", "reduce": "step", "remat": "none"}
    return predict(strategy, model, mesh, STRATEGIES[strategy].applicable(TrainConfig(**usual | options)), "cuda")


def topology_of(cost):
    """H100s, eight on a host, as many as the mesh has."""
    size = cost.plan.mesh.size
    return Topology("h100", (max(1, size // 8), min(8, size)))


def seconds(cost, machine, topology=None, **changes):
    """Predicted parts of a step, where the stack is changed."""
    machine = replace(machine, stack=replace(machine.stack, **changes))
    return predict_seconds(cost, machine, topology or topology_of(cost)).parts


def changed(machine, **constants):
    """A machine with other constants."""
    return replace(machine, constants=replace(machine.constants, **constants))
