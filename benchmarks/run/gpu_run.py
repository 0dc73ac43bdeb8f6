"""Everything that one lent GPU should answer, in a few minutes: `python -m benchmarks.run.gpu_run --out DIR`.

Steps of a group are timed interleaved (`measure.timed`): batch sizes of gpt2, its options on and off, Muon beside
AdamW, PyTorch where it is installed, and larger models. A trace of gpt2 is read into kinds of kernels, beside what is
predicted of each kind. `DIR/gpu_run.json` has all that is known after each group. No group starts late (`--minutes`).
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import jax
import numpy as np

from benchmarks.cases.case import ONE_DEVICE, Case
from benchmarks.cases.failures import reason_of
from benchmarks.devices.chips import GPU_KINDS
from benchmarks.devices.topology import Topology
from benchmarks.program.kernels import kernels_of, pass_bytes, totals
from benchmarks.run.compilation import compile_step
from benchmarks.run.corpus import BYTE_VALUES
from benchmarks.run.machine import disable_compilation_cache
from benchmarks.run.measure import Interval, Timeable, timed, trace
from benchmarks.run.references import begin_training
from benchmarks.run.torch_gpt import TorchTraining
from benchmarks.run.traces import milliseconds_by_kind
from benchmarks.simulate.machines import machine
from benchmarks.simulate.step import predict_seconds
from strategies import PRESETS
from strategies.costs.predict import predict

ROUNDS, TRACED_STEPS = 8, 5
TRITON_ON = (("xla_gpu_enable_triton_gemm", "true"), ("xla_gpu_dot_merger_threshold_mb", "32"))
PYTORCH = "PyTorch, compiled"


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
    "remat=none": {"remat": "none"},
    "logits_bytes=2^30": {"logits_bytes": 2**30},
    "muon": {"optimizer": "muon"},
}
GROUPS = (
    Group("gpt2", 16, {}, OPTIONS, peer=True),
    *(Group("gpt2", batch_size, {}, DEFAULT) for batch_size in (8, 32, 64)),
    Group("llama3.2-1b", 4, {"sequence": 4096}, DEFAULT),
    Group("qwen3-0.6b", 16, {"sequence": 1024}, DEFAULT),
    Group("olmoe-1b-7b", 2, {"layers": 4, "sequence": 4096}, DEFAULT),
)


def tiny(preset: str) -> tuple[Group, ...]:
    """The groups with a small model and batch, to try this on CPUs."""
    return (Group(preset, 2, {"layers": 1}, {**DEFAULT, "remat=none": OPTIONS["remat=none"]}, peer=True),)


def measured(group: Group, folder: Path | None) -> dict[str, Any]:
    """Compile and time a group. With a folder, its first step is traced there, and read into kinds of kernels."""
    trainings: dict[str, Timeable] = {}
    found: dict[str, Any] = {}
    text, tokens = "", 0
    for name, case in group.cases():
        tokens = case.batch_size * case.config.sequence
        corpus_N = np.random.default_rng(0).integers(0, BYTE_VALUES, 8 * tokens + 1).astype(np.uint8)
        try:
            step = case.build()
            compiled = compile_step(step, case.compiler_options)
            trainings[name] = begin_training(step, compiled.program, jax.jit(step.init), corpus_N)
            facts = as_compiled(compiled.program)
            text = text or compiled.program.as_text() or ""
            found[name] = {"compile_seconds": compiled.seconds, **facts, "predicted_ms": predicted(case)}
        except Exception as error:
            found[name] = {"reason": reason_of(error)}
    if group.peer and find_spec("torch"):
        case = next(group.cases())[1]
        trainings[PYTORCH] = TorchTraining(case.config, case.training())
    for name, times in timed(trainings, ROUNDS).items():
        interval = Interval.of(times.seconds)
        found.setdefault(name, {}).update(
            ms=1e3 * median(times.seconds),
            tokens_per_second=tokens / median(times.seconds),
            ms_low=interval and 1e3 * interval.low,
            ms_high=interval and 1e3 * interval.high,
        )
    if folder and "default" in trainings:
        trace(folder, partial(trainings["default"].block, TRACED_STEPS))
        found["default"]["traced_ms"] = milliseconds_by_kind(folder, kernels_of(text), TRACED_STEPS)
    return found


def as_compiled(program: jax.stages.Compiled) -> dict[str, Any]:
    """Kernels, bytes of memory passes and temporaries of a compiled step."""
    kernels, memory = kernels_of(program.as_text() or ""), program.memory_analysis()
    by_kind = totals(kernels)
    return {
        "kernels": sum(count for count, _ in by_kind.values()),
        "pass_bytes": pass_bytes(kernels),
        "temp_bytes": memory and memory.temp_size_in_bytes,
        "by_kind": {kind: {"kernels": count, "bytes": moved} for kind, (count, moved) in by_kind.items()},
    }


def predicted(case: Case) -> dict[str, float] | None:
    """Predicted milliseconds of a step by part; None for devices without published figures."""
    chip = GPU_KINDS.get(jax.devices()[0].device_kind)
    if not chip:
        return None
    cost = predict("single", case.config, case.mesh, case.training(), case.backend)
    parts = predict_seconds(cost, machine("meshmark_gpus", chip), Topology.parse(f"{chip}:1x1")).parts
    return {name: 1e3 * seconds for name, seconds in parts.items()}


def main() -> int:
    """Measure all groups, or as many as the time allows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of gpu_run.json and of the trace")
    parser.add_argument("--preset", help="a small model for all groups, such as nano")
    parser.add_argument("--minutes", type=float, default=7.0, help="no group starts after 6/7 of these (default: 7)")
    args = parser.parse_args()
    disable_compilation_cache()
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
