"""The cases that options select: their strings are checked against the registry of strategies, and the devices."""

import argparse
import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, get_type_hints

import jax

from benchmarks.cases.case import COMMON_OPTIONS, Case, Selection, attention_of, option_texts
from benchmarks.cases.failures import reason_of
from benchmarks.cli.options import BATCH_SIZES, DEVICES, MODEL_KEYS
from benchmarks.cli.parser import commas
from benchmarks.cli.values import amount, count, switch
from benchmarks.devices.attached import skip_absent_tpus
from benchmarks.devices.placement import device_count
from benchmarks.devices.topology import Topology
from strategies import KNOWN_AS, PRESETS, STRATEGIES, GPTConfig, MeshSpec, TrainConfig
from strategies.config import NEEDS, needed_for
from strategies.costs.defaults import lacks_axis
from strategies.infeasible import Infeasible
from strategies.model.block import block_of
from strategies.names import unknown

OPTIONS = tuple(dict.fromkeys(itertools.chain(COMMON_OPTIONS, *(one.options for one in STRATEGIES.values()))))
"""Fields of `TrainConfig` that can be varied, for the strategies that have them."""

T = TypeVar("T")


def count_or_auto(text: str) -> int | str:
    """Parse a whole number of at least 1, or auto."""
    return text if text == "auto" else count(text)


PARSERS: dict[Any, Callable[[str], Any]] = {
    **{int: count, int | None: count, float: amount, bool: switch},
    get_type_hints(TrainConfig)["unroll"]: count_or_auto,
}
"""Parsers by the type of a `TrainConfig` field; fields of other types are strings."""


def model(option: argparse.Namespace, base: tuple[str, GPTConfig] | None = None) -> tuple[str, GPTConfig]:
    """The model that the options describe, or by which they vary `base`: its name with the sizes that differ from the
    preset's, and its configuration.

    Without `--preset` it is `nano`, or `nano-moe` where a strategy or a mesh is named `expert`. Of several attention
    windows or routings it has the first.
    """
    given = dict(option.model)
    sizes = {key: given[key] for key in MODEL_KEYS if key in given}
    name = option.preset or ("nano-moe" if _names_experts(option) else "nano")
    name, config = base or (name, PRESETS[name])
    try:
        configs = [  # all of them, to check each
            dataclasses.replace(config, **sizes, attention_window=window, routing=routing)
            for window in option.attention_window or [config.attention_window]
            for routing in option.routing or [config.routing]
        ]
        block_of(configs[0])
    except Infeasible as error:
        changed = ",".join(option_texts(tuple(sizes.items())))
        said = (name if base else f"--preset {name}") + (f" --model {changed}" if changed else "")
        raise ValueError(f"{said}: {error}") from error
    named = (f"{key}={value}" for key, value in sizes.items() if key not in attention_of(config))  # ids name those
    return ",".join([name, *named]), configs[0]


def _names_experts(option: argparse.Namespace) -> bool:
    """Whether the options name the strategy or the mesh axis `expert`; one strategy and mesh, or several."""
    strategies = [option.strategy] if isinstance(option.strategy, str) else option.strategy
    meshes = [option.mesh] if isinstance(option.mesh, str) else option.mesh or []
    return "expert" in strategies or any("expert" in mesh.sizes for mesh in known_meshes(meshes))


def selected(option: argparse.Namespace, found: tuple[str, GPTConfig] | None = None) -> Selection:
    """The selection that the options describe, of the model `found` if it is given. Starts JAX's backend."""
    absent, meshes = getattr(option, "topology", None), known_meshes(option.mesh)
    if absent:
        require_all_devices(absent, meshes, option.devices)
        absent.prepare()
    available = len(absent.devices()) if absent else available_devices()
    # Every process has an equal number of devices, or there is only one.
    shared = [n for n in DEVICES if n <= available and (n == 1 or n % jax.process_count() == 0)]
    default_counts = (available,) if absent else tuple(shared)
    if meshes and option.devices:
        raise ValueError("--mesh says how many devices it takes; remove --devices, or remove --mesh")
    preset, config = found or model(option)
    chosen = Selection(
        strategies=with_single(known_strategies(option.strategy), option.devices),
        meshes=meshes,
        devices=unique(option.devices) or default_counts,
        batch_sizes=unique(option.batch_size) or (default_counts if absent else BATCH_SIZES),
        microbatches=unique(option.microbatches),
        preset=preset,
        config=config,
        dtype=option.dtype,
        remat=option.remat,
        sparse=not (option.batch_size or option.devices or meshes),
        options=values_of(option.option),
        topology=absent,
        compiler_options=tuple(dict(option.compiler_option).items()),
        windows=unique(option.attention_window),
        routings=unique(option.routing),
    )
    given = option.preset or option.strategy or meshes or absent or chosen.windows or chosen.routings
    # In bfloat16 rounding may send a token to another expert, so devices do not compute what one device computes.
    if not given and chosen.dtype == "float32" and config == PRESETS["nano"]:
        largest, mixture = (max(chosen.batch_sizes),), PRESETS["nano-moe"]
        also = dataclasses.replace(chosen, preset="nano-moe", config=mixture, sparse=True, batch_sizes=largest)
        chosen = dataclasses.replace(chosen, mixture=also)
    require_axes(chosen.strategies, meshes)
    if not (cases := chosen.cases()):
        raise ValueError(_nothing_selected(chosen))
    require_options(chosen.options, cases)
    sizes = {case.mesh.size for case in cases}
    if lacking := [number for number in option.devices if number not in sizes]:
        raise ValueError(_nothing_selected(dataclasses.replace(chosen, devices=(lacking[0],))))
    return chosen


