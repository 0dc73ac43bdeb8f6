"""What a training run does, from the options of the command."""

import argparse
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from benchmarks.cases.case import Case, options_of
from benchmarks.cases.selection import OPTIONS, available_devices, model, selected
from benchmarks.cli.commands import COMMANDS
from benchmarks.cli.options import MODEL_KEYS, TEMPERATURE
from benchmarks.cli.outputs import safe_name
from benchmarks.run.machine import PACKAGES
from benchmarks.run.remat import resolved_remats
from benchmarks.training.text import TOKENIZER, Text
from strategies import PRESETS, STRATEGIES, CheckpointError, GPTConfig, Step, TrainConfig
from strategies.checkpoints import CheckpointInfo, positions, read_info
from strategies.config import idle_options
from strategies.huggingface import METADATA, Pretrained, read
from strategies.model.gpt import param_count, resolved
from strategies.names import differences

LEARNING = (
    *("batch_size", "learning_rate", "warmup_steps", "decay_steps", "final_learning_rate"),
    *("beta1", "beta2", "epsilon", "weight_decay", "clip_norm", "z_loss"),
    *("optimizer", "by_head", "matrix_scale", "momentum", "nesterov", "momentum_dtype"),
    *("dtype", "loss_scale", "loss_scale_growth_steps", "reduce_dtype", "compression", "compression_warmup"),
)
"""Fields of `TrainConfig` that change what is learnt, and not only the order in which it is computed."""
OF_SOME_STRATEGIES = "reduce_dtype", "compression", "compression_warmup"
"""Those of them that some strategies do not have."""
OPTION_OF = {
    **{name: f"--option {name}=..." for name in OPTIONS},
    **{each.name.lstrip("-").replace("-", "_"): each.name for each in COMMANDS["train"].all_options()},
    **{key: f"--model {key}=..." for key in MODEL_KEYS},
    **{"tokens": "--tokenizer", "corpus_sha256": "--corpus", "tokenizer_sha256": "--init"},
}
"""Fields of a recipe -> the options that set them."""
CHECKPOINTS = "checkpoints"
LOG = "log.jsonl"


