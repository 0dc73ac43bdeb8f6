"""What the options of `pytest benchmarks` mean, and the selection that they add up to."""

import argparse
import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, get_args, get_type_hints

import jax

from benchmarks.arguments import BATCH_SIZES, DEVICES, SIZES, commas, count
from benchmarks.cases import COMMON, Case, Selection
from benchmarks.cluster import processes
from benchmarks.devices.placement import device_count
from benchmarks.devices.topology import Topology
from benchmarks.failures import reason_of
from strategies import KNOWN_AS, PRESETS, STRATEGIES, GPTConfig, MeshSpec, TrainConfig
from strategies.config import Dtype, Infeasible, Remat
from strategies.names import unknown

OPTIONS = tuple(dict.fromkeys([*COMMON, *(name for each in STRATEGIES.values() for name in each.options)]))
"""Fields of `TrainConfig` that can be varied, of strategies that have them."""

T = TypeVar("T")


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
    there = len(absent.devices()) if absent else devices_there()
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
        sparse=not (option.batch_size or option.devices or option.mesh),
        options=values_of(option.option),
        topology=absent,
        compiler_options=tuple(dict(option.compiler_option).items()),
    )
    if not (cases := chosen.cases()):
        raise ValueError(_nothing_selected(chosen))
    require_options(chosen.options, cases)
    return chosen


def devices_there() -> int:
    """How many devices JAX finds.

    Raises:
        ValueError: it finds none, such as of a platform that is not installed.
    """
    try:
        return jax.device_count()
    except RuntimeError as error:
        told = os.environ.get("JAX_PLATFORMS")
        asked = f" where JAX_PLATFORMS is {told}" if told else ""
        raise ValueError(f"JAX finds no devices{asked}: {reason_of(error)}") from error


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


def one_of(what: str, legal: Iterable[str]) -> Callable[[str], str]:
    """A reader of names."""

    def read(text: str) -> str:
        if text not in legal:
            raise argparse.ArgumentTypeError(f"{text!r} is no {what}; there are {', '.join(legal)}")
        return text

    return read


preset = one_of("preset", PRESETS)
dtype, remat = one_of("dtype", get_args(Dtype)), one_of("way to rematerialise", get_args(Remat))


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
