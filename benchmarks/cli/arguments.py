"""Declaration of the options of `pytest benchmarks` without JAX, which the supervisor of a run never imports.

Values that need the strategy registry (`options.py`) are parsed later, in the measuring process, by `parse_deferred`.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from benchmarks.cli.defaults import (
    BATCH_SIZES,
    CASE_TIMEOUT,
    DEVICES,
    EXTRA_SECONDS,
    JOIN_TIMEOUT,
    LOST_AFTER,
    MIN_ROUNDS,
    ROUNDS,
    SIZES,
)
from benchmarks.commandline.values import commas, count, seconds, shown, whole
from strategies.config import AttentionPattern, Dtype, Remat
from strategies.presets import PRESETS

if TYPE_CHECKING:  # it takes longer to load than a help may
    import pytest

LISTED = "`meshmark strategies` lists them"
STRATEGY_HELP = f"such as fsdp,tensor; default: all; {LISTED}"

T = TypeVar("T")


class DeferredValue(str):
    """An option's value as given, to be parsed later.

    Attributes:
        flag: the option.
        read: the parser.
    """

    flag: str
    read: Callable[[str], Any]


def deferred(read: Callable[[str], T]) -> Callable[[str], T]:
    """Mark a parser that imports JAX."""
    read.deferred = True  # pyright: ignore[reportFunctionMemberAccess]
    return read


def add_options(parser: "pytest.Parser") -> None:
    """Declare the options of `pytest benchmarks`, once."""
    group = parser.getgroup("meshmark", "meshmark: what `pytest benchmarks` measures")
    if getattr(group, "options", None):
        return  # already declared by the conftest.py of a checkout
    declare_measuring(deferring(group.addoption))
    title = "meshmark: multi-process runs; start each process with the same options"
    declare_processes(parser.getgroup("meshmark-processes", title).addoption)


def declare_measuring(add: Callable[..., Any]) -> None:
    """Declare the options that select cases and say how they are measured."""
    declare(add)
    declare_text(add)
    add("--attribution", action="store_true", help="attribute each step's time to causes; also times variants of it")
    add("--checkpoint", action="store_true", help="also time saving and restoring each state, under TMPDIR")
    timeout = "seconds without progress; default: %(default)s"
    add("--case-timeout", type=seconds, metavar="S", default=CASE_TIMEOUT, help=timeout)
    profile = "write profiles of device memory for pprof, and count the bytes of live arrays by what holds them"
    add("--memory-profile", type=Path, metavar="DIR", help=profile)
    add("--compile-only", action="store_true", help="compile and analyse each step, and run nothing")
    add("--topology", type=topology, metavar="TOPOLOGY", help="compile for these devices, such as v5p:4x4x4")
    machine = (
        "machine file, by name or path (`meshmark calibrate` writes one): also predict the time of each step by it"
    )
    add("--machine", metavar="FILE", help=machine)
    times = f"timed blocks per case; default: {ROUNDS}, and more if these take less than {EXTRA_SECONDS:g} seconds"
    add("--rounds", type=rounds, metavar="N", help=times)
    add("--resume", action="store_true", help="continue the interrupted run with the same --benchmark-json")
    add("--trace-dir", type=Path, metavar="DIR", help="write a profiler trace of each case, apart from timed blocks")


def declare_processes(add: Callable[..., Any]) -> None:
    """Declare the options by which processes find each other."""
    clusters = "SLURM, Open MPI, Kubernetes or a TPU host"
    add("--distributed", action="store_true", help=f"find the other processes through {clusters}")
    add(
        "--coordinator",
        metavar="HOST:PORT",
        help="find the other processes here: the host of process 0, and a free port",
    )
    add("--processes", type=count, metavar="N", help="number of processes, with --coordinator")
    add("--process-id", type=index, metavar="I", help="number of this process, with --coordinator; 0 writes the report")
    join = "seconds for all processes to find each other; default: %(default)s"
    add("--join-timeout", type=seconds, metavar="S", default=JOIN_TIMEOUT, help=join)
    lost = "seconds without heartbeat after which a process counts as lost, and all end; default: %(default)s"
    add("--lost-after", type=seconds, metavar="S", default=LOST_AFTER, help=lost)


def declare(add: Callable[..., Any]) -> None:
    """Declare the options that select cases.

    Args:
        add: pytest's or argparse's method to add an option. Invalid values are rejected by parsers that name the valid
            ones.
    """
    repeatable = {"action": "extend", "default": []}
    numbers, sizes = (", ".join(map(str, defaults)) for defaults in (DEVICES, BATCH_SIZES))
    devices = f"numbers of devices; default: {numbers}, or as many of these as there are; with --topology all devices"
    batch_sizes = f"sequences in a global batch; default: {sizes}; with --topology one per device"
    add("--strategy", type=commas(strategy), metavar="NAME,...", **repeatable, help=STRATEGY_HELP)
    add("--devices", type=commas(count), metavar="N,...", **repeatable, help=devices)
    add("--mesh", type=mesh, metavar="MESH", action="append", default=[], help="such as data=2,tensor=4; repeatable")
    add("--batch-size", type=commas(count), metavar="N,...", **repeatable, help=batch_sizes)
    add(
        "--microbatches",
        type=commas(count),
        metavar="N,...",
        **repeatable,
        help="per batch; default: 2 per pipeline stage, or 1",
    )
    declare_model(add)
    dtypes = f"{', '.join(get_args(Dtype))}: dtype of the computation; default: %(default)s"
    remats = f"{', '.join(get_args(Remat))}: what the backward pass recomputes; default: %(default)s"
    add("--dtype", type=dtype, metavar="DTYPE", default="float32", help=dtypes)
    add("--remat", type=remat, metavar="REMAT", default="dots", help=remats)
    options = f"options of strategies, such as schedule=gpipe,1f1b; {LISTED}; repeatable"
    add("--option", type=option, metavar="NAME=VALUE,...", **repeatable, help=options)
    declare_compiler(add)


def declare_text(add: Callable[..., Any]) -> None:
    """Declare the option for the training text."""
    add("--corpus", type=Path, metavar="FILE", help="the text to train on; default: the prose of pydoc_data.topics")


def declare_model(add: Callable[..., Any]) -> None:
    """Declare the options that describe the model."""
    models = f"the model: {', '.join(PRESETS)}; default: %(default)s"
    add("--preset", type=preset, metavar="PRESET", default="nano", help=models)
    for size in SIZES:
        add(f"--{size}", type=count, metavar="N", help=f"{size} of the model; default: the preset's")
    add("--untied", action="store_true", help="give the head its own weights instead of the embedding's")
    windows = "tokens that a token attends to, itself included, or `dense`; a list sweeps; default: dense"
    add("--attention-window", type=commas(window), metavar="W,...", action="extend", default=[], help=windows)
    strides = "sparse attention with this distance of far keys (strided) or these blocks (fixed)"
    add("--attention-stride", type=count, metavar="L", help=strides)
    patterns = f"with a stride: {', '.join(get_args(AttentionPattern))}; default: strided"
    add("--attention-pattern", choices=get_args(AttentionPattern), metavar="PATTERN", help=patterns)
    summaries = "with fixed: tokens at the end of a block that later blocks attend to; default: 1"
    add("--attention-summary", type=count, metavar="C", help=summaries)


def declare_compiler(add: Callable[..., Any]) -> None:
    """Declare the option for XLA options."""
    text = "an XLA option of the backend, such as xla_tpu_enable_latency_hiding_scheduler=true; repeatable"
    add("--compiler-option", type=compiler_option, metavar="NAME=VALUE", action="append", default=[], help=text)


def deferring(add: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method to add options: values whose parsers import JAX are kept as `DeferredValue`."""

    def add_unread(flag: str, **attributes: Any) -> None:
        read = attributes.get("type")

        def defer(text: str) -> Any:
            deferred_value = DeferredValue(text)
            deferred_value.flag, deferred_value.read = flag, read  # pyright: ignore[reportAttributeAccessIssue]
            return [deferred_value] if attributes.get("action") == "extend" else deferred_value

        add(flag, **attributes | ({"type": defer} if hasattr(read, "deferred") else {}))

    return add_unread


