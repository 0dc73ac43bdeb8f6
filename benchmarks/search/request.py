"""The search space, the devices and the machine that the options of the search name."""

import argparse
from typing import get_args

import jax

from benchmarks.cases.case import attention_given, option_texts
from benchmarks.cli.options import (
    available_devices,
    model,
    require_all_devices,
    require_options,
    unique,
    values_of,
)
from benchmarks.devices.chips import CHIPS, Chip
from benchmarks.devices.placement import device_count
from benchmarks.devices.topology import CPU, Topology
from benchmarks.explain.memory import states_budget_bytes
from benchmarks.run.machine import use_virtual_devices
from benchmarks.search.candidates import SearchSpace
from benchmarks.seconds.at_hand import MEASURED_ONLY, topology_of
from benchmarks.seconds.machine import NOT_FITTED, START, Machine
from benchmarks.seconds.machines import machine, machine_for
from benchmarks.seconds.stack import MESHMARK
from strategies.config import Remat


def search_space(asked: argparse.Namespace) -> SearchSpace:
    """The search space that the options ask for.

    Raises:
        ValueError: several windows, sizes that no model has, a mesh of another number of devices, no candidate, or an
            unused option.
    """
    if len(asked.attention_window) > 1:
        windows = " or ".join(str(window or "dense") for window in asked.attention_window)
        raise ValueError(f"--attention-window {windows}: a search is for one model; give one window")
    name, config = model(asked)
    require_all_devices(asked.topology, asked.mesh)
    space = SearchSpace(
        asked.topology,
        ",".join([name, *option_texts(attention_given(config))]),
        config,
        asked.batch_size,
        asked.dtype,
        unique(asked.strategy),
        unique(asked.mesh),
        unique(asked.microbatches),
        unique(asked.remat) or get_args(Remat),
        values_of(asked.option),
        tuple(dict(asked.compiler_option).items()),
    )
    if not any(True for _ in space.strategy_meshes()):
        devices = device_count(asked.topology)
        raise ValueError(f"no candidate: no selected strategy has such a mesh of {devices} devices")
    require_options(space.options, space.cases())
    return space


def chosen_chip(asked: argparse.Namespace) -> Chip:
    """The chip whose specifications apply.

    Raises:
        ValueError: virtual devices without --chip, or --chip for a topology that has its own specifications.
    """
    own = asked.topology.chip
    if own and asked.chip:
        virtual = f"cpu:{device_count(asked.topology)} as {asked.chip}"
        raise ValueError(f"{asked.topology} has its own specifications; leave --chip out, or take {virtual}")
    if own is None and asked.chip is None:
        raise ValueError(f"{asked.topology} has no specifications to rank by; name a chip, such as --chip v5e")
    return own or CHIPS[asked.chip]


def topology_here() -> Topology:
    """The devices of this process, which are virtual where there is no accelerator.

    Raises:
        ValueError: JAX finds none, or nothing is known of them.
    """
    use_virtual_devices()
    available_devices()
    return topology_of(jax.devices())


def chosen_machine(asked: argparse.Namespace, topology: Topology) -> Machine:
    """The machine that the options name, or the one that is packaged for such devices.

    Raises:
        ValueError: there is none, it is one of other devices, a specification cannot be set, the network between hosts
            is not known, or the devices are virtual and nothing is measured.
    """
    if topology.is_virtual:
        return virtual_machine(asked, topology)
    if not asked.machine and topology.kind == CPU:
        way_out = "meshmark calibrate --out mine.json, and give --machine mine.json"
        raise ValueError(f"CPUs differ too much to predict by a packaged file; measure yours: {way_out}")
    if asked.machine:
        its = machine(asked.machine, topology.chip and topology.kind)
    else:
        its = machine_for(topology.kind, MESHMARK.name, topology.hosts)
    if its.chip.platform != topology.platform:
        raise ValueError(f"machine {its.name} is one of {its.chip.platform} devices, and {topology} is not")
    its = its.with_changes(dict(asked.set))
    return its.between_hosts() if topology.hosts > 1 else its


PREDICTIONS = "machine", "set", "scaling", "compile", "tokens", "trace", "all"
"""Options about predictions, of which there are none on virtual devices."""


def virtual_machine(args: argparse.Namespace, topology: Topology) -> Machine:
    """A machine that puts candidates on virtual devices into an order, in which some are measured.

    Its rates are not those of any host: a byte of memory counts as ten FLOPs, and a byte that is sent as a hundred.

    Raises:
        ValueError: nothing is measured, or an option is about predictions.
    """
    if not args.measure:
        raise ValueError(f"{topology}: {MEASURED_ONLY}; give --devices here --measure 8")
    if given := [name for name in PREDICTIONS if getattr(args, name)]:
        raise ValueError(f"--{given[0]} is about predictions, and {MEASURED_ONLY}; leave it out")
    memory_bytes = 2 * (states_budget_bytes() or MOST_BYTES) // device_count(topology)
    chip = Chip(CPU, 1e11, memory_bytes, 1e10, 1e9, 0, 0, 0, 1e9, "assumed")
    return Machine("order", chip, chip.flops_per_second, 0, MESHMARK, START, 1.0, f"{NOT_FITTED}: an order of work")


MOST_BYTES = 2**40
"""Memory of a host that does not say how much it has."""
