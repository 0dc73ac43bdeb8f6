"""The table of options: name, meaning, parser and default of each, in groups. An option means the same in all commands.

The table is declared to argparse and to pytest. It needs no JAX.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from benchmarks.cli.parser import Group, one_of, option
from benchmarks.cli.values import (
    amount,
    assignment,
    count,
    rounds,
    seconds,
    topology,
    whole,
    window,
    workers,
)
from strategies.config import Dtype, PipelineSchedule, Remat
from strategies.gpt_config import AttentionPattern, Router
from strategies.presets import PRESETS

if TYPE_CHECKING:  # it takes longer to load than a help may
    import pytest

DEVICES = (1, 2, 8)
BATCH_SIZES = (16, 8)
"""The largest first: its rows are the curve over numbers of devices."""
ROUNDS = 20
EXTRA_SECONDS = 40.0
"""Seconds of further rounds in a run, divided among its groups of comparable steps. They are of steps with wide
intervals, in groups whose `ROUNDS` took less time."""
CASE_TIMEOUT = 600.0
LOST_AFTER = 30.0
"""Default seconds without heartbeat after which a process counts as lost."""
JOIN_TIMEOUT = 300.0
BUDGET_SECONDS = 600.0
DEFAULT_PRESET = "nano, or nano-moe with the strategy or the axis expert"
SIZES = ("layers", "embed", "heads", "key_heads", "head_size", "mlp", "vocab", "sequence")
"""Sizes of the model, which are options and fields of `GPTConfig`."""
SPARSE = ("attention_stride", "attention_pattern", "attention_summary")
"""Options of sparse attention besides the window, which are fields of `GPTConfig`, too."""
DTYPES, REMATS, PATTERNS, SCHEDULES = map(get_args, (Dtype, Remat, AttentionPattern, PipelineSchedule))
EXPERTS = {
    "experts": option("--experts N", "experts of each layer, in place of its MLP; default: the preset's", count),
    "dense_layers": option(
        "--dense-layers N", "first layers, which have an MLP and no experts; default: the preset's", whole
    ),
    "experts_per_token": option("--experts-per-token N", "experts that take a token; default: 2", count),
    "expert_mlp": option("--expert-mlp N", "hidden features of an expert; default: those of the MLP", count),
    "shared_mlp": option("--shared-mlp N", "hidden features of an expert that takes all tokens; default: none", count),
    "router": option(f"--router {'|'.join(get_args(Router))}", "default: renormalised"),
    "routed_scale": option("--routed-scale X", "factor of the weights of chosen experts; default: 1", amount),
    "router_bias_rate": option("--router-bias-rate X", "move of the router's biases in a step; default: none", amount),
    "router_groups": option("--router-groups N", "groups of experts; default: 1", count),
    "groups_per_token": option("--groups-per-token N", "groups that a token chooses from; default: 1", count),
    "capacity_factor": option("--capacity-factor X", "drop tokens beyond this times the mean; default: none", amount),
    "expert_group": option("--expert-group N", "tokens of which an expert takes a share; default: a sequence", count),
    "balance_loss": option("--balance-loss X", "factor of the load-balancing loss; default: 0", amount),
    "router_z_loss": option("--router-z-loss X", "factor of the router's z-loss; default: 0", amount),
}
"""Options of models with experts, by their names in `GPTConfig`."""
DTYPE, REMAT = one_of("dtype", DTYPES), one_of("rematerialisation policy", REMATS)
LISTED = "`meshmark strategies` lists them"
OF_STRATEGIES = f"of strategies, such as schedule=1f1b; {LISTED}; repeatable"
XLA_OPTION = "an XLA option, such as xla_tpu_enable_latency_hiding_scheduler=true; repeatable"
WINDOW = "tokens that a token attends to, itself included, or `dense`"
DEVICES_OF = "the devices of a pod or a cluster, which need not be present:"
TRACE = "in Chrome's trace format for ui.perfetto.dev and `meshmark plot`"
PICTURE = "its suffix selects the format"


def joined(names: Iterable[object]) -> str:
    """Names in a sentence."""
    return ", ".join(map(str, names))


def dashed(name: str) -> str:
    """The spelling of an option.

    >>> dashed("sequences_per_device")
    'sequences-per-device'
    """
    return name.replace("_", "-")


def default_cache() -> Path:
    """Return the default cache folder of compilation results (XDG Base Directory Specification)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "meshmark", "compiled")