@dataclass(frozen=True)
class Plan:
    """A training run: the options of these names, and what follows from others.

    Without `init` the first weights are drawn. `huggingface` has fields of its config.json to write again
    (`Pretrained.kept`). Without `checkpoint_every` there is a checkpoint at the end only.
    """

    case: Case
    train: TrainConfig
    text: Text
    init: Pretrained | None
    huggingface: Mapping[str, Any]
    steps: int
    seed: int
    out: Path
    log_every: int
    evaluate_every: int
    checkpoint_every: int | None
    evaluation_batches: int
    keep: int | None

    @classmethod
    def of(cls, option: argparse.Namespace) -> "Plan":
        """The plan that the options describe. Starts JAX's backend to count devices."""
        text = _text_of(option)
        case = _case_of(option)
        out = option.out.expanduser() if option.out else Path("runs", safe_name(f"{case.strategy}-{case.mesh}"))
        saved = checkpoint_of(out) if option.resume and positions(out / CHECKPOINTS) else None
        preset, config, init = _model_of(option, text, saved)
        text.require_sequences(config.sequence)
        if not 0 <= option.temperature < math.inf:
            raise ValueError(f"--temperature {option.temperature}; it must be at least 0")
        if option.sample is None and option.temperature != TEMPERATURE:
            raise ValueError("--temperature is of --sample; pass --sample, too")
        case = replace(case, preset=preset, config=config)
        if saved and config.balance_loss and not option.microbatches:
            case = replace(case, microbatches=_microbatches_of(saved, out))
        (case,) = resolved_remats([case])
        return cls(
            case=case,
            train=case.training(**_optimizer_of(option)),
            text=text,
            init=init,
            huggingface=init.kept if init else saved.metadata.get(METADATA, {}) if saved else {},
            out=out,
            **{name: getattr(option, name) for name in ("steps", "seed", "log_every", "evaluate_every", "keep")},
            **{name: getattr(option, name) for name in ("checkpoint_every", "evaluation_batches")},
        )

    def build(self) -> Step:
        """Build the step on the first devices of this machine."""
        case = self.case
        return STRATEGIES[case.strategy].build(case.config, case.mesh, self.train, case.devices)

    @property
    def recipe(self) -> dict[str, Any]:
        """What decides the losses, to rounding: a run is resumed only with the same recipe."""
        idle = idle_options(vars(self.train))
        learning = {name: getattr(self.train, name) for name in LEARNING if name not in idle}
        others: dict[str, Any] = {"seed": self.seed, "evaluation_batches": self.evaluation_batches}
        if self.case.config.balance_loss:  # experts are balanced over each microbatch
            others["microbatches"] = self.train.microbatches
        if self.train.optimizer == "muon":
            others["matrices"] = "block" if self.train.matrices == "block" else "whole"
        text = {"tokens": self.text.kind, "corpus_sha256": self.text.sha256}
        text |= {"tokenizer_sha256": self.text.codec.sha256} if self.text.codec.sha256 else {}
        return as_json({**dataclasses.asdict(resolved(self.case.config)), **learning, **text, **others})

    def require_continues(self, checkpoint: CheckpointInfo) -> None:
        """Check that this plan continues the run that wrote a checkpoint.

        Options that its strategy does not have may differ, so that a run with compressed gradients can go on under a
        strategy without compression. So may those that the recipe of an older checkpoint does not name.
        """
        if checkpoint.position > self.steps:
            position = checkpoint.position
            raise ValueError(f"the run in {self.out} is at step {position}; --steps must be at least {position}")
        recipe = checkpoint.metadata.get("recipe")
        if not recipe:
            raise ValueError(f"the checkpoint in {self.out} has no recipe of a training run; train into another --out")
        # Of the model, the checkpoint's own: fields that did not exist when it was written have their defaults there.
        before = as_json({**recipe, **dataclasses.asdict(resolved(checkpoint.config))})
        lacks = {*OF_SOME_STRATEGIES}.difference(options_of(self.case.strategy))
        compared = {name: now for name, now in self.recipe.items() if name in before and name not in lacks}
        if differs := differences(before, compared, OPTION_OF):
            problem = f"the run in {self.out} has {differs}"
            raise ValueError(f"{problem}; resume it with its own options, or train into another --out")

    def facts(self, step: Step) -> dict[str, Any]:
        """The first line of the log."""
        return {
            "strategy": self.case.strategy,
            "mesh": str(self.case.mesh),
            "preset": self.case.preset,
            "parameters": param_count(self.case.config),
            "model": dataclasses.asdict(self.case.config),
            "training": dataclasses.asdict(self.train),
            "corpus": {"name": self.text.name, "sha256": self.text.sha256, "tokens": self.text.kind},
            "training_tokens": len(self.text.training_N),
            "validation_tokens": len(self.text.validation_N),
            "evaluation_batches": self.evaluation_batches,
            "seed": self.seed,
            "platform": step.mesh.devices.flat[0].platform,
            "device_kind": step.mesh.devices.flat[0].device_kind,
            "devices": step.mesh.size,
            "processes": jax.process_count(),
            "versions": {package: version(package) for package in PACKAGES},
        }


