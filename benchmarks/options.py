"""The options of `pytest benchmarks`, and the selection that they add up to."""

import argparse
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import jax
import pytest

from benchmarks import processes
from benchmarks.cases import COMMON, Case, Selection
from benchmarks.placement import device_count
from benchmarks.topology import Topology
from strategies import KNOWN_AS, PRESETS, STRATEGIES, GPTConfig, MeshSpec, TrainConfig
from strategies.config import Dtype, Infeasible, Remat
from strategies.names import unknown

DEVICES = (1, 2, 8)
BATCH_SIZES = (8, 16)
CASE_SECONDS = 1.0
CASE_TIMEOUT = 600.0
LOST_AFTER = 30.0
SIZES = ("layers", "embed", "heads", "mlp", "vocab", "sequence")

OPTIONS = tuple(dict.fromkeys([*COMMON, *(name for each in STRATEGIES.values() for name in each.options)]))
"""Fields of `TrainConfig` that can be varied, of strategies that have them."""

T = TypeVar("T")


def add_options(parser: pytest.Parser) -> None:
    """Declare the options of `pytest benchmarks`."""
    group = parser.getgroup("meshmark", "meshmark: what `pytest benchmarks` measures")
    declare(group.addoption)
    declare_text(group.addoption)
    add = group.addoption
    add("--attribution", action="store_true", help="say of each step where its time goes; times variants of it, too")
    add("--case-seconds", type=seconds, metavar="S", default=CASE_SECONDS, help="timed a case; default: %(default)s")
    add("--case-timeout", type=seconds, metavar="S", default=CASE_TIMEOUT, help="without a sign; default: %(default)s")
    add("--compile-only", action="store_true", help="ask the compiler what each step does, and run nothing")
    add("--topology", type=topology, metavar="TOPOLOGY", help="compile for devices not there, such as v5p:4x4x4")
    add("--resume", action="store_true", help="go on with the run that was writing the same --benchmark-json")
    add("--trace-dir", type=Path, metavar="DIR", help="a profiler's trace of each case, apart from what is timed")
    together = parser.getgroup("meshmark-processes", "meshmark: several processes, started with the same options each")
    add = together.addoption
    add(
        "--distributed", action="store_true", help="find the others through SLURM, Open MPI, Kubernetes or a TPU's host"
    )
    add("--coordinator", metavar="HOST:PORT", help="find the others there: where process 0 runs, a port that is free")
    add("--processes", type=count, metavar="N", help="how many there are, with --coordinator")
    add("--process-id", type=index, metavar="I", help="which of them this is, with --coordinator; 0 writes the report")
    add(
        "--lost-after",
        type=seconds,
        metavar="S",
        default=LOST_AFTER,
        help="a dead process ends all; default: %(default)s",
    )


def declare(add: Callable[..., Any]) -> None:
    """Declare what selects cases, by pytest's or argparse's way to add an option.

    A bad value is refused by its parser, which names the legal ones.
    """
    several = {"action": "extend", "default": []}
    there = f"those of {DEVICES} that are there; a --topology is taken whole"
    sizes = f"{BATCH_SIZES}, or one for each device of a --topology"
    add("--strategy", type=commas(strategy), metavar="NAME,...", **several, help=f"default: {', '.join(STRATEGIES)}")
    add("--devices", type=commas(count), metavar="N,...", **several, help=f"default: {there}")
    add("--mesh", type=mesh, metavar="MESH", action="append", default=[], help="such as data=2,tensor=4; repeatable")
    add("--batch-size", type=commas(count), metavar="N,...", **several, help=f"sequences; default: {sizes}")
    add("--microbatches", type=commas(count), metavar="N,...", **several, help="of a batch; default: 2 a stage, or 1")
    declare_model(add)
    add("--dtype", choices=get_args(Dtype), default="float32", help="of the computation; default: %(default)s")
    add("--remat", choices=get_args(Remat), default="dots", help="what backward recomputes; default: %(default)s")
    add("--option", type=option, metavar="NAME=VALUE,...", **several, help=f"of {', '.join(OPTIONS)}; repeatable")
    declare_compiler(add)


