"""Train on text under one strategy, with checkpoints, and log the loss.

meshmark train --strategy fsdp --devices 8 --preset nano --steps 300 --out runs/fsdp --sample 200
"""

import argparse
import sys
import warnings
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from benchmarks.cases.failures import CaseFailure, Mismatch, reason_of
from benchmarks.cli.ending import Refused
from benchmarks.cli.outputs import Unwritable, require_folder
from benchmarks.cli.statuses import BROKEN_INPUT, INTERRUPTED
from benchmarks.cluster import processes
from benchmarks.run.compilation import compile_step
from benchmarks.run.machine import disable_compilation_cache, use_virtual_devices
from benchmarks.training.log import SCHEMA_VERSION, Log, LogError, held, require_saves
from benchmarks.training.loop import Progress, Run, Stopping
from benchmarks.training.plan import CHECKPOINTS, LOG, Plan, checkpoint_of
from strategies import STRATEGIES, CheckpointError, Infeasible, State, Step, TrainConfig, checking
from strategies.checkpoints import positions, restore
from strategies.huggingface import HuggingFaceError
from strategies.model.gpt import GPT
from strategies.model.weights import Weights

FAILED = 1
PROMPT = "\n"
UNPRINTABLE = "\ufffd"
"""Takes the place of what would control a terminal."""


def main(option: argparse.Namespace) -> int:
    """Train, and print what is logged.

    Returns:
        The exit status: 0, 1 if the loss is not finite or the step cannot be compiled, 5 if something cannot be read or
        written, 130 if the run was told to stop, 141 if the reader of stdout has ended. It is 2 for invalid options.
    """
    with ExitStack() as holding:
        return train(option, holding)


def train(option: argparse.Namespace, holding: ExitStack) -> int:
    """Train, while the folder of the run is held. See `main`."""
    use_virtual_devices()
    try:
        processes.join(option)
        plan = processes.run_in_all(partial(Plan.of, option))
        step = processes.run_in_all(plan.build)
        position = processes.broadcast_first(partial(first_position, option, plan, holding))
    except (ValueError, CheckpointError, processes.FailedElsewhere) as error:
        processes.end(in_order=True)
        if isinstance(error, Unwritable | CheckpointError):
            raise Unwritable(str(error)) from error
        raise Refused(str(error)) from error
    try:
        code = run(option, plan, step, position)
    except (CheckpointError, LogError, HuggingFaceError) as error:
        code, reason = BROKEN_INPUT, str(error)
    except CaseFailure as error:
        code, reason = FAILED, reason_of(error)
    else:
        reason = ""
    processes.end(in_order=not reason, why=reason)
    if reason:
        print(reason, file=sys.stderr)
    return code


def first_position(option: argparse.Namespace, plan: Plan, holding: ExitStack) -> int:
    """Take hold of the folder of the run. Return the step after which the run begins; 0 unless it is resumed."""
    checkpoints = plan.out / CHECKPOINTS
    if processes.is_first():
        holding.enter_context(held(plan.out))
        require_saves(checkpoints if checkpoints.is_dir() else plan.out)
    require_folder(plan.out)
    if (plan.out / LOG).exists() or checkpoints.exists():
        if not positions(checkpoints):
            problem = f"{plan.out} has a run that cannot be resumed, because it has no checkpoint"
            raise ValueError(f"{problem}; remove {plan.out}, or name another --out")
        if not option.resume:
            raise ValueError(f"{plan.out} has a run already; continue it by --resume, or name another --out")
    if not option.resume:
        return 0
    checkpoint = checkpoint_of(plan.out)
    plan.require_continues(checkpoint)
    return checkpoint.position


