"""The options of `pytest benchmarks`, declared without JAX: the supervisor of a run knows them, and never loads it.

What takes the registry of strategies to read (`options.py`) is read late: by `read_late`, in the process that measures.
"""

import argparse
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from strategies.config import PRESETS, Dtype, Remat

if TYPE_CHECKING:  # it takes longer to load than a help may
    import pytest

DEVICES = (1, 2, 8)
BATCH_SIZES = (8, 16)
ROUNDS = 20
MIN_ROUNDS = 6
"""The fewest pairs whose extremes enclose the median with 95% confidence."""
CASE_TIMEOUT = 600.0
LOST_AFTER = 30.0
JOIN_TIMEOUT = 300.0
LISTED = "`meshmark strategies` lists them"
STRATEGY_HELP = f"such as fsdp,tensor; default: all; {LISTED}"
SIZES = ("layers", "embed", "heads", "mlp", "vocab", "sequence")

T = TypeVar("T")


class Unread(str):
    """A value as it was given, and what reads it."""

    flag: str
    read: Callable[[str], Any]


def late(read: Callable[[str], T]) -> Callable[[str], T]:
    """Mark a reader that loads JAX."""
    read.late = True  # pyright: ignore[reportFunctionMemberAccess]
    return read


def add_options(parser: "pytest.Parser") -> None:
    """Declare the options of `pytest benchmarks`, once."""
    group = parser.getgroup("meshmark", "meshmark: what `pytest benchmarks` measures")
    if getattr(group, "options", None):
        return  # by the conftest of a checkout
    declare_measuring(unread(group.addoption))
    several = parser.getgroup("meshmark-processes", "meshmark: several processes, started with the same options each")
    declare_processes(several.addoption)


def declare_measuring(add: Callable[..., Any]) -> None:
    """Declare what says which cases are measured, and how."""
    declare(add)
    declare_text(add)
    add("--attribution", action="store_true", help="say of each step where its time goes; times variants of it, too")
    add("--case-timeout", type=seconds, metavar="S", default=CASE_TIMEOUT, help="without a sign; default: %(default)s")
    add("--compile-only", action="store_true", help="ask the compiler what each step does, and run nothing")
    add("--topology", type=topology, metavar="TOPOLOGY", help="compile for devices not there, such as v5p:4x4x4")
    add("--rounds", type=rounds, metavar="N", default=ROUNDS, help="blocks timed of each case; default: %(default)s")
    add("--resume", action="store_true", help="go on with the run that was writing the same --benchmark-json")
    add("--trace-dir", type=Path, metavar="DIR", help="a profiler's trace of each case, apart from what is timed")


def declare_processes(add: Callable[..., Any]) -> None:
    """Declare what says how several processes find each other."""
    clusters = "SLURM, Open MPI, Kubernetes or a TPU's host"
    add("--distributed", action="store_true", help=f"find the others through {clusters}")
    add("--coordinator", metavar="HOST:PORT", help="find the others there: where process 0 runs, a port that is free")
    add("--processes", type=count, metavar="N", help="how many there are, with --coordinator")
    add("--process-id", type=index, metavar="I", help="which of them this is, with --coordinator; 0 writes the report")
    found = "seconds for all processes to find each other; default: %(default)s"
    add("--join-timeout", type=seconds, metavar="S", default=JOIN_TIMEOUT, help=found)
    dead = "a dead process ends all; default: %(default)s"
    add("--lost-after", type=seconds, metavar="S", default=LOST_AFTER, help=dead)


def declare(add: Callable[..., Any]) -> None:
    """Declare what selects cases, by pytest's or argparse's way to add an option.

    A bad value is refused by its parser, which names the legal ones.
    """
    several = {"action": "extend", "default": []}
    there = f"default: those of {DEVICES} that are there; a --topology is taken whole"
    sizes = f"sequences; default: {BATCH_SIZES}, or one for each device of a --topology"
    add("--strategy", type=commas(strategy), metavar="NAME,...", **several, help=STRATEGY_HELP)
    add("--devices", type=commas(count), metavar="N,...", **several, help=there)
    add("--mesh", type=mesh, metavar="MESH", action="append", default=[], help="such as data=2,tensor=4; repeatable")
    add("--batch-size", type=commas(count), metavar="N,...", **several, help=sizes)
    add("--microbatches", type=commas(count), metavar="N,...", **several, help="of a batch; default: 2 a stage, or 1")
    declare_model(add)
    dtypes = f"{', '.join(get_args(Dtype))}: of the computation; default: %(default)s"
    remats = f"{', '.join(get_args(Remat))}: what backward recomputes; default: %(default)s"
    add("--dtype", type=dtype, metavar="DTYPE", default="float32", help=dtypes)
    add("--remat", type=remat, metavar="REMAT", default="dots", help=remats)
    varied = f"of a strategy, such as schedule=gpipe,1f1b; {LISTED}; repeatable"
    add("--option", type=option, metavar="NAME=VALUE,...", **several, help=varied)
    declare_compiler(add)


