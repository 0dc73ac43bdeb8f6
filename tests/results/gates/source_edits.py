"""The changes that are planted to prove the gates: regressions they must find, and harmless ones they must let pass.

An `Edit` changes a copy of a checkout. The copy's benchmarks run, and the exact gate judges their rows. The compiler
does not see a change of a step's numbers or speed alone: such a copy is timed, on one device.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from results.gates.verdict import RED, Finding, Report

COPIED = ("strategies", "benchmarks", "conftest.py", "pyproject.toml")
SIZES = ("--model=embed=64,heads=4,sequence=64",)
# Sizes that compile fast. Two layers, because one makes no loop.
COMPILED_SIZES = (*SIZES, "--model=layers=2", "--batch-size=8", "--compile-only")
COMPILED = (*COMPILED_SIZES, "--strategy=data,fsdp", "--devices=2")
FOR_TPU = (*COMPILED_SIZES, "--strategy=fsdp", "--dtype=bfloat16", "--topology=v5e:2x2")
"""Only a compiler of TPUs shows what is sent in which dtype: XLA's CPU backend sends bfloat16 as float32."""
FOR_GPU = (*COMPILED_SIZES, "--strategy=single", "--dtype=bfloat16", "--topology=h100:1x1")
"""Only rows of one GPU have its kernels."""
TIMED = (*SIZES, "--model=layers=1", "--batch-size=8", "--strategy=single", "--devices=1", "--rounds=6")
QUICK = "--xla_backend_optimization_level=0"  # LLVM's optimisation changes no counter
SINGLE, DATA, FSDP, ON_TPU = "single-data=1-b8", "data-data=2-b8", "fsdp-fsdp=2-b8", "fsdp-fsdp=4-b8"
ALARMS = ("red", "not comparable", "broken input")
ELSEWHERE = "red elsewhere"
"""Red for another reason than the plant, or in more cases than the planted ones: not counted as found."""


@dataclass(frozen=True)
class Plant:
    """A change that is planted, and what is claimed of it.

    Attributes:
        name: what is planted.
        gate: which gate is to judge it.
        counted: the words that are counted: alarms, where there is nothing to find.
        at_least, at_most: the part of comparisons that is claimed to end in one of them.
    """

    name: str
    gate: Literal["exact", "paired"]
    counted: tuple[str, ...]
    at_least: float = 0.0
    at_most: float = 1.0


@dataclass(frozen=True)
class Slowdown(Plant):
    """A slowdown of timed blocks by the fraction `slowdown` of their time."""

    slowdown: float = 0.0


@dataclass(frozen=True)
class Edit(Plant):
    """Another text.

    Attributes:
        file: where.
        changes: what it says, once, and what it is to say instead.
        cases: those that must be red, and no others: none where nothing gets worse.
        evidence: how that which is said of each of them begins: a word, a metric, a note.
        options: of the benchmarks that show it.
    """

    file: str = ""
    changes: tuple[tuple[str, str], ...] = ()
    cases: tuple[str, ...] = ()
    evidence: str = ""
    options: tuple[str, ...] = COMPILED


def regression(
    name: str,
    file: str,
    *changes: tuple[str, str],
    cases: tuple[str, ...] = (DATA, FSDP),
    evidence: str,
    options: tuple[str, ...] = COMPILED,
) -> Edit:
    """An edit that the exact gate must find every time."""
    return Edit(name, "exact", ("red",), 1.0, 1.0, file, changes, cases, evidence, options)


def harmless(name: str, file: str = "", *changes: tuple[str, str], options: tuple[str, ...] = COMPILED) -> Edit:
    """An edit at which the exact gate must never raise an alarm."""
    return Edit(name, "exact", ALARMS, at_most=0.0, file=file, changes=changes, options=options)