def run(option: argparse.Namespace, plan: Plan, step: Step, position: int) -> int:
    """Train from this position to the end, and write a sample.

    The exit status is 0 at the end, 5 or 141 if stdout took no more, 130 if the run was told to stop.
    """
    disable_compilation_cache()
    first = processes.is_first()
    stopping, checkpoints = Stopping(), plan.out / CHECKPOINTS
    if option.check:
        line = processes.run_in_all(partial(checked, plan))
        if first:
            print(line, file=sys.stderr)
    if option.resume:
        state = restore(step, checkpoints, at=position)
    else:
        state = plan.init.state(step) if plan.init else step.init(jax.random.key(plan.seed))
    compilation = compile_step(step, plan.case.compiler_options)
    progress = Progress(plan.steps, position, silent=not first)
    progress.say(f"{plan.case}: {plan.case.preset}, compiled in {compilation.seconds:.1f} s, log: {plan.out / LOG}")
    log = Log(plan.out / LOG, after=position) if first else None
    if log:
        log.write("run", schema_version=SCHEMA_VERSION, resumed_after=position, **plan.facts(step))
    saved = position if option.resume else None
    compiled = replace(step, update=compilation.program, xla_options={})  # its options are in the program
    training = Run(plan, compiled, log, progress, stopping, position, saved)
    try:
        with stopping.listening():
            ended = training.train(state)
    finally:
        if log:
            log.close()
    if not ended:
        progress.say(f"stopped after step {training.position}; continue with --resume")
        return INTERRUPTED
    if option.sample and first:
        progress.say(sample(plan, option.sample, option.temperature))
    return progress.status


def checked(plan: Plan) -> str:
    """Compare the step with one device (strategies/checking), and say in a line what was compared."""
    case = plan.case
    try:
        agrees = checking.check(STRATEGIES[case.strategy], case.config, case.mesh, plan.train, case.devices)
    except checking.Mismatch as error:
        raise Mismatch(f"{case} does not compute what one device computes: {error}") from error
    except Infeasible as error:
        return f"{case} is not compared with one device: {error}"
    except Exception as error:
        problem = f"{case} could not be compared with one device: {reason_of(error)}"
        raise CaseFailure(f"{problem}; train without --check, or check a smaller model") from error
    compared = f"{agrees.gradients} gradients compared, {agrees.below_rounding} below rounding"
    in_float32 = f"; in float32 {agrees.float32}" if agrees.float32 else ""
    return f"{case} equals one device: {compared}{in_float32}"


def sample(plan: Plan, count: int, temperature: float) -> str:
    """Text written by the model of the latest checkpoint, which one device holds in full for this."""
    single = replace(plan.case.single, microbatches=1).build()  # without options that `single` does not have
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the checkpoint's quantisation errors")  # a sample has no use for them
        state: State = restore(single, plan.out / CHECKPOINTS)
    tokens = continued(plan, single.train, state.params, count, temperature)
    text = plan.text.codec.decode(tokens)
    return "".join(letter if letter.isprintable() or letter in "\n\t" else UNPRINTABLE for letter in text)


def continued(plan: Plan, train_config: TrainConfig, weights: Weights, count: int, temperature: float) -> list[int]:
    """`count` tokens after a prompt, each drawn from the model's prediction, on one device.

    Dims: T tokens, V vocabulary. Logits are divided by the temperature; 0 takes the most likely token. The model may
    have more tokens than the text's codec; their logits are ignored.
    """
    config, vocab = plan.case.config, plan.text.codec.vocab

    @jax.jit
    def next_token(weights: Weights, window_1T: Int[Array, "1 T"], last: Int[Array, ""], key: Array) -> Int[Array, ""]:
        model = GPT.of_weights(config, train_config, weights)
        logits_V = model.logits(model.run(model.embed(window_1T))[0])[0, last, :vocab]
        return jax.random.categorical(key, logits_V / temperature) if temperature else jnp.argmax(logits_V)

    prompt = plan.text.codec.encode(PROMPT) or [int(plan.text.tokens_N[0])]
    tokens = list(prompt)
    for index in range(count):
        # Always a whole sequence, so that one program suffices: no token sees the padding after it.
        known = tokens[-config.sequence :]
        window_1T = np.array([[*known, *[0] * (config.sequence - len(known))]], np.int32)
        key = jax.random.fold_in(jax.random.key(plan.seed), index)
        tokens.append(int(next_token(weights, window_1T, len(known) - 1, key)))
    return tokens[len(prompt) :]