def declare_text(add: Callable[..., Any]) -> None:
    """Declare what says on which text steps are trained, where they are."""
    add("--corpus", type=Path, metavar="FILE", help="the text to train on; default: the prose of pydoc_data.topics")


def declare_model(add: Callable[..., Any]) -> None:
    """Declare what says which model it is."""
    add("--preset", choices=tuple(PRESETS), default="nano", help="the model; default: %(default)s")
    for size in SIZES:
        add(f"--{size}", type=count, metavar="N", help="instead of the preset's")
    add("--untied", action="store_true", help="a head of its own instead of the embedding")


def declare_compiler(add: Callable[..., Any]) -> None:
    """Declare what the compiler is told."""
    text = "of XLA, for what its backend takes, such as xla_tpu_enable_latency_hiding_scheduler=true; repeatable"
    add("--compiler-option", type=compiler_option, metavar="NAME=VALUE", action="append", default=[], help=text)


def model(option: argparse.Namespace) -> tuple[str, GPTConfig]:
    """What the model is called, with the sizes that are not the preset's, and the model.

    Raises:
        ValueError: sizes that no model has.
    """
    sizes: dict[str, Any] = {size: getattr(option, size) for size in SIZES if getattr(option, size) is not None}
    sizes |= {"tied": False} if option.untied else {}
    try:
        config = dataclasses.replace(PRESETS[option.preset], **sizes)
    except Infeasible as error:
        raise ValueError(f"--preset {option.preset} with {sizes}: {error}") from error
    return ",".join([option.preset, *(f"{name}={size}" for name, size in sizes.items())]), config


def selected(option: argparse.Namespace) -> Selection:
    """What the options ask for. Starts the backend, to count devices.

    Raises:
        ValueError: options that contradict each other, sizes that no model has, no case at all, or devices that are
            not there, and no compiler for them either.
    """
    absent = getattr(option, "topology", None)
    if absent:
        require_whole(absent, option.mesh, option.devices)
        absent.prepare()
    there = len(absent.devices()) if absent else jax.device_count()
    usual = (there,) if absent else tuple(n for n in DEVICES if n <= there and shared_out(n))
    if option.mesh and option.devices:
        raise ValueError("--mesh says how many devices it takes; leave --devices out, or leave --mesh out")
    preset, config = model(option)
    chosen = Selection(
        strategies=unique(option.strategy),
        meshes=unique(option.mesh),
        devices=unique(option.devices) or usual,
        batch_sizes=unique(option.batch_size) or (usual if absent else BATCH_SIZES),
        microbatches=unique(option.microbatches),
        preset=preset,
        config=config,
        dtype=option.dtype,
        remat=option.remat,
        options=values_of(option.option),
        topology=absent,
        compiler_options=tuple(dict(option.compiler_option).items()),
    )
    if not (cases := chosen.cases()):
        raise ValueError(_nothing_selected(chosen))
    require_options(chosen.options, cases)
    return chosen


def values_of(given: Iterable[tuple[str, list[Any]]]) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """Options of strategies, each with all of the values that it is given.

    >>> values_of([("chunks", [2, 4]), ("gather", ["step"]), ("chunks", [1, 2])])
    (('chunks', (2, 4, 1)), ('gather', ('step',)))
    """
    varied: dict[str, list[Any]] = {}
    for name, values in given:
        varied.setdefault(name, []).extend(values)
    return tuple((name, unique(values)) for name, values in varied.items())


def require_options(options: tuple[tuple[str, tuple[Any, ...]], ...], cases: Iterable[Case]) -> None:
    """Refuse what would be asked for in vain.

    Raises:
        ValueError: an option that no case has.
    """
    strange = dict(options)
    for case in cases:
        for name, _ in case.options:
            strange.pop(name, None)
        if not strange:
            return
    for name in strange:
        having = ", ".join(each.name for each in STRATEGIES.values() if name in each.options)
        raise ValueError(f"--option {name} changes none of the selected steps; it is one of {having}")