def as_json(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts with the names of numbers that are not finite, which JSON does not have.

    >>> as_json({"seed": 0, "clip_norm": math.inf})
    {'seed': 0, 'clip_norm': 'inf'}
    """
    return {name: str(x) if isinstance(x, float) and not math.isfinite(x) else x for name, x in facts.items()}


def checkpoint_of(out: Path) -> CheckpointInfo:
    """The latest checkpoint of the run in a folder, from which it is resumed."""
    try:
        return read_info(out / CHECKPOINTS)
    except CheckpointError as error:
        way_out = "" if positions(out / CHECKPOINTS) else "; name the folder of a run by --out, or remove --resume"
        raise ValueError(f"--resume: {error}{way_out}") from error


def _microbatches_of(saved: CheckpointInfo, out: Path) -> int:
    """The number of microbatches of a run with a balance loss, which is computed over each of them."""
    try:
        return saved.metadata["recipe"]["microbatches"]
    except (KeyError, TypeError):
        problem = f"the checkpoint in {out} does not say its number of microbatches, on which the balance loss depends"
        raise ValueError(f"{problem}; pass --microbatches: it is in {out / LOG}") from None


def _text_of(option: argparse.Namespace) -> Text:
    """The text as bytes, or as tokens of the folder of --init if it has a tokenizer.json, unless told otherwise."""
    path = option.init / TOKENIZER if option.init else None
    if option.tokenizer == "init" and not (path and path.exists()):
        problem = f"{path} does not exist" if path else "there is no --init"
        raise ValueError(
            f"--tokenizer init reads {TOKENIZER} of the folder of --init, and {problem}; use bytes or chars"
        )
    kind = option.tokenizer or ("init" if path and path.exists() else "bytes")
    return Text.read(option.corpus, kind, path if kind == "init" else None)


def _model_of(
    option: argparse.Namespace, text: Text, saved: CheckpointInfo | None
) -> tuple[str, GPTConfig, Pretrained | None]:
    """The model: of a folder, of the run that is resumed, or of a preset.

    The latter has the vocabulary of the text if tokens are its characters.
    """
    if option.init and option.preset:
        raise ValueError(f"--preset {option.preset} and --init {option.init} both name a model; remove one of them")
    init = read(option.init) if option.init else None
    tokens = text.codec.vocab
    if text.kind == "chars" and not init:
        vocab = dict(option.model).get("vocab", tokens)
        if vocab != tokens:
            problem = f"--model vocab={vocab}, and the corpus {text.name} has {tokens} characters"
            raise ValueError(f"{problem}; remove it, or use --tokenizer bytes")
        option.model = [*option.model, ("vocab", vocab)]
    base = (str(init.folder), init.config) if init else None
    if saved and not option.preset and not init:
        base = str(saved.metadata.get("preset", "the saved model")), saved.config
    preset, config = model(option, base)
    if saved and base and config == saved.config:
        preset = base[0]  # without the sizes that are given again
    if init:
        init.require_same(config)
    if config.vocab < tokens:
        named = {"bytes": "byte values of text", "chars": "characters of the corpus", "init": f"tokens of {TOKENIZER}"}
        raise ValueError(f"vocab={config.vocab} does not hold the {tokens} {named[text.kind]}; use {tokens} or more")
    return preset, config, init


def _case_of(option: argparse.Namespace) -> Case:
    """The one case that the options select, with any model: its mesh does not depend on that."""
    varied = {"attention-window": option.attention_window, "routing": option.routing}
    if several := [f"--{name} {values}" for name, values in varied.items() if len({*values}) > 1]:
        raise ValueError(f"{' and '.join(several)} has several values, and a run trains with one; remove the others")
    usual = 0 if option.mesh else 1 if option.strategy == "single" else available_devices()
    one = {name: getattr(option, name) for name in ("strategy", "mesh", "batch_size", "microbatches")}
    one |= {"devices": option.devices or usual}
    lists = {name: [value] if value else [] for name, value in one.items()}
    lists |= {"attention_window": [], "routing": []}
    selection = selected(argparse.Namespace(**vars(option) | lists), ("nano", PRESETS["nano"]))
    cases = selection.cases()
    if len(cases) == 1:
        return cases[0]
    if len(meshes := sorted({str(case.mesh) for case in cases})) > 1:
        wanted = f"{option.strategy} on {selection.devices[0]} devices has {len(meshes)} meshes"
        raise ValueError(f"{wanted}; choose one of them by --mesh: {', '.join(meshes)}")
    several = f"--option {selection.options} has several values"
    raise ValueError(f"{several}, and a run trains with one; remove the others")


def _optimizer_of(option: argparse.Namespace) -> dict[str, Any]:
    """The fields of `TrainConfig` that the options name, with defaults that depend on the number of steps."""
    names = "learning_rate", "warmup_steps", "decay_steps", "final_learning_rate", "beta1", "beta2"
    given = {name: getattr(option, name) for name in (*names, "weight_decay", "clip_norm")}
    defaults = {
        "warmup_steps": option.steps // 20,
        "decay_steps": option.steps,
        "final_learning_rate": option.learning_rate / 10,
    }
    return {name: defaults[name] if value is None else value for name, value in given.items()}