def available_devices() -> int:
    """Number of devices that JAX finds. TPUs that are not there are not looked for."""
    skip_absent_tpus()
    try:
        return jax.device_count()
    except (RuntimeError, AssertionError) as error:
        platforms = os.environ.get("JAX_PLATFORMS")
        where = f" where JAX_PLATFORMS is {platforms}" if platforms else ""
        why = reason_of(error) if str(error) else "no plugin for it is installed"  # JAX only asserts that there is one
        raise ValueError(f"JAX finds no devices{where}: {why}") from error


def values_of(given: Iterable[tuple[str, str]]) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """The options of strategies with all values that they are given, each of the type that `TrainConfig` has.

    >>> values_of([("unroll", "2,4"), ("sequence_parallel", "true"), ("unroll", "1,2")])
    (('unroll', (2, 4, 1)), ('sequence_parallel', (True,)))
    """
    varied: dict[str, list[Any]] = {}
    for name, text in given:
        if name not in OPTIONS:
            raise ValueError(f"--option: {name!r} is not an option of a strategy; use one of {', '.join(OPTIONS)}")
        if "=" in text:
            split = " ".join(f"--option {part}" for part in f"{name}={text}".split(","))
            raise ValueError(f"--option {name}={text}: commas separate values of one option; pass {split}")
        read = PARSERS.get(get_type_hints(TrainConfig)[name], str)
        try:
            values = commas(read)(text)
            for value in values:
                TrainConfig(batch_size=1, **{name: value})
        except (ValueError, argparse.ArgumentTypeError) as error:
            raise ValueError(f"--option {name}={text}: {error}") from error
        varied.setdefault(name, []).extend(values)
    return tuple((name, unique(values)) for name, values in varied.items())


def require_options(options: tuple[tuple[str, tuple[Any, ...]], ...], cases: Iterable[Case]) -> None:
    """Check that every given option affects a case."""
    unused = dict(options)
    for case in cases:
        for name, _ in case.options:
            unused.pop(name, None)
        if not unused:
            return
    for name in unused:
        having = ", ".join(strategy.name for strategy in STRATEGIES.values() if name in strategy.options)
        needs = [f"is one of {having}"] if having else []
        needs += [f"needs {needed_for(name)}"] if name in NEEDS else []
        raise ValueError(f"--option {name} changes none of the selected steps; it {' and '.join(needs)}")


def require_all_devices(topology: Topology, meshes: Iterable[MeshSpec], devices: Sequence[int] = ()) -> None:
    """Check that the options use all devices of a topology."""
    available = device_count(topology)
    if devices:
        raise ValueError(f"--topology {topology} always uses all of its {available} devices; remove --devices")
    for mesh in meshes:
        if mesh.size != available:
            raise ValueError(f"--mesh {mesh} takes {mesh.size} devices, and must take all {available} of {topology}")


def unique(values: Iterable[T]) -> tuple[T, ...]:
    """The values in order, without duplicates, because case ids must be unique."""
    return tuple(dict.fromkeys(values))


def known_strategies(names: Iterable[str]) -> tuple[str, ...]:
    """The names of strategies that the options give, without duplicates."""
    for name in names:
        if name not in STRATEGIES:
            raise ValueError(f"--strategy {unknown(name, 'strategy', STRATEGIES, KNOWN_AS)}")
    return unique(names)


def require_axes(strategies: Sequence[str], meshes: Sequence[MeshSpec]) -> None:
    """Check that a strategy that is named has all axes of a mesh that is named."""
    if (
        strategies
        and meshes
        and not any({*mesh.sizes} <= {*STRATEGIES[name].axis_names} for name in strategies for mesh in meshes)
    ):
        raise lacks_axis(strategies[0], meshes[0])


def with_single(strategies: tuple[str, ...], devices: Sequence[int]) -> tuple[str, ...]:
    """The strategies that are named, with `single` if one device is asked for beside others: no other has its mesh.

    >>> with_single(("fsdp",), [1, 2]), with_single(("fsdp",), [2]), with_single((), [1, 2])
    (('single', 'fsdp'), ('fsdp',), ())
    """
    brings = strategies and "single" not in strategies and len(devices) > 1 and 1 in devices
    return ("single", *strategies) if brings else strategies


def known_meshes(texts: Iterable[str]) -> tuple[MeshSpec, ...]:
    """The meshes that the options give, without duplicates."""
    return unique(map(MeshSpec.parse, texts))


def _nothing_selected(chosen: Selection) -> str:
    names = chosen.strategies or tuple(STRATEGIES)
    axes = "; ".join(f"{name} uses {', '.join(STRATEGIES[name].axis_names)}" for name in names)
    if chosen.meshes:
        where, way_out = f"--mesh {' or '.join(map(str, chosen.meshes))}", "name a --strategy as well"
    elif chosen.topology:
        where, way_out = f"--topology {chosen.topology}", "name one by --mesh, or another --topology"
    else:
        where = f"--devices {','.join(map(str, chosen.devices))}"
        way_out = "name one by --mesh, or another number by --devices"
    none = f"no case: none of {', '.join(names)} has a mesh of its own for {where} ({axes})"
    return f"{none}; {way_out}; single has data=1"