EXACT = (
    harmless("nothing"),
    harmless("nothing, timed", options=TIMED),
    harmless(
        "other names and comments",
        "strategies/model/parts.py",
        ("        up_NF = add_bias", "        # What the MLP holds.\n        wide_NF = add_bias"),
        ("reshape(gelu_matmul(up_NF,", "reshape(gelu_matmul(wide_NF,"),
    ),
    harmless("cases in another order", "benchmarks/cases/case.py", ('name != "single"', 'name == "data"')),
    regression(
        "an extra all-reduce",
        "strategies/core/gradients.py",
        (
            "lax.psum([sums[i] for i in chosen], group)",
            'lax.psum([sums[i] + 0 * lax.pcast(lax.pmax(sums[i], group), group, to="varying") for i in chosen], group)',
        ),
        cases=(DATA,),
        evidence="worse compiled.collectives.all_reduce.outside_loops",
    ),
    regression(
        "a gather out of its loop",
        "strategies/model/gpt.py",
        (
            "nnx.split(stack)\n",
            "nnx.split(stack)\n"
            "        stacked = jax.vmap(lambda weights: nnx.split(self._ready((graph, weights)))[1])(stacked)\n",
        ),
        ("nnx.split(self._ready((graph, self.hooks.layer(stored))))[1]", "self.hooks.layer(stored)"),
        cases=(FSDP,),
        evidence="worse compiled.collectives.all_gather.outside_loops",
    ),
    regression(
        "a gather in float32",
        "strategies/fsdp.py",
        (
            "gather(part.astype(dtype), split)",
            # The barrier keeps the compiler from casting before it gathers.
            'jax.lax.optimization_barrier(gather(part.astype("float32"), split)).astype(dtype)',
        ),
        cases=(ON_TPU,),
        evidence="worse compiled.sent_bytes.all_gather.fsdp",
        options=FOR_TPU,
    ),
    regression(
        "one matmul for queries, keys and values",
        "strategies/model/hooks.py",
        ('return self.kernel == "cudnn" and', 'return self.kernel == "none" and'),
        cases=(SINGLE,),
        evidence="worse compiled.kernels.copy",
        options=FOR_GPU,
    ),
    regression(
        "a retrace",
        "strategies/step.py",
        (
            "        return self._tuned_update.lower(self.state, self.batch)",
            "        jax.jit(lambda *traced: self.update(*traced)).lower(self.state, self.batch).compile()\n"
            "        return self._tuned_update.lower(self.state, self.batch)",
        ),
        evidence="worse compiled.compilations",
    ),
    regression(
        "a retrace in every step",
        "benchmarks/run/references.py",
        ("Training(program, ", "Training(lambda *inputs: jax.jit(lambda *traced: step.update(*traced))(*inputs), "),
        cases=(SINGLE,),
        evidence="worse error: compiled while it was timed",
        options=TIMED,
    ),
    regression(
        "an activation kept twice",  # before the GELU and after it
        "strategies/model/parts.py",
        ("reshape(gelu_matmul(up_NF,", "reshape(matmul(checkpoint_name(gelu(up_NF), KEPT),"),
        evidence="worse memory.temp_bytes",
    ),
    regression(
        "a case gone",
        "strategies/fsdp.py",
        ('Strategy("fsdp", (AXIS,))', 'Strategy("fsdp", (AXIS,), most_devices=0)'),
        cases=(FSDP,),
        evidence="vanished",
    ),
    regression(
        "a case renamed",
        "benchmarks/cases/case.py",
        ('"-".join([self.strategy, ', '"-".join([self.strategy.replace("fsdp", "zero"), '),
        cases=(FSDP,),
        evidence="vanished renamed? test_step[zero-fsdp=2-b8] is the same program",
    ),
    regression(
        "a counter that is NaN",
        "benchmarks/run/compilation.py",
        ("int(count)", 'float("nan")'),
        evidence="worse compiled.bytes_accessed not known in HEAD",
    ),
    regression(
        "a loss that is NaN",
        "strategies/model/ends.py",
        ("= jnp.log(total_N) + ", "= jnp.nan + jnp.log(total_N) + "),
        cases=(SINGLE,),
        evidence="worse nan_loss: ",
        options=TIMED,
    ),
)


def copied(checkout: Path, folder: Path) -> Path:
    """Copy the parts of a checkout that the benchmarks need; return the folder."""
    folder.mkdir(parents=True)
    for name in COPIED:
        path = checkout / name
        if path.is_dir():
            shutil.copytree(path, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, folder / name)
    return folder


def edited(checkout: Path, edit: Edit) -> str:
    """What the file that it changes is to say.

    Raises:
        ValueError: it does not say, just once, what is to be changed.
    """
    text = (checkout / edit.file).read_text(encoding="utf-8")
    for plain, planted in edit.changes:
        if (times := text.count(plain)) != 1:
            raise ValueError(f"{edit.name!r} cannot be planted: {edit.file} says {plain!r} {times} times, not once")
        text = text.replace(plain, planted)
    return text


def planted(checkout: Path, folder: Path, edit: Edit) -> Path:
    """Make the edit in a copy; return its folder.

    Raises:
        ValueError: as `edited`.
    """
    copied(checkout, folder)
    if edit.changes:
        (folder / edit.file).write_text(edited(checkout, edit), encoding="utf-8")
    return folder


def rows(checkout: Path, edit: Edit) -> Path:
    """The rows of an edited copy: what the compiler says of its steps, or what they take.

    Raises:
        SystemExit: its benchmarks did not end as they should; with their last words.
    """
    out = checkout / "rows.json"
    command = [sys.executable, "-m", "pytest", "benchmarks", *edit.options, f"--benchmark-json={out}"]
    environment = os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {QUICK}".strip()}
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
    failing = int(bool(edit.changes))  # pytest's 1: a case failed, as it may where something is planted
    if done.returncode not in (0, failing) or not out.exists():
        sys.exit(f"{edit.name!r}: the benchmarks ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr}")
    return out


def case_id(finding: Finding) -> str:
    """The test id of the case that is spoken of.

    >>> case_id(Finding("test_step[data-data=2-b8] nano float32", "same"))
    'data-data=2-b8'
    """
    return finding.case.partition("[")[2].partition("]")[0]


def said(edit: Edit, report: Report) -> str:
    """The verdict of a report, or `ELSEWHERE` if it is red for another reason or in more cases than planted."""
    red = [finding for finding in report.findings if finding.word in RED]
    evident = {
        case_id(finding)
        for finding in red
        if " ".join(filter(None, (finding.word, finding.metric, finding.note))).startswith(edit.evidence)
    }
    as_planted = evident == set(edit.cases) == set(map(case_id, red))
    return report.verdict if as_planted or not (red and edit.cases) else ELSEWHERE
