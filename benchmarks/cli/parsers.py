"""Command-line parsers of the commands that use JAX or pytest. They import neither, so that `--help` is fast."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from benchmarks.cli.arguments import (
    LISTED,
    declare,
    declare_compiler,
    declare_measuring,
    declare_model,
    declare_processes,
    declare_text,
    dtype,
    mesh,
    option,
    remat,
    strategy,
    topology,
)
from benchmarks.cli.defaults import CASE_TIMEOUT
from benchmarks.commandline.parser import Parser
from benchmarks.commandline.values import amount, commas, count, positive, seconds, shown, whole, workers
from strategies.config import Dtype, Remat

BUDGET_SECONDS = 600.0
PYTEST = """Options of pytest and pytest-benchmark also work, such as -k EXPRESSION, and --benchmark-json FILE, which
writes the results. `pytest --pyargs benchmarks --help` describes them."""


def measure() -> Parser:
    """Return the parser of `meshmark measure`. It only prints the help, because pytest parses the options itself."""
    about = "Time strategies on the devices of this machine."
    parser = Parser("meshmark measure", description=about, epilog=PYTEST)
    declare_measuring(parser.add_argument)
    declare_processes(
        parser.add_argument_group("multi-process runs; start each process with the same options").add_argument
    )
    return parser


def compile_cases() -> Parser:
    """Return the parser of `meshmark compile`."""
    about = "Compile steps for devices that need not be present, and report their FLOPs, sent bytes and memory."
    parser = Parser("meshmark compile", description=about)
    parser.add_argument("--topology", type=topology, required=True, help="such as v5p:4x4x4, h100:2x8 or cpu:64")
    traced = "write the replayed step to this file, in Chrome's trace format, for ui.perfetto.dev and results.lanes"
    parser.add_argument("--trace", type=Path, metavar="FILE", help=traced)
    tried = "compile also other values of reduce_dtype and unroll, and what the page advises; say what each would save"
    parser.add_argument("--trials", action="store_true", help=tried)
    declare(parser.add_argument)
    return parser


def doctor() -> Parser:
    """Return the parser of `meshmark doctor`. It has no options."""
    about = "Describe this installation and machine in about ten lines, to paste into an issue."
    return Parser("meshmark doctor", description=about)


def search() -> Parser:
    """Return the parser of `meshmark search`."""
    about = "Rank ways to spread a model by predicted seconds, and say what limits the best. Compile and measure some."
    parser = Parser("meshmark search", description=about)
    add = parser.add_argument
    devices = parser.add_mutually_exclusive_group(required=True).add_argument
    devices("--topology", type=topology, metavar="TOPOLOGY", help="such as h100:1x8, a100:8x8 or v5p:4x4x4")
    devices("--devices", choices=("here",), help="instead of --topology: those of this machine")
    declare_model(add)
    _declare_space(add)
    declare_compiler(add)
    add("--machine", metavar="NAME", help="machine file, by name or path; default: meshmark's for these devices")
    changes = "another specification, such as inter_host_bandwidth=2x or hbm=141GiB; repeatable"
    add("--set", type=assignment, metavar="NAME=VALUE", action="append", default=[], help=changes)
    compiled = "compile the N best, and take the communication that is exposed from their schedules"
    add("--compile", type=whole, default=0, metavar="N", help=compiled)
    _declare_compiling(add)
    timed = "with --devices here: time N candidates that differ, and say what the first by rank loses"
    add("--measure", type=whole, default=0, metavar="N", help=timed)
    add("--tokens", type=positive, metavar="N", help="also print days and device-hours to train on N tokens")
    add("--price", type=amount, metavar="X", help="of a device-hour; with --tokens, also print the money")
    scaling = "the best on each power of two of devices instead, with the same batch and one that grows with them"
    add("--scaling", type=sizes, metavar="N..N", help=f"{scaling}; such as 8..16384")
    weak = "with --scaling: sequences a device in weak scaling; default: the batch over the smallest number of devices"
    add("--sequences-per-device", type=count, metavar="N", help=weak)
    add("--all", action="store_true", help="print every candidate that fits, and why others are infeasible")
    readers = "`meshmark frontier` and `meshmark page` draw it; with --scaling, `meshmark scaling`"
    add("--json", type=Path, metavar="FILE", help=f"write every candidate to this file: {readers}")
    traced = "write the predicted step of the best to this file, in Chrome's trace format"
    add("--trace", type=Path, metavar="FILE", help=f"{traced}, for ui.perfetto.dev and results.lanes")
    return parser


def sizes(text: str) -> tuple[int, int]:
    """Read the first and the last number of devices.

    >>> sizes("8..16384")
    (8, 16384)
    """
    first, _, last = text.partition("..")
    try:
        begin, end = count(first), count(last)
    except argparse.ArgumentTypeError:
        begin = end = 0
    if not 0 < begin <= end:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a range of devices such as 8..16384")
    return begin, end


def calibrate() -> Parser:
    """Return the parser of `meshmark calibrate`."""
    about = "Measure the devices of this machine, and write a machine file, by which times of steps are predicted."
    parser = Parser("meshmark calibrate", description=about)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the machine file, such as mine.json")
    return parser


def assignment(text: str) -> tuple[str, str]:
    """Read NAME=VALUE.

    >>> assignment("hbm=141GiB")
    ('hbm', '141GiB')
    """
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def train() -> Parser:
    """Return the parser of `meshmark train`."""
    about = "Train a GPT on text under one strategy, with checkpoints, and log the loss."
    parser = Parser("meshmark train", description=about)
    add = parser.add_argument
    add("--strategy", type=strategy, default="single", metavar="NAME", help=f"default: %(default)s; {LISTED}")
    add("--devices", type=count, metavar="N", help="number of devices; default: all, or 1 for single")
    add("--mesh", type=mesh, metavar="MESH", help="such as data=2,tensor=4, instead of --devices")
    add("--batch-size", type=count, default=16, metavar="N", help="sequences in a global batch; default: %(default)s")
    add("--microbatches", type=count, metavar="N", help="per batch; default: 2 per pipeline stage, or 1")
    declare_model(add)
    add("--dtype", type=dtype, metavar="DTYPE", default="float32", help="of the computation; default: %(default)s")
    add("--remat", type=remat, metavar="REMAT", default="dots", help="what is recomputed; default: %(default)s")
    options = f"options of the strategy, such as schedule=zb-h1; {LISTED}; repeatable"
    add("--option", type=commas(option), metavar="NAME=VALUE", action="append", default=[], help=options)
    declare_compiler(add)
    _declare_training(parser.add_argument_group("training; the defaults are nanoGPT's for CPUs").add_argument)
    _declare_output(parser.add_argument_group("text, log and checkpoints").add_argument)
    declare_processes(parser.add_argument_group("several processes; start each with the same options").add_argument)
    parser.set_defaults(case_timeout=CASE_TIMEOUT)  # how long processes wait for each other
    return parser


def strategies() -> Parser:
    """Return the parser of `meshmark strategies`, which has no options."""
    return Parser("meshmark strategies", description="List all strategies, with their mesh axes and options.")


def show() -> Parser:
    """Return the parser of `meshmark show`."""
    parser = Parser("meshmark show", description="Print what each device holds, and what it sends in a step.")
    add = parser.add_argument
    add("names", nargs="*", metavar="STRATEGY", help="default: all of them")
    add("--mesh", help="such as fsdp=4; default: four devices, or two along each of several axes")
    add("--topology", help="all devices of a topology such as v5p:4x4x4, which need not be there")
    add("--preset", default="gpt2", help="the model; default: gpt2")
    batch_size = "sequences in a global batch; default: 16; with --topology one per device"
    add("--batch-size", type=int, metavar="N", help=batch_size)
    add("--json", action="store_true", help="as JSON, for `meshmark diagram` and `meshmark shards`")
    add("--png", metavar="FILE", help="draw which device holds which part of each array, too")
    return parser


def predict_runs() -> Parser:
    """Return the parser of `meshmark predict`."""
    about = "Predict the seconds of published training runs, and say how far the predictions are off."
    parser = Parser("meshmark predict", description=about)
    add = parser.add_argument
    add("runs", type=Path, nargs="+", metavar="RUNS.csv", help="tables with the columns of results/published")
    add("--out", type=Path, metavar="FILE", help="write the rows with their predictions to this CSV file")
    machine = "machine file for all rows, by name or path; default: by the columns device and stack of each row"
    add("--machine", metavar="NAME", help=machine)
    return parser


def fit_runs() -> Parser:
    """Return the parser of `meshmark fit`."""
    about = "Fit the constants of a machine to measured training runs, with cross-validation by model and by size."
    parser = Parser("meshmark fit", description=about)
    add = parser.add_argument
    add("runs", type=Path, nargs="+", metavar="RUNS.csv", help="tables with the columns of results/published")
    add("--machine", required=True, metavar="NAME", help="machine file to start from, by name or path")
    only = "fit these constants and keep the machine's others; default: all on which the runs depend"
    add("--only", type=lambda text: tuple(text.split(",")), default=(), metavar="NAME,...", help=only)
    add("--out", type=Path, metavar="FILE", help="write the machine file with the fitted constants")
    return parser


def _declare_training(add: Callable[..., Any]) -> None:
    """Declare the options of the optimizer."""
    add("--steps", type=count, default=300, metavar="N", help="train until step N; default: %(default)s")
    add("--seed", type=whole, default=0, metavar="N", help="of weights and batches; default: %(default)s")
    add("--learning-rate", type=float, default=1e-3, metavar="X", help="the highest; default: %(default)s")
    add("--warmup-steps", type=whole, metavar="N", help="of linear warmup; default: a twentieth of --steps")
    add("--decay-steps", type=count, metavar="N", help="where the cosine decay ends; default: --steps")
    add("--final-learning-rate", type=float, metavar="X", help="after the decay; default: a tenth of the highest")
    add("--beta1", type=float, default=0.9, metavar="X", help="of AdamW; default: %(default)s")
    add("--beta2", type=float, default=0.99, metavar="X", help="of AdamW; default: %(default)s")
    add("--weight-decay", type=float, default=0.1, metavar="X", help="of AdamW; default: %(default)s")
    add("--clip-norm", type=float, default=1.0, metavar="X", help="clip gradients to this norm; default: %(default)s")


def _declare_output(add: Callable[..., Any]) -> None:
    """Declare the options for the text, the log, evaluation and checkpoints."""
    declare_text(add)
    add("--tokens", choices=("bytes", "chars"), default="bytes", help="what a token is; default: %(default)s")
    add("--out", type=Path, metavar="DIR", help="folder of log and checkpoints; default: runs/STRATEGY-MESH")
    add("--log-every", type=count, default=10, metavar="N", help="log each N-th step; default: %(default)s")
    evaluate = "evaluate on held-out text each N steps and at both ends; default: %(default)s"
    add("--evaluate-every", type=count, default=250, metavar="N", help=evaluate)
    add("--evaluation-batches", type=count, default=20, metavar="N", help="batches of it; default: %(default)s")
    add("--checkpoint-every", type=count, metavar="N", help="save each N steps; default: at the end")
    add("--keep", type=count, metavar="K", help="keep the K latest checkpoints; default: all")
    add("--resume", action="store_true", help="continue the run in --out from its latest checkpoint")
    add("--sample", type=count, metavar="N", help="write N tokens of text at the end")
    add("--temperature", type=float, default=0.8, metavar="X", help="of the sample; 0 is greedy; default: %(default)s")


def _declare_space(add: Callable[..., Any]) -> None:
    """Declare the options that restrict the search space."""
    several = {"action": "extend", "default": []}
    add("--batch-size", type=count, required=True, metavar="N", help="sequences in a global batch")
    dtype = "dtype of the computation; default: %(default)s"
    add("--dtype", choices=get_args(Dtype), default="bfloat16", help=dtype)
    names = f"strategies to search; default: all hand-written ones; {LISTED}"
    add("--strategy", type=commas(strategy), metavar="NAME,...", **several, help=names)
    meshes = "mesh to search, such as data=2,tensor=4; repeatable; default: all meshes"
    add("--mesh", type=mesh, metavar="MESH", action="append", default=[], help=meshes)
    parts = "numbers of microbatches; default: 1, 2, 4, ... per pipeline stage until steps get slower"
    add("--microbatches", type=commas(count), metavar="N,...", **several, help=parts)
    remats = "what the backward pass recomputes; repeatable; default: every choice"
    add("--remat", choices=get_args(Remat), action="append", default=[], help=remats)
    options = "options of strategies; default: every schedule and gather"
    add("--option", type=option, metavar="NAME=VALUE,...", **several, help=options)


def _declare_compiling(add: Callable[..., Any]) -> None:
    """Declare how candidates of a search are compiled."""
    budget = "time for compiling, in seconds; default: %(default)s"
    add("--time-budget", type=seconds, default=BUDGET_SECONDS, metavar="S", help=budget)
    at_once = "number of compiling processes; default: as many as memory and cores allow"
    add("--workers", type=workers, metavar="N", help=at_once)
    folder = "cache of compilation results; default: %(default)s"
    add("--cache", type=Path, default=default_cache(), metavar="DIR", help=folder)
    add("--again", action="store_true", help="ignore cached results, compile again and replace them")


def default_cache() -> Path:
    """Return the default cache folder of compilation results (XDG Base Directory Specification)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "meshmark", "compiled")
