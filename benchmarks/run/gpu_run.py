"""Everything that one lent GPU should answer, in a few minutes: `python -m benchmarks.run.gpu_run --out DIR`.

Steps of a group are timed interleaved (`measure.timed`): batch sizes of gpt2, its options on and off, Muon beside
AdamW, PyTorch where it is installed, and other models. A trace of gpt2 is read into kinds of kernels, beside what is
predicted of each kind. `DIR/gpu_run.json` has all that is known after each group. No group starts late (`--minutes`).
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.cases.case import ONE_DEVICE, Case
from benchmarks.cases.failures import reason_of
from benchmarks.cli.tables import aligned
from benchmarks.devices.chips import GPU_KINDS
from benchmarks.devices.topology import Topology
from benchmarks.program.kernels import Kernel, kernels_of, pass_bytes, totals
from benchmarks.run.compilation import Clock, InitialStates, compile_step
from benchmarks.run.corpus import BYTE_VALUES
from benchmarks.run.machine import disable_compilation_cache
from benchmarks.run.measure import Interval, Timeable, timed, trace
from benchmarks.run.references import begin_training
from benchmarks.run.torch_gpt import TorchTraining
from benchmarks.run.traces import IDLE, OTHER, milliseconds_by_kind
from benchmarks.simulate.layer import HOST
from benchmarks.simulate.machines import machine
from benchmarks.simulate.step import predict_seconds
from strategies import PRESETS
from strategies.costs.predict import predict

ROUNDS, TRACED_STEPS = 8, 5
MERGED = (("xla_gpu_dot_merger_threshold_mb", "32"),)
TRITON_ON = (("xla_gpu_enable_triton_gemm", "true"), *MERGED)
"""XLA's defaults, which a step of one GPU changes (`adds_biases_on_one_device`). Matmuls of 32 MB at most are merged:
those of queries, keys and values with 8 sequences, but not with 16."""
PYTORCH = "PyTorch, compiled"
PARTS_BY_KINDS = {
    **{("matmul",): ("matmul", "head"), ("attention",): ("attention",), ("pass", "copy"): ("memory",)},
    **{("optimizer",): ("optimizer",), (IDLE,): (HOST, "fixed"), (OTHER,): ()},
}
"""Kinds of kernels in a trace -> parts of a predicted step. The head has its matmuls and its passes over logits."""


@dataclass(frozen=True)
class Group:
    """Steps of one model and batch, by what differs: options of the step, and of the compiler."""

    preset: str
    batch_size: int
    sizes: Mapping[str, Any]
    variants: Mapping[str, Mapping[str, Any]]
    peer: bool = False

    def cases(self) -> Iterator[tuple[str, Case]]:
        """Each variant's name and case."""
        for name, given in self.variants.items():
            options = {key: value for key, value in given.items() if key not in ("remat", "compiler_options")}
            config = replace(PRESETS[self.preset], **self.sizes)
            remat, flags = given.get("remat", "dots"), given.get("compiler_options", ())
            batch = self.batch_size
            yield (
                name,
                Case(
                    *("single", ONE_DEVICE, self.preset, config, batch, 1, "bfloat16", remat),
                    options=tuple(options.items()),
                    compiler_options=flags,
                ),
            )


DEFAULT: Mapping[str, Mapping[str, Any]] = {"default": {}}
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    **DEFAULT,
    "XLA's own matmuls": {"compiler_options": TRITON_ON},
    "loop over layers": {"unroll": 1},
    "remat=none": {"remat": "none"},
    "logits_bytes=2^30": {"logits_bytes": 2**30},
    "muon": {"optimizer": "muon"},
}
LATENT = {
    **{"layers": 12, "embed": 768, "heads": 12, "vocab": 50257, "sequence": 1024, "mlp": 2048},
    **{"latent_rank": 192, "query_rank": 384, "head_size": 96, "rotary_size": 32, "value_size": 64},
    **{"expert_mlp": 512, "shared_mlp": 512},
}
"""Sizes of gpt2, and the others of nano-mla in its proportions to them."""
GROUPS = (
    Group("gpt2", 16, {}, OPTIONS, peer=True),
    Group("gpt2", 8, {}, {**DEFAULT, "one matmul for queries, keys and values": {"compiler_options": MERGED}}),
    *(Group("gpt2", batch_size, {}, DEFAULT) for batch_size in (32, 64)),
    Group("llama3.2-1b", 4, {"sequence": 4096}, DEFAULT),
    Group("qwen3-0.6b", 16, {"sequence": 1024}, DEFAULT),
    Group("olmoe-1b-7b", 2, {"layers": 4, "sequence": 4096}, DEFAULT),
    Group("nano-mla", 16, LATENT, {**DEFAULT, "attention=xla": {"attention": "xla"}}),
)


def tiny(preset: str) -> tuple[Group, ...]:
    """The groups with a small model and batch, to try this on CPUs. Compiling takes longest: it is not optimised."""
    quick = {"compiler_options": (("xla_backend_optimization_level", "0"),)}
    return (Group(preset, 2, {"layers": 1}, {"default": quick, "remat=none": {"remat": "none", **quick}}, peer=True),)


class Started(NamedTuple):
    """A training run that has begun, what the compiler and the formulas say of its step, and its kernels."""

    training: Timeable
    facts: Mapping[str, Any] = MappingProxyType({})
    kernels: Sequence[Kernel] = ()


