"""The table of options: name, meaning, parser and default of each, in groups. An option means the same in all commands.

The table is declared to argparse and to pytest. It needs no JAX.
"""

import re
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from benchmarks.cli.parser import Group, one_of, option
from benchmarks.cli.values import (
    MIN_ROUNDS,
    assignment,
    count,
    refuse,
    rounds,
    seconds,
    topology,
    whole,
    window,
    workers,
)
from strategies.config import Dtype, PipelineSchedule, Remat
from strategies.gpt_config import AttentionPattern, BalanceOver, GPTConfig, Router
from strategies.names import unknown
from strategies.presets import PRESETS
from strategies.schema import SchemaError, checked

if TYPE_CHECKING:  # it takes longer to load than a help may
    import pytest

DEVICES = (1, 2, 8)
BATCH_SIZES = (16, 8)
"""The largest first: its rows are the curve over numbers of devices."""
ROUNDS = 20
EXTRA_SECONDS = 40.0
"""Seconds of a run for further rounds of steps with wide intervals, divided among groups whose `ROUNDS` took less."""
CASE_TIMEOUT = 600.0
LOST_AFTER = 30.0
"""Default seconds without heartbeat after which a process counts as lost."""
JOIN_TIMEOUT = 300.0
BUDGET_SECONDS = 600.0
TEMPERATURE = 0.8
DEFAULT_PRESET = "nano, or nano-moe with the strategy or the axis expert"
MODEL_KEYS = {
    "layers": "transformer layers",
    "embed": "features of the residual stream (d_model)",
    "heads": "attention heads",
    "key_heads": "KV heads; fewer than `heads` is grouped-query attention",
    "head_size": "features of an attention head; with latents those of a query, with its rotary features",
    "latent_rank": "latents of keys and values: multi-head latent attention (MLA)",
    "query_rank": "latents of queries, of latent attention",
    "rotary_size": "rotary features of a query and of the shared key, of latent attention",
    "value_size": "features of a value, of latent attention",
    "mlp": "hidden features of the MLP",
    "vocab": "size of the vocabulary",
    "sequence": "tokens in a sequence",
    "experts": "experts of a layer, which replace its MLP",
    "dense_layers": "leading layers with an MLP, on all pipeline stages",
    "experts_per_token": "experts that the router chooses for a token (top k)",
    "expert_mlp": "hidden features of an expert",
    "shared_mlp": "hidden features of a shared expert, which takes all tokens",
    "router": f"how the router scores experts: {', '.join(get_args(Router))}",
    "routed_scale": "factor of the weights of the chosen experts",
    "router_bias_rate": "change of an expert's bias in a step, for balance",
    "router_groups": "groups that the experts are in",
    "groups_per_token": "groups among whose experts a token chooses",
    "capacity_factor": "drop tokens of an expert beyond this times the mean",
    "expert_group": "consecutive tokens that share an expert's capacity",
    "balance_loss": "coefficient of the load-balancing loss",
    "balance_over": f"tokens among which it balances experts: those of a {' or of a '.join(get_args(BalanceOver))}",
    "router_z_loss": "coefficient of the router's z-loss",
    "block": "architecture: gpt2, llama, qwen2, qwen3, olmoe, gpt_oss",
    "rope_theta": "base of rotary embeddings",
    "rope_factor": "factor by which YaRN or Llama 3.1's scaling slows rotations",
    "rope_mscale": "of YaRN with latents: its factor of scores is (0.1 rope_mscale ln rope_factor + 1)^2",
    "mtp_loss": "factor of the loss of multi-token prediction (MTP), which has a block of its own; 0: none",
    "norm_epsilon": "added to the mean of squares in norms",
    "tied": "whether the output head shares the weights of the embedding",
    "vocab_multiple": "the vocabulary is padded to a multiple of this",
    "full_attention_every": "every N-th layer uses full attention",
    "attention_stride": "distance of far keys (strided), or tokens of a block (fixed)",
    "attention_pattern": f"pattern of sparse attention: {', '.join(get_args(AttentionPattern))}",
    "attention_summary": "last tokens of a block, which later blocks see (fixed)",
}
"""Keys of --model, which are fields of `GPTConfig`, and their meanings. Names of models have them in this order."""
SWEPT = "attention_window", "routing"
"""Fields of `GPTConfig` with an option of their own, whose values are a case each."""
DTYPES, REMATS, SCHEDULES = map(get_args, (Dtype, Remat, PipelineSchedule))
DTYPE, REMAT = one_of("dtype", DTYPES), one_of("rematerialisation policy", REMATS)
REMAT_OR_AUTO = one_of("rematerialisation policy", (*REMATS, "auto"))
LISTED = "`meshmark show` lists them"
OF_STRATEGIES = f"option of a strategy, such as schedule=1f1b; {LISTED}; repeatable"
XLA_OPTION = "an XLA option, such as xla_tpu_enable_latency_hiding_scheduler=true; repeatable"
WINDOW = "tokens that a token attends to, itself included, or `dense`"
A_CASE_EACH = "several values are a case each"
DEVICES_OF = "the devices of a pod or a cluster, which need not be present:"
TRACE = "in Chrome's trace format for ui.perfetto.dev and `meshmark plot`"
MEANINGS = "docs/reference/commands.md says what they mean"
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