def parse_deferred(option: argparse.Namespace) -> None:
    """Parse the deferred values in place.

    Raises:
        ValueError: a value is invalid; with argparse's message.
    """
    for name, given in vars(option).items():
        if isinstance(given, DeferredValue):
            setattr(option, name, _read(given))
        elif isinstance(given, list) and any(isinstance(each, DeferredValue) for each in given):
            parsed = [_read(each) for each in given]
            setattr(option, name, [value for each in parsed for value in (each if isinstance(each, list) else [each])])


def _read(given: DeferredValue) -> Any:
    try:
        return given.read(str(given))
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"argument {given.flag}: {error}") from error


def window(text: str) -> int | None:
    """Parse the tokens of an attention window; None for dense attention."""
    return None if text == "dense" else count(text)


def index(text: str) -> int:
    """Parse the number of a process, from 0."""
    try:
        return whole(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not the number of a process; the first is 0") from None


def rounds(text: str) -> int:
    """Parse a number of rounds that allows for a 95% interval."""
    if (number := count(text)) < MIN_ROUNDS:
        problem = f"{number} rounds are too few for a 95% interval of a median"
        raise argparse.ArgumentTypeError(f"{problem}; give {MIN_ROUNDS} or more")
    return number


def compiler_option(text: str) -> tuple[str, str]:
    """Parse an XLA option with its value. Only the backend knows which names are valid.

    >>> compiler_option("xla_disable_hlo_passes=reduce-scatter-creator,all-reduce-combiner")
    ('xla_disable_hlo_passes', 'reduce-scatter-creator,all-reduce-combiner')
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not an option with a value; write it as xla_name=value")
    return name, value


def _in_options(name: str) -> Callable[[str], Any]:
    """A deferred parser from `options.py`, which is imported on its first use."""

    @deferred
    def read(text: str) -> Any:
        from benchmarks.cli import options

        return getattr(options, name)(text)

    read.__name__ = name
    return read


strategy, mesh, topology, option = map(_in_options, ("strategy", "mesh", "topology", "option"))
preset, dtype, remat = map(_in_options, ("preset", "dtype", "remat"))
