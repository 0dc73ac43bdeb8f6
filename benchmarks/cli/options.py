"""The table of options: name, meaning, parser and default of each, in groups. An option means the same in all commands.

The table is declared to argparse and to pytest. It needs no JAX.
"""

from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

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
SIZES = {
    "layers": "transformer layers",
    "embed": "features of the residual stream (d_model)",
    "heads": "attention heads",
    "key_heads": "KV heads; fewer than --heads is grouped-query attention",
    "head_size": "features of an attention head",
    "mlp": "hidden features of the MLP",
    "vocab": "size of the vocabulary",
    "sequence": "tokens in a sequence",
}
"""Sizes of the model, which are options and fields of `GPTConfig`, and what each is."""
SPARSE = ("attention_stride", "attention_pattern", "attention_summary")
"""Options of sparse attention besides the window, which are fields of `GPTConfig`, too."""
DTYPES, REMATS, PATTERNS, SCHEDULES = map(get_args, (Dtype, Remat, AttentionPattern, PipelineSchedule))
EXPERT_OPTIONS = (
    option("--experts N", "experts of a layer, which replace its MLP; default: the preset's", count),
    option("--dense-layers N", "leading layers with an MLP, on all pipeline stages; default: the preset's", whole),
    option("--experts-per-token N", "experts that the router chooses for a token (top k); default: 2", count),
    option("--expert-mlp N", "hidden features of an expert; default: those of the MLP", count),
    option("--shared-mlp N", "hidden features of a shared expert, which takes all tokens; default: none", count),
    option(f"--router {'|'.join(get_args(Router))}", "how the router scores experts; default: renormalised"),
    option("--routed-scale X", "factor of the weights of the chosen experts; default: 1", amount),
    option("--router-bias-rate X", "change of an expert's bias in a step, for balance; default: no biases", amount),
    option("--router-groups N", "groups that the experts are in; default: 1", count),
    option("--groups-per-token N", "groups among whose experts a token chooses; default: 1", count),
    option("--capacity-factor X", "drop tokens of an expert beyond this times the mean; default: none", amount),
    option("--expert-group N", "consecutive tokens that share an expert's capacity; default: a sequence", count),
    option("--balance-loss X", "coefficient of the load-balancing loss; default: 0", amount),
    option("--router-z-loss X", "coefficient of the router's z-loss; default: 0", amount),
)
EXPERTS = tuple(declared.name.strip("-").replace("-", "_") for declared in EXPERT_OPTIONS)
"""Options of models with experts, which are fields of `GPTConfig`."""
DTYPE, REMAT = one_of("dtype", DTYPES), one_of("rematerialisation policy", REMATS)
LISTED = "`meshmark show` lists them"
OF_STRATEGIES = f"option of a strategy, such as schedule=1f1b; {LISTED}; repeatable"
XLA_OPTION = "an XLA option, such as xla_tpu_enable_latency_hiding_scheduler=true; repeatable"
WINDOW = "tokens that a token attends to, itself included, or `dense`"
A_CASE_EACH = "several values are a case each"
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
    option("--remat REMAT", f"what backward recomputes: {joined(REMATS)}; default: %(default)s", REMAT, "dots"),
    option("--option NAME=VALUE,...", f"{OF_STRATEGIES}; {A_CASE_EACH}", assignment, many="repeat"),
    option("--compiler-option NAME=VALUE", XLA_OPTION, assignment, many="repeat"),
)
MODEL = Group(
    "model",
    option("--preset PRESET", f"{joined(PRESETS)}; default: {DEFAULT_PRESET}", one_of("preset", PRESETS)),
    *(option(f"--{dashed(size)} N", f"{what}; default: the preset's", count) for size, what in SIZES.items()),
    option("--block BLOCK", "architecture: gpt2, llama, qwen2, qwen3, olmoe, gpt_oss; default: the preset's", str),
    option("--rope-theta X", "base of rotary embeddings; default: the preset's", float),
    option("--untied", "give the output head its own weights instead of the embedding's"),
    option("--attention-window W,...", f"{WINDOW}; {A_CASE_EACH}; default: the preset's", window),
    option("--attention-stride L", "distance of far keys (strided), or tokens of a block (fixed)", count),
    option(f"--attention-pattern {'|'.join(PATTERNS)}", "pattern of sparse attention; default: strided"),
    option("--attention-summary C", "last tokens of a block, which later blocks see (fixed); default: 1", count),
    *EXPERT_OPTIONS,
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
        "--rounds N", f"times each case is timed; default: {ROUNDS}, and more for {EXTRA_SECONDS:g} seconds", rounds
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
    option("--tokenizer bytes|chars", "what a token is: a byte or a character; default: %(default)s", default="bytes"),
    option("--out DIR", "folder for the log and the checkpoints; default: runs/STRATEGY-MESH", Path),
    option("--log-every N", "log every N steps; default: %(default)s", count, 10),
    option("--evaluate-every N", "evaluate on held-out text every N steps; default: %(default)s", count, 250),
    option("--evaluation-batches N", "batches of an evaluation; default: %(default)s", count, 20),
    option("--checkpoint-every N", "save a checkpoint every N steps; default: at the end", count),
    option("--keep K", "keep the K latest checkpoints; default: all", count),
    option("--resume", "continue the run in --out from its latest checkpoint"),
    option("--check", "first compare the step with one device, weight by weight, on random tokens"),
    option("--sample N", "generate N tokens of text at the end", count),
    option("--temperature X", "temperature of the sample; 0 is greedy; default: %(default)s", float, 0.8),
)
SPACE = Group(
    "search space",
    CASES["--batch-size"].one(help="global batch, in sequences", required=True),
    CASES["--strategy"]._replace(help=f"such as fsdp,tensor; default: all but auto; {LISTED}"),
    CASES["--mesh"]._replace(help="axes and their sizes, such as data=2,tensor=4; repeatable; default: all meshes"),
    CASES["--microbatches"]._replace(help="parts of the global batch; default: 1, 2, 4, ... per pipeline stage"),
    CASES["--dtype"]._replace(default="bfloat16"),
    CASES["--remat"]._replace(help=f"recompute: {joined(REMATS)}; default: all", default=None, many="list"),
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
            for option in declared.options:
                option.declare(group.addoption)