def require_whole(topology: Topology, meshes: Iterable[MeshSpec], devices: Sequence[int] = ()) -> None:
    """Refuse what would leave out devices of a topology, or takes others.

    Raises:
        ValueError: a number of devices, or a mesh of another number than there are.
    """
    there = device_count(topology)
    if devices:
        raise ValueError(f"--topology {topology} is taken whole, all {there} devices; leave --devices out")
    for mesh in meshes:
        if mesh.size != there:
            raise ValueError(
                f"--mesh {mesh} takes {mesh.size} devices, and {topology} has {there}, all of which it takes"
            )


def shared_out(devices: int) -> bool:
    """Whether the processes can have equal parts of so many devices, or one has it to itself."""
    return devices == 1 or devices % processes.count() == 0


def unique(values: list[T]) -> tuple[T, ...]:
    """The values in order, each once: an id may not occur twice."""
    return tuple(dict.fromkeys(values))


def commas(read: Callable[[str], T]) -> Callable[[str], list[T]]:
    """A reader of lists.

    >>> commas(count)("8,16")
    [8, 16]
    """
    return lambda text: [read(part) for part in text.split(",")]


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count; give a whole number of at least 1")
    return int(text)


def whole(text: str) -> int:
    """A whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of them; give a whole number of at least 0")
    return int(text)


def index(text: str) -> int:
    """A whole number, counted from 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of a process; the first is 0")
    return int(text)


def seconds(text: str) -> float:
    """A positive number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; give a positive number of seconds, such as 2.5")
    return value


def strategy(text: str) -> str:
    """The name of a strategy."""
    if text not in STRATEGIES:
        raise argparse.ArgumentTypeError(unknown(text, "strategy", STRATEGIES, KNOWN_AS))
    return text


def option(text: str) -> list[tuple[str, list[Any]]]:
    """An option of strategies and its values, each of the kind that `TrainConfig` takes.

    >>> option("sequence_parallel=true,false")
    [('sequence_parallel', [True, False])]
    """
    name, _, values = text.partition("=")
    if name not in OPTIONS:
        raise argparse.ArgumentTypeError(f"{name!r} is no option of a strategy; there are {', '.join(OPTIONS)}")
    read = READERS.get(get_type_hints(TrainConfig)[name], str)
    try:
        found = commas(read)(values)
        for value in found:
            TrainConfig(batch_size=1, **{name: value})
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"--option {text}: {error}") from error
    return [(name, found)]


def compiler_option(text: str) -> tuple[str, str]:
    """An option of XLA and its value; whether there is one of that name is known to its backend alone.

    >>> compiler_option("xla_disable_hlo_passes=reduce-scatter-creator,all-reduce-combiner")
    ('xla_disable_hlo_passes', 'reduce-scatter-creator,all-reduce-combiner')
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is no option with a value; write it as xla_name=value")
    return name, value


def flag(text: str) -> bool:
    """True or false."""
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text == "true"


def topology(text: str) -> Topology:
    """Devices that are not there."""
    try:
        return Topology.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def mesh(text: str) -> MeshSpec:
    """A mesh as it is printed."""
    try:
        return MeshSpec.parse(text)
    except Infeasible as error:
        raise argparse.ArgumentTypeError(str(error)) from error


READERS: dict[Any, Callable[[str], Any]] = {int: count, int | None: count, float: float, bool: flag}
"""By the type of a field; a text is taken as it is."""


def _nothing_selected(chosen: Selection) -> str:
    names = chosen.strategies or tuple(STRATEGIES)
    axes = "; ".join(f"{name} uses {', '.join(STRATEGIES[name].axes)}" for name in names)
    where = f"--mesh {' or '.join(map(str, chosen.meshes))}" if chosen.meshes else f"--devices {chosen.devices}"
    return f"no case: none of {', '.join(names)} has a mesh of its own for {where} ({axes}); single has data=1"