def measured(group: Group, folder: Path | None) -> dict[str, Any]:
    """Compile and time a group. With a folder, its first step is traced there, and read into kinds of kernels.

    A step that fails leaves its reason, and the others are timed.
    """
    cases = dict(group.cases())
    states = InitialStates(Clock())
    starts: dict[str, Callable[[], Started]] = {name: partial(start, case, states) for name, case in cases.items()}
    first = next(iter(cases.values()))
    if group.peer and find_spec("torch"):
        starts[PYTORCH] = lambda: Started(TorchTraining(first.config, first.training()))
    started: dict[str, Started] = {}
    found: dict[str, Any] = {}
    for name, begin in starts.items():
        try:
            one = begin()
            one.training.block(1)  # a step may need too much memory, and PyTorch compiles in its first
            started[name], found[name] = one, dict(one.facts)
        except Exception as error:
            found[name] = {"reason": reason_of(error)}
    tokens = first.batch_size * first.config.sequence
    for name, times in timed({name: one.training for name, one in started.items()}, ROUNDS).items():
        interval = Interval.of(times.seconds)
        found[name].update(
            ms=1e3 * median(times.seconds),
            tokens_per_second=tokens / median(times.seconds),
            ms_low=interval and 1e3 * interval.low,
            ms_high=interval and 1e3 * interval.high,
        )
    if folder and (default := started.get("default")):
        trace(folder, partial(default.training.block, TRACED_STEPS))
        traced = milliseconds_by_kind(folder, default.kernels, TRACED_STEPS)
        found["default"]["traced_ms"] = traced
        print(*table_of_kinds(traced, default.facts["predicted_ms"]), sep="\n", file=sys.stderr)
    return found


def start(case: Case, states: InitialStates) -> Started:
    """Compile a step, and start a training run on random bytes. All steps of a group begin with the same loss."""
    tokens = case.batch_size * case.config.sequence
    corpus_N = np.random.default_rng(0).integers(0, BYTE_VALUES, 8 * tokens + 1).astype(np.uint8)
    step = case.build()
    compiled = compile_step(step, case.compiler_options)
    memory, kernels = compiled.program.memory_analysis(), kernels_of(compiled.program.as_text() or "")
    by_kind = totals(kernels)
    training = begin_training(step, compiled.program, partial(states.begin, case, step), corpus_N)
    training.block(1)
    facts = {
        "loss_first": float(training.metrics["loss"]),
        "compile_seconds": compiled.seconds,
        "kernels": sum(count for count, _ in by_kind.values()),
        "pass_bytes": pass_bytes(kernels),
        "temp_bytes": memory and memory.temp_size_in_bytes,
        "by_kind": {kind: {"kernels": count, "bytes": moved} for kind, (count, moved) in by_kind.items()},
        "predicted_ms": predicted(case),
    }
    return Started(training, facts, kernels)


def predicted(case: Case) -> dict[str, float] | None:
    """Predicted milliseconds of a step by part; None for devices without published figures."""
    chip = GPU_KINDS.get(jax.devices()[0].device_kind)
    if not chip:
        return None
    cost = predict("single", case.config, case.mesh, case.training(), case.backend)
    parts = predict_seconds(cost, machine("meshmark_gpus", chip), Topology.parse(f"{chip}:1x1")).parts
    return {name: 1e3 * seconds for name, seconds in parts.items()}


def table_of_kinds(traced: Mapping[str, float], parts: Mapping[str, float] | None) -> list[str]:
    """The lines of a table of milliseconds by kind of kernels, as traced and as predicted; "?" without prediction."""
    rows = [("kind", "traced ms", "predicted ms")]
    for kinds, names in PARTS_BY_KINDS.items():
        spent = sum(traced.get(kind, 0.0) for kind in kinds)
        known = "?" if parts is None or not names else f"{sum(parts.get(name, 0.0) for name in names):.2f}"
        rows.append((", ".join(kinds), f"{spent:.2f}", known))
    return aligned(rows, "<>>")


def main() -> int:
    """Measure the groups one after the other until the time is up."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of gpu_run.json and of the trace")
    parser.add_argument("--preset", help="a small model for all groups, such as nano")
    parser.add_argument("--minutes", type=float, default=7.0, help="no group starts after 6/7 of these (default: 7)")
    args = parser.parse_args()
    disable_compilation_cache()
    if find_spec("torch"):  # JAX takes three quarters of a GPU's memory, unless told otherwise
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.6")
    args.out.mkdir(parents=True, exist_ok=True)
    begin, results = time.monotonic(), []
    facts = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "groups": results}
    for number, group in enumerate(tiny(args.preset) if args.preset else GROUPS):
        if time.monotonic() - begin > args.minutes * 60 * 6 / 7:
            break
        print(f"{time.monotonic() - begin:.0f} s: {group.preset}, {group.batch_size}", file=sys.stderr)
        try:
            steps = measured(group, None if number else args.out / "trace")
        except Exception as error:  # the other groups are still worth their minutes
            steps = {"reason": reason_of(error)}
        results.append({"preset": group.preset, "batch_size": group.batch_size, **group.sizes, "steps": steps})
        (args.out / "gpu_run.json").write_text(json.dumps(facts, indent=1) + "\n")
        print(json.dumps(results[-1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
