"""The search space, the devices and the machine that the options of a search name."""

import argparse
import os
from pathlib import Path
from typing import get_args

import jax

from benchmarks.cases import selection
from benchmarks.cases.case import model_options, option_texts
from benchmarks.cli.options import BUDGET_SECONDS, dashed
from benchmarks.cli.outputs import require_apart, require_file
from benchmarks.devices.attached import states_budget_bytes, topology_of
from benchmarks.devices.chips import Chip
from benchmarks.devices.placement import device_count
from benchmarks.devices.topology import CPU, Topology
from benchmarks.run.machine import use_virtual_devices
from benchmarks.search.candidates import SearchSpace
from benchmarks.search.scaled import powers_of_two, sized
from benchmarks.simulate.machine import NOT_FITTED, START, Machine
from benchmarks.simulate.machines import MEASURED_ONLY, machine, machine_for_run, nearest_machine
from strategies.config import Remat

SINGLE_TOPOLOGY_OPTIONS = "trace", "compile", "measure", "tokens", "all"
BELONGING = {"tokens": ("price",), "scaling": ("sequences_per_device",), "compile": ("workers",)}
"""Options -> those that have an effect with them alone."""


def prepared(args: argparse.Namespace) -> tuple[SearchSpace, Machine]:
    """The search space and the machine that the options ask for; its outputs can be written."""
    require_together(args)
    # Processes can be forked until JAX starts threads (`mapped`).
    args.at_once = 1 if args.topology == "here" or args.compile else os.cpu_count() or 1
    if args.topology == "here":
        use_virtual_devices()
        selection.available_devices()
        args.topology = topology_of(jax.devices())
    largest = sized(args.topology, powers_of_two(*args.scaling)[-1]) if args.scaling else args.topology
    chosen = chosen_machine(args, largest)
    space = search_space(of_smallest(args) if args.scaling else args)
    outputs = {f"--{name}": path for name in ("json", "trace") if (path := getattr(args, name))}
    require_apart(outputs, [Path(args.machine)] if args.machine else [])
    for path in outputs.values():
        require_file(path, "json")
    if args.compile:
        if args.topology.kind == CPU:
            problem = f"on {args.topology} no communication overlaps, as predictions assume"
            raise ValueError(f"--compile: {problem}; remove --compile")
        args.topology.require_compiler()
        args.topology.prepare()
        args.topology.devices()
    return space, chosen


def search_space(args: argparse.Namespace) -> SearchSpace:
    """The search space that the options ask for."""
    windows = [str(window or "dense") for window in args.attention_window]
    for option, values in (("attention-window", windows), ("routing", args.routing)):
        if len(values) > 1:
            raise ValueError(f"--{option} {' or '.join(values)}: a search is for one model; pass one {option}")
    name, config = selection.model(args)
    meshes = selection.known_meshes(args.mesh)
    selection.require_all_devices(args.topology, meshes)
    space = SearchSpace(
        args.topology,
        ",".join([name, *option_texts(model_options(config))]),
        config,
        args.batch_size,
        args.dtype,
        selection.known_strategies(args.strategy),
        meshes,
        selection.unique(args.microbatches),
        selection.unique(args.remat) or get_args(Remat),
        selection.values_of(args.option),
        tuple(dict(args.compiler_option).items()),
    )
    selection.require_axes(space.strategies, meshes)
    if not any(True for _ in space.strategy_meshes()):
        wanted = " or ".join(map(str, meshes)) or f"a mesh of {device_count(args.topology)} devices"
        experts = "" if space.config.experts else ", and the axis expert needs a model with experts"
        raise ValueError(f"no candidate: no selected strategy takes {wanted}{experts}; see `meshmark show`")
    selection.require_options(space.options, space.cases())
    return space


def require_together(args: argparse.Namespace) -> None:
    """Check that every option has an effect."""
    if args.measure and args.topology != "here":
        raise ValueError("--measure times steps on the devices of this machine; pass --topology here")
    if args.scaling and (given := [name for name in SINGLE_TOPOLOGY_OPTIONS if getattr(args, name)]):
        raise ValueError(f"--{given[0]} is of one topology; remove --scaling")
    if not args.compile and args.time_budget != BUDGET_SECONDS:
        raise ValueError("--time-budget is of --compile; pass --compile, too")
    for name, others in BELONGING.items():
        if not getattr(args, name) and (given := [other for other in others if getattr(args, other)]):
            raise ValueError(f"--{dashed(given[0])} is of --{name}; pass --{name}, too")


def of_smallest(args: argparse.Namespace) -> argparse.Namespace:
    """The options with the topology of the smallest size of --scaling, and of remat those that save memory."""
    if args.mesh:
        raise ValueError("--scaling chooses a mesh for each number of devices; remove --mesh")
    for devices in powers_of_two(*args.scaling):
        sized(args.topology, devices)
    others = {"topology": sized(args.topology, args.scaling[0]), "remat": args.remat or ["dots", "full"]}
    return argparse.Namespace(**{**vars(args), **others})


def chosen_machine(args: argparse.Namespace, topology: Topology) -> Machine:
    """The machine that the options name, or the one that is packaged for such devices."""
    if topology.is_virtual:
        return virtual_machine(args, topology)
    if args.machine:
        chosen = machine_for_run(args.machine, topology)
    elif topology.kind == CPU:
        way_out = "meshmark calibrate --out mine.json, and pass --machine mine.json"
        raise ValueError(f"CPUs differ too much to predict by a packaged file; measure yours: {way_out}")
    else:
        chosen = nearest_machine(topology.kind, "meshmark")
    chosen = chosen.with_changes(dict(args.set))
    return chosen.between_hosts() if topology.hosts > 1 else chosen


def virtual_machine(args: argparse.Namespace, topology: Topology) -> Machine:
    """A machine that puts candidates on virtual devices into an order, in which some are measured.

    Its rates are not those of any host: a byte of memory counts as ten FLOPs, and a byte that is sent as a hundred.
    """
    if not args.measure:
        raise ValueError(f"{topology}: {MEASURED_ONLY}; pass --topology here --measure 8")
    about_predictions = "machine", "set", "scaling", "compile", "tokens", "trace", "all"
    if given := [name for name in about_predictions if getattr(args, name)]:
        raise ValueError(f"--{given[0]} is about predictions, and {MEASURED_ONLY}; remove it")
    memory_bytes = 2 * (states_budget_bytes() or 2**40) // device_count(topology)  # of a host that does not say
    chip = Chip(CPU, 1e11, memory_bytes, 1e10, 1e9, 0, 0, 0, 1e9, "assumed")
    stack = machine("meshmark_tpus").stack
    return Machine("order", chip, stack, START, 1.0, f"{NOT_FITTED}: an order of work")