def model_value(text: str) -> tuple[str, Any]:
    """Parse a field of `GPTConfig` with its value.

    >>> model_value("layers=12"), model_value("tied=false"), model_value("capacity_factor=1.25")
    (('layers', 12), ('tied', False), ('capacity_factor', 1.25))
    """
    key, given, value = text.partition("=")
    if key in SWEPT:
        raise ArgumentTypeError(f"{key} has an option of its own; pass --{dashed(key)} {value}")
    if key not in MODEL_KEYS:
        raise ArgumentTypeError(unknown(key, "key of --model", MODEL_KEYS))
    if not given:
        refuse(text, f"has no value; write {key}=VALUE")
    try:
        value = "null" if value.lower() == "none" else value
        return key, checked(value, get_type_hints(GPTConfig, include_extras=True)[key], key, texts=True)
    except SchemaError as error:
        raise ArgumentTypeError(str(error).replace("or null", "or none")) from error


CASES = Group(
    "cases",
    option("--strategy NAME,...", f"such as fsdp,tensor; default: all; {LISTED}", str),
    option("--devices N,...", f"numbers of devices; default: {joined(DEVICES)}; all with --topology", count),
    option("--mesh MESH", "axes and their sizes, such as data=2,tensor=4; repeatable", str, many="repeat"),
    option(
        "--batch-size N,...",
        f"global batch, in sequences; default: {joined(BATCH_SIZES)}; one per device with --topology",
        count,
    ),
    option("--microbatches N,...", "parts of the global batch; default: 2 per pipeline stage, or 1", count),
    option("--dtype DTYPE", f"compute dtype: {joined(DTYPES)}; default: %(default)s", DTYPE, "float32"),
    option(
        "--remat REMAT",
        f"what backward recomputes: {joined(REMATS)}; auto: dots if it fits, else full; default: %(default)s",
        REMAT_OR_AUTO,
        "dots",
    ),
    option("--option NAME=VALUE,...", f"{OF_STRATEGIES}; {A_CASE_EACH}", assignment, many="repeat"),
    option("--compiler-option NAME=VALUE", XLA_OPTION, assignment, many="repeat"),
)
MODEL = Group(
    "model",
    option("--preset PRESET", f"{joined(PRESETS)}; default: {DEFAULT_PRESET}", one_of("preset", PRESETS)),
    option("--model KEY=VALUE,...", f"change the preset by {joined(MODEL_KEYS)}; {MEANINGS}", model_value),
    option("--attention-window W,...", f"{WINDOW}; {A_CASE_EACH}; default: the preset's", window),
    option("--routing R,...", f"force the routing: balanced, zipf=1.2 or one; {A_CASE_EACH}", str),
)
TEXT = Group("text", option("--corpus FILE", "the text to train on; default: the prose of pydoc_data.topics", Path))
MEASURING = Group(
    "measuring",
    option("--attribution", "say where the time of a step goes; times variants of each step, too"),
    option("--case-timeout S", "seconds without progress that end a case; default: %(default)s", seconds, CASE_TIMEOUT),
    option("--memory-profile DIR", "write profiles of device memory for pprof, and count live bytes", Path),
    option("--compile-only", "compile and analyse each step, and run nothing"),
    option("--topology TOPOLOGY", "compile for all devices of a topology such as v5p:4x4x4, and run nothing", topology),
    option("--machine FILE", "also predict the time of each step by this machine file, a name or a path", str),
    option(
        "--rounds N",
        f"times each case is timed, at least {MIN_ROUNDS}; default: {ROUNDS}, and more for {EXTRA_SECONDS:g} seconds",
        rounds,
    ),
    option("--resume", "continue the interrupted run with the same --benchmark-json"),
    option("--trace-dir DIR", "write a profiler trace of each case; it is not part of what is timed", Path),
)
PROCESSES = Group(
    "multi-process runs; start each process with the same options",
    option("--distributed", "find the other processes through SLURM, Open MPI, Kubernetes or a TPU host"),
    option("--coordinator HOST:PORT", "find them here instead: the host of process 0, and a free port", str),
    option("--processes N", "number of processes, with --coordinator", count),
    option("--process-id I", "number of this process, with --coordinator; 0 writes the report", whole),
    option("--join-timeout S", "seconds until all have started; default: %(default)s", seconds, JOIN_TIMEOUT),
    option("--lost-after S", "seconds without heartbeat of a lost process; default: %(default)s", seconds, LOST_AFTER),
)
STEPS = (CASES, MODEL, TEXT)
"""Options that select steps to run."""
MEASURE = (*STEPS, MEASURING, PROCESSES)
TRAIN = Group(
    "run",
    CASES["--strategy"].one(help=f"such as fsdp; default: %(default)s; {LISTED}", default="single"),
    CASES["--devices"].one(help="number of devices; default: all, or 1 for single"),
    CASES["--mesh"].one(help="axes and their sizes, such as data=2,tensor=4, instead of --devices"),
    CASES["--batch-size"].one(help="global batch, in sequences; default: %(default)s", default=16),
    CASES["--microbatches"].one(),
    CASES["--dtype"],
    CASES["--remat"],
    CASES["--option"]._replace(help=OF_STRATEGIES, value="NAME=VALUE"),
    CASES["--compiler-option"],
)
TRAINED_MODEL = Group(
    "model",
    option("--init FOLDER", "start from the model and the weights in a Hugging Face folder", Path),
    MODEL["--preset"]._replace(help=f"{joined(PRESETS)}; default: that of --init, or {DEFAULT_PRESET}"),
    *(each for each in MODEL.options if each.name != "--preset"),
)
TRAINING = Group(
    "training; the defaults are nanoGPT's for CPUs",
    option("--steps N", "train until step N; default: %(default)s", count, 300),
    option("--seed N", "random seed of weights and batches; default: %(default)s", whole, 0),
    option("--learning-rate X", "peak learning rate; default: %(default)s", float, 1e-3),
    option("--warmup-steps N", "steps of linear warmup; default: a twentieth of --steps", whole),
    option("--decay-steps N", "step at which the cosine decay ends; default: --steps", count),
    option("--final-learning-rate X", "learning rate after the decay; default: a tenth of the peak", float),
    option("--beta1 X", "beta1 of AdamW; default: %(default)s", float, 0.9),
    option("--beta2 X", "beta2 of AdamW; default: %(default)s", float, 0.99),
    option("--weight-decay X", "weight decay of AdamW; default: %(default)s", float, 0.1),
    option("--clip-norm X", "clip gradients to this norm; default: %(default)s", float, 1.0),
)
LOGGING = Group(
    "text, log and checkpoints",
    *TEXT.options,
    option(
        "--tokenizer bytes|chars|init",
        "what a token is: a byte, a character, or one of --init's tokenizer.json; default: init if it exists, or bytes",
    ),
    option("--out DIR", "folder for the log and the checkpoints; default: runs/STRATEGY-MESH", Path),
    option("--log-every N", "log every N steps; default: %(default)s", count, 10),
    option("--evaluate-every N", "evaluate on held-out text every N steps; default: %(default)s", count, 250),
    option("--evaluation-batches N", "batches of an evaluation; default: %(default)s", count, 20),
    option("--checkpoint-every N", "save a checkpoint every N steps; default: at the end", count),
    option("--keep K", "keep the K latest checkpoints; default: all", count),
    option("--resume", "continue the run in --out from its latest checkpoint"),
    option("--check", "first compare the step with one device, weight by weight, on random tokens"),
    option("--sample N", "generate N tokens of text at the end", count),
    option("--temperature X", "temperature of the sample; 0 is greedy; default: %(default)s", float, TEMPERATURE),
)
SPACE = Group(
    "search space",
    CASES["--batch-size"].one(help="global batch, in sequences", required=True),
    CASES["--strategy"]._replace(help=f"such as fsdp,tensor; default: all but auto and explicit; {LISTED}"),
    CASES["--mesh"]._replace(help="axes and their sizes, such as data=2,tensor=4; repeatable; default: all meshes"),
    CASES["--microbatches"]._replace(help="parts of the global batch; default: 1, 2, 4, ... per pipeline stage"),
    CASES["--dtype"]._replace(default="bfloat16"),
    CASES["--remat"]._replace(
        read=REMAT, help=f"what backward recomputes: {joined(REMATS)}; default: all", default=None, many="list"
    ),
    CASES["--option"]._replace(help=f"{OF_STRATEGIES}; default: every schedule and gather"),
    CASES["--compiler-option"],
)
CANDIDATES = Group(
    "compiling",
    option("--time-budget S", "seconds for compiling; default: %(default)s", seconds, BUDGET_SECONDS),
    option("--workers N", "processes that compile; default: as many as memory and cores allow", workers),
)