CASES = Group(
    "cases",
    option("--strategy NAME,...", f"such as fsdp,tensor; default: all; {LISTED}", str),
    option(
        "--devices N,...",
        f"numbers of devices; default: {joined(DEVICES)}; all with --topology",
        count,
    ),
    option("--mesh MESH", "such as data=2,tensor=4; repeatable", str),
    option(
        "--batch-size N,...",
        f"in sequences; default: {joined(BATCH_SIZES)}; one per device with --topology",
        count,
    ),
    option("--microbatches N,...", "per batch; default: 2 per pipeline stage, or 1", count),
    option("--dtype DTYPE", f"of the computation: {joined(DTYPES)}; default: %(default)s", DTYPE, "float32"),
    option(
        "--remat REMAT", f"what the backward pass recomputes: {joined(REMATS)}; default: %(default)s", REMAT, "dots"
    ),
    option("--option NAME=VALUE,...", f"{OF_STRATEGIES}; several values are a case each", assignment),
    option("--compiler-option NAME=VALUE", XLA_OPTION, assignment),
)
MODEL = Group(
    "model",
    option("--preset PRESET", f"{joined(PRESETS)}; default: {DEFAULT_PRESET}", one_of("preset", PRESETS)),
    *(option(f"--{dashed(size)} N", f"{size} of the model; default: the preset's", count) for size in SIZES),
    option("--block BLOCK", "kind of blocks: gpt2, llama, qwen2, qwen3, olmoe, gpt_oss; default: the preset's", str),
    option("--rope-theta X", "base of the angles of rotary positions; default: the preset's", float),
    option("--untied", "give the head its own weights instead of the embedding's"),
    option("--attention-window W,...", f"{WINDOW}; a list sweeps; default: the preset's", window),
    option("--attention-stride L", "sparse attention with far keys at this distance, or blocks of this size", count),
    option(f"--attention-pattern {'|'.join(PATTERNS)}", "with a stride; default: strided"),
    option("--attention-summary C", "fixed: tokens at a block's end that later blocks attend to; default: 1", count),
    *EXPERTS.values(),
    option("--routing R,...", "forced on tokens: balanced, zipf=1.2 or one; a list sweeps; default: learned", str),
)
TEXT = Group("text", option("--corpus FILE", "the text to train on; default: the prose of pydoc_data.topics", Path))
MEASURING = Group(
    "measuring",
    option("--attribution", "attribute each step's time to causes; also times variants of it"),
    option("--checkpoint", "also time saving and restoring each state, under TMPDIR"),
    option("--case-timeout S", "seconds without progress; default: %(default)s", seconds, CASE_TIMEOUT),
    option("--memory-profile DIR", "write device memory profiles for pprof, and count the bytes of live arrays", Path),
    option("--compile-only", "compile and analyse each step, and run nothing"),
    option("--topology TOPOLOGY", "compile for all devices of v5p:4x4x4, for example, and run nothing", topology),
    option("--machine FILE", "also predict the time of each step by this machine file, a name or a path", str),
    option("--rounds N", f"timed blocks per case; default: {ROUNDS}, more within {EXTRA_SECONDS:g} seconds", rounds),
    option("--resume", "continue the interrupted run with the same --benchmark-json"),
    option("--trace-dir DIR", "write a profiler trace of each case, apart from timed blocks", Path),
)
PROCESSES = Group(
    "multi-process runs; start each process with the same options",
    option("--distributed", "find the other processes through SLURM, Open MPI, Kubernetes or a TPU host"),
    option("--coordinator HOST:PORT", "find them here instead: the host of process 0, and a free port", str),
    option("--processes N", "number of processes, with --coordinator", count),
    option("--process-id I", "number of this process, with --coordinator; 0 writes the report", whole),
    option("--join-timeout S", "to find each other; default: %(default)s seconds", seconds, JOIN_TIMEOUT),
    option(
        "--lost-after S", "without heartbeat until a process is lost; default: %(default)s seconds", seconds, LOST_AFTER
    ),
)
STEPS = (CASES, MODEL, TEXT)
"""Options that select steps to run."""
MEASURE = (*STEPS, MEASURING, PROCESSES)
TRAIN = Group(
    "run",
    CASES["--strategy"].one(help=f"default: %(default)s; {LISTED}", default="single"),
    CASES["--devices"].one(help="number of devices; default: all, or 1 for single"),
    CASES["--mesh"].one(help="such as data=2,tensor=4, instead of --devices"),
    CASES["--batch-size"].one(help="sequences in a global batch; default: %(default)s", default=16),
    CASES["--microbatches"].one(),
    CASES["--dtype"],
    CASES["--remat"],
    CASES["--option"]._replace(help=OF_STRATEGIES, value="NAME=VALUE"),
    CASES["--compiler-option"],
)
TRAINED_MODEL = Group(
    "model",
    option("--init FOLDER", "begin with the model and the weights of a Hugging Face folder", Path),
    MODEL["--preset"]._replace(help=f"{joined(PRESETS)}; default: that of --init, or {DEFAULT_PRESET}"),
    *(each for each in MODEL.options if each.name != "--preset"),
)
TRAINING = Group(
    "training; the defaults are nanoGPT's for CPUs",
    option("--steps N", "train until step N; default: %(default)s", count, 300),
    option("--seed N", "of weights and batches; default: %(default)s", whole, 0),
    option("--learning-rate X", "the highest; default: %(default)s", float, 1e-3),
    option("--warmup-steps N", "of linear warmup; default: a twentieth of --steps", whole),
    option("--decay-steps N", "where the cosine decay ends; default: --steps", count),
    option("--final-learning-rate X", "after the decay; default: a tenth of the highest", float),
    option("--beta1 X", "of AdamW; default: %(default)s", float, 0.9),
    option("--beta2 X", "of AdamW; default: %(default)s", float, 0.99),
    option("--weight-decay X", "of AdamW; default: %(default)s", float, 0.1),
    option("--clip-norm X", "clip gradients to this norm; default: %(default)s", float, 1.0),
)
LOGGING = Group(
    "text, log and checkpoints",
    *TEXT.options,
    option("--tokenizer bytes|chars", "what a token is; default: %(default)s", default="bytes"),
    option("--out DIR", "folder of log and checkpoints; default: runs/STRATEGY-MESH", Path),
    option("--log-every N", "log each N-th step; default: %(default)s", count, 10),
    option("--evaluate-every N", "evaluate on held-out text each N steps; default: %(default)s", count, 250),
    option("--evaluation-batches N", "batches of an evaluation; default: %(default)s", count, 20),
    option("--checkpoint-every N", "save each N steps; default: at the end", count),
    option("--keep K", "keep the K latest checkpoints; default: all", count),
    option("--resume", "continue the run in --out from its latest checkpoint"),
    option("--sample N", "write N tokens of text at the end", count),
    option("--temperature X", "of the sample; 0 is greedy; default: %(default)s", float, 0.8),
)
SPACE = Group(
    "search space",
    CASES["--batch-size"].one(help="sequences in a global batch", required=True),
    CASES["--strategy"]._replace(help=f"default: all hand-written ones; {LISTED}"),
    CASES["--mesh"]._replace(help="such as data=2,tensor=4; repeatable; default: all meshes"),
    CASES["--microbatches"]._replace(help="per batch; default: 1, 2, 4, ... per pipeline stage"),
    CASES["--dtype"]._replace(default="bfloat16"),
    CASES["--remat"]._replace(help=f"{joined(REMATS)}: what is recomputed; default: all", default=None, many="list"),
    CASES["--option"]._replace(help=f"{OF_STRATEGIES}; default: every schedule and gather"),
    CASES["--compiler-option"],
)
CANDIDATES = Group(
    "compiling",
    option("--time-budget S", "for compiling, in seconds; default: %(default)s", seconds, BUDGET_SECONDS),
    option("--workers N", "compiling processes; default: as many as memory and cores allow", workers),
    option("--cache DIR", "of compilation results; default: %(default)s", Path, default_cache()),
)


def add_options(parser: "pytest.Parser") -> None:
    """Declare the options of `pytest benchmarks`, once."""
    for declared in MEASURE:
        group = parser.getgroup(f"meshmark-{declared.title}", f"meshmark: {declared.title}")
        if not getattr(group, "options", None):  # otherwise the conftest.py of a checkout has declared them
            for option in declared.options:
                option.declare(group.addoption)
