"""The search space and the chip that the options of the search name."""

import argparse
from typing import get_args

from benchmarks.cases import attention_given, option_texts
from benchmarks.devices.chips import CHIPS, Chip
from benchmarks.devices.placement import device_count
from benchmarks.options import (
    model,
    require_all_devices,
    require_options,
    unique,
    values_of,
)
from benchmarks.search.candidates import SearchSpace
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