def declare_text(add: Callable[..., Any]) -> None:
    """Declare what says on which text steps are trained, where they are."""
    add("--corpus", type=Path, metavar="FILE", help="the text to train on; default: the prose of pydoc_data.topics")


def declare_model(add: Callable[..., Any]) -> None:
    """Declare what says which model it is."""
    models = f"the model: {', '.join(PRESETS)}; default: %(default)s"
    add("--preset", type=preset, metavar="PRESET", default="nano", help=models)
    for size in SIZES:
        add(f"--{size}", type=count, metavar="N", help="instead of the preset's")
    add("--untied", action="store_true", help="a head of its own instead of the embedding")


def declare_compiler(add: Callable[..., Any]) -> None:
    """Declare what the compiler is told."""
    text = "of XLA, for what its backend takes, such as xla_tpu_enable_latency_hiding_scheduler=true; repeatable"
    add("--compiler-option", type=compiler_option, metavar="NAME=VALUE", action="append", default=[], help=text)


def unread(add: Callable[..., Any]) -> Callable[..., Any]:
    """A way to add options that leaves those that load JAX unread."""

    def add_unread(flag: str, **attributes: Any) -> None:
        read = attributes.get("type")

        def keep(text: str) -> Any:
            kept = Unread(text)
            kept.flag, kept.read = flag, read  # pyright: ignore[reportAttributeAccessIssue]
            return [kept] if attributes.get("action") == "extend" else kept

        add(flag, **attributes | ({"type": keep} if hasattr(read, "late") else {}))

    return add_unread


def read_late(option: argparse.Namespace) -> None:
    """Read what was left unread.

    Raises:
        ValueError: there is no such value; in argparse's words.
    """
    for name, given in vars(option).items():
        if isinstance(given, Unread):
            setattr(option, name, _read(given))
        elif isinstance(given, list) and any(isinstance(each, Unread) for each in given):
            found = [_read(each) for each in given]
            setattr(option, name, [value for each in found for value in (each if isinstance(each, list) else [each])])


def _read(given: Unread) -> Any:
    try:
        return given.read(str(given))
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"argument {given.flag}: {error}") from error


def commas(read: Callable[[str], T]) -> Callable[[str], list[T]]:
    """A reader of lists.

    >>> commas(count)("8,16")
    [8, 16]
    """

    @wraps(read)
    def read_all(text: str) -> Any:
        return [read(part) for part in text.split(",")]

    return read_all


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


def rounds(text: str) -> int:
    """So many turns of each case that there is an interval."""
    if (number := count(text)) < MIN_ROUNDS:
        problem = f"{number} rounds are too few for a 95% interval of a median"
        raise argparse.ArgumentTypeError(f"{problem}; give {MIN_ROUNDS} or more")
    return number


def seconds(text: str) -> float:
    """A positive number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; give a positive number of seconds, such as 2.5")
    return value


def compiler_option(text: str) -> tuple[str, str]:
    """An option of XLA and its value; whether there is one of that name is known to its backend alone.

    >>> compiler_option("xla_disable_hlo_passes=reduce-scatter-creator,all-reduce-combiner")
    ('xla_disable_hlo_passes', 'reduce-scatter-creator,all-reduce-combiner')
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is no option with a value; write it as xla_name=value")
    return name, value


def _in_options(name: str) -> Callable[[str], Any]:
    """A reader of `options.py`, which is loaded when there is something to read."""

    @late
    def read(text: str) -> Any:
        from benchmarks import options

        return getattr(options, name)(text)

    read.__name__ = name
    return read


strategy, mesh, topology, option = map(_in_options, ("strategy", "mesh", "topology", "option"))
preset, dtype, remat = map(_in_options, ("preset", "dtype", "remat"))