def measuring_options(option: Namespace) -> dict[str, Any]:
    """The values of the options of `pytest benchmarks`, without those of pytest and its plugins."""
    names = (each.name.strip("-").replace("-", "_") for group in MEASURE for each in group.options)
    return {name: getattr(option, name) for name in names}


def add_options(parser: "pytest.Parser") -> None:
    """Declare the options of `pytest benchmarks`, once."""
    for declared in MEASURE:
        group = parser.getgroup(f"meshmark-{declared.title}", f"meshmark: {declared.title}")
        if not getattr(group, "options", None):  # otherwise the conftest.py of a checkout has declared them
            declared.declare(group.addoption)


def several_processes_requested(option: Namespace) -> bool:
    """Whether the options ask for a multi-process run."""
    manual = {"--coordinator": option.coordinator, "--processes": option.processes, "--process-id": option.process_id}
    missing = [name for name, value in manual.items() if value is None]
    if option.distributed and len(missing) < len(manual):
        raise ValueError(f"--distributed detects {', '.join(manual)}; remove --distributed, or those")
    if 0 < len(missing) < len(manual):
        raise ValueError(f"{', '.join(manual)} go together; {', '.join(missing)} missing")
    alone = len(missing) == len(manual) and not option.distributed
    if alone and (option.join_timeout, option.lost_after) != (JOIN_TIMEOUT, LOST_AFTER):
        raise ValueError("--join-timeout and --lost-after are of several processes; remove them, or pass --distributed")
    if not missing and option.process_id >= option.processes:
        raise ValueError(f"--process-id {option.process_id} is too large; it can be 0 to {option.processes - 1}")
    if option.coordinator is not None:
        host, _, port = option.coordinator.rpartition(":")
        if not host or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 2**16:
            address = "is not an address; pass HOST:PORT, such as node0:12345"
            raise ValueError(f"--coordinator {option.coordinator} {address}")
    return option.distributed or not missing
