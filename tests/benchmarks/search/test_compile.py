"""`benchmarks.search.compile` compiles steps for devices that are absent, and reports whatever the compiler answers."""

import dataclasses
import re
from functools import partial
from typing import Any

import pytest

from benchmarks.cases.case import Case
from benchmarks.cases.failures import CompileError
from benchmarks.cases.row import Row
from benchmarks.devices.chips import CHIPS, GIB, GPUS
from benchmarks.devices.topology import Topology
from benchmarks.program.compiled import read_program
from benchmarks.run import prepare
from benchmarks.run.compilation import compile_step
from benchmarks.run.pool import run_in_processes
from benchmarks.search import compile as page
from benchmarks.search.compile import case_report
from benchmarks.search.compiled import compile_and_replay, compiled_record
from benchmarks.simulate.machines import machine
from strategies import GPTConfig, MeshSpec, strategy
from strategies.backends.backend import NVIDIA_GPU
from tests.benchmarks.search.searching import TINY
from tests.commands import command

CONFIG = GPTConfig(layers=2, embed=16, heads=2, vocab=256, sequence=8)


def case(kind: str = "cpu:4", strategy: str = "fsdp", mesh: str = "fsdp=4") -> Case:
    """A case of a tiny model on absent devices."""
    return Case(strategy, MeshSpec.parse(mesh), "tiny", CONFIG, 4, 1, "float32", "dots", topology=Topology.parse(kind))


def compile_case(case: Case) -> Row:
    """The row of a case that is compiled and not run."""
    return compiled_record(case).as_row()


def test_virtual_devices_have_no_chip_figures() -> None:
    """A step compiled for virtual devices gets predicted bytes and memory, and no chip or roofline figures."""
    info = compile_case(case()).extra_info
    assert (info["status"], info["kind"], info["topology"], info["devices"]) == ("ok", "compiled", "cpu:4", 4)
    assert info["sent_as_predicted"] is True
    assert info["memory.argument_bytes"] == info["predicted.argument_bytes"]
    assert info["chip.fits"] is info["roofline.step_seconds"] is None
    assert (info["rewrites.text"], info["rewrites.sent_bytes"], info["rewrites.flops"]) == ("", 0, 0)


def test_rewrites_of_the_compiler_are_named() -> None:
    """XLA's CPU backend sends bfloat16 as float32: the row and the report name the rewrite and its bytes."""
    row = compile_case(dataclasses.replace(case(), dtype="bfloat16"))
    info: dict[str, Any] = row.extra_info
    assert info["rewrites.text"].startswith("all_gather over fsdp: ")
    assert info["rewrites.sent_bytes"] == info["compiled.sent_bytes"] - info["predicted.sent_bytes"] > 0
    assert info["overlap.sent_bytes.waited_for"] == info["compiled.sent_bytes"]
    assert "what the compiler changed" in "\n".join(case_report(row))


def test_a_step_that_fits_has_a_roofline_time(pretended: Any) -> None:
    """A step that fits a chip gets a roofline time, the largest of its compute, memory and network times."""
    pretended(80 * GIB)
    row = compile_case(case("h100:1x4"))
    info: dict[str, Any] = row.extra_info
    assert (info["status"], info["chip.fits"], info["chip.capacity_bytes"]) == ("ok", True, 80 * GIB)
    assert info["chip.needed_bytes"] == info["memory.total_bytes"] > 0
    parts = [info[f"roofline.{part}_seconds"] for part in ("compute", "memory", "network")]
    assert info["roofline.step_seconds"] == max(parts)
    assert info["roofline.network_seconds"] == pytest.approx(
        info["compiled.sent_bytes"] / CHIPS["h100"].link_bytes_per_second
    )
    text = "\n".join(case_report(row))
    assert "it fits" in text
    assert "ms by the compiled schedule, at published figures" in text
    assert "roofline: it takes at least" in text
    parts = [info[f"replay.{part}_seconds"] for part in ("compute", "memory", "exposed", "idle")]
    assert info["replay.step_seconds"] == pytest.approx(sum(parts))
    assert info["replay.step_seconds"] >= info["roofline.step_seconds"]
    assert info["replay.idle_seconds"] == 0


def test_a_replay_of_a_pipeline_is_in_lockstep(pretended: Any) -> None:
    """Its bubble is that of ticks as long as on the busiest stage. Collectives that are waited for lengthen none."""
    pretended(80 * GIB)
    pipeline = dataclasses.replace(case("h100:1x4", "three_d", "data=2,pipeline=2"), microbatches=2)
    info: dict[str, Any] = compile_case(pipeline).extra_info
    busy, idle = info["replay.compute_seconds"] + info["replay.memory_seconds"], info["replay.idle_seconds"]
    works = (1 - info["predicted.bubble"]) * (1 - info["predicted.lockstep_bubble"])
    assert info["predicted.lockstep_bubble"] > 0.05
    assert busy / (busy + idle) == pytest.approx(works)


def test_a_step_that_does_not_fit_says_how_much_it_needs(pretended: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step too large for the chip's memory is an `oom` row with the bytes it needs, compiled or refused."""
    pretended(1000)
    info: dict[str, Any] = compile_case(case("h100:1x4")).extra_info
    assert (info["status"], info["chip.fits"]) == ("oom", False)
    assert info["chip.needed_bytes"] == info["memory.total_bytes"] > 1000
    assert info["compiled.sent_bytes"] > 0

    def abandon_reference(*_: Any) -> None:
        raise CompileError("RESOURCE_EXHAUSTED: the memory required (20.00G) exceeds available HBM (15.75G).")

    monkeypatch.setattr(prepare, "compile_step", abandon_reference)
    row = compile_case(case("h100:1x4"))
    info = row.extra_info
    assert (info["status"], info["chip.fits"]) == ("oom", False)
    assert (info["chip.needed_bytes"], info["chip.capacity_bytes"]) == (20 * GIB, 15.75 * GIB)
    assert str(info["reason"]).startswith("needs 20.0 GiB of 15.8 GiB, 4.2 GiB too much: RESOURCE_EXHAUSTED")
    assert "oom: needs 20.0 GiB" in "\n".join(case_report(row))


def test_a_kernel_that_exceeds_vmem_is_a_compile_error(pretended: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that exceeds a core's VMEM is a compile error, and says nothing about the memory of a device."""
    pretended(80 * GIB)

    def abandon_reference(*_: Any) -> None:
        raise CompileError(
            "JaxRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem while allocating on stack. "
            "Scoped allocation with size 17.19M and limit 16.00M exceeded scoped vmem limit by 1.19M."
        )

    monkeypatch.setattr(prepare, "compile_step", abandon_reference)
    info: dict[str, Any] = compile_case(case("h100:1x4")).extra_info
    assert (info["status"], info["chip.fits"], info["chip.needed_bytes"]) == ("compile_error", None, None)
    assert "memory space vmem" in info["reason"]


def test_what_cannot_be_compiled_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mesh that does not fit model or devices is an infeasible row, a failing compiler a `compile_error`."""
    assert compile_case(case(strategy="tensor", mesh="tensor=4")).extra_info["status"] == "infeasible"
    short = compile_case(case("cpu:8")).extra_info
    assert "mesh fsdp=4 needs 4 devices, and got 8" in str(short["reason"])

    def fail(*_: Any) -> None:
        raise CompileError("INTERNAL: no")

    monkeypatch.setattr(prepare, "compile_step", fail)
    assert compile_case(case()).extra_info["status"] == "compile_error"


def test_compiling_reads_no_text() -> None:
    """Compiling reads no text: the sequence may be longer than the corpus, and the vocabulary smaller than 256."""
    # No power of two: with one, XLA's CPU compiler ends the process (CONTRIBUTING.md, "Faults of compilers").
    long, single = dataclasses.replace(CONFIG, sequence=1_000_000, vocab=64), case("cpu:1", "single", "data=1")
    assert compile_case(dataclasses.replace(single, config=long, remat="full")).extra_info["status"] == "ok"


def test_compiler_options_reach_the_compiler_and_the_row() -> None:
    """The compiler gets the case's options, and the row records them; an unknown one is a compile error."""
    told = dataclasses.replace(case(), compiler_options=(("xla_disable_hlo_passes", "cse,dce"),))
    row = compile_case(told)
    assert (row.extra_info["status"], row.extra_info["compiler_options"]) == ("ok", "xla_disable_hlo_passes=cse,dce")
    assert "with xla_disable_hlo_passes=cse,dce" in "\n".join(case_report(row))
    strange = compile_case(dataclasses.replace(case(), compiler_options=(("xla_no_such", "1"),))).extra_info
    assert (strange["status"], strange["compiler_options"]) == ("compile_error", "xla_no_such=1")
    assert "xla_no_such" in str(strange["reason"])


TEXT = ["--topology=cpu:4", "--corpus=README.md"]
"""A corpus is refused where nothing runs, because nothing would be read of it."""


def test_report_and_exit_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit status is 0 for a step that fits or does not, 1 if compiling fails or nothing is feasible, and 2 for bad
    options.
    """
    monkeypatch.setattr(Topology, "prepare", lambda self: None)  # JAX has started
    assert command("compile")(["--topology=cpu:4", "--strategy=fsdp", *TINY]) == 0
    assert "fsdp-fsdp=4-b4" in capsys.readouterr().out
    rows = {"oom": 0, "infeasible": 1, "compile_error": 1, "error": 1}
    for status, code in rows.items():
        record = dataclasses.replace(compiled_record(case(strategy="tensor", mesh="tensor=4")), status=status)
        monkeypatch.setattr(page, "compiled_record", lambda case, record=record: record)
        assert command("compile")(["--topology=cpu:4", "--strategy=fsdp", *TINY]) == code
    for wrong in (["--strategy=fsdp"], ["--topology=v5e:x"], ["--topology=cpu:4", "--model=layers=0"], TEXT):
        with pytest.raises(SystemExit, match="2"):
            command("compile")(wrong)


@pytest.mark.libtpu
def test_a_pod_slice_is_compiled_for() -> None:
    """libtpu compiles a step for a TPU slice; bytes sent, explained rewrites and roofline agree with the formulas."""
    whole = dataclasses.replace(case("v5e:4x4", mesh="fsdp=16"), batch_size=16, dtype="bfloat16")
    info: dict[str, Any] = compile_case(whole).extra_info
    assert (info["status"], info["platform"], info["device_kind"]) == ("ok", "tpu", "TPU v5 lite")
    assert info["chip.fits"] is True
    assert info["memory.argument_bytes"] >= info["predicted.argument_bytes"]  # arrays are padded to tiles
    parts = {part: info[f"roofline.{part}_seconds"] for part in ("compute", "memory", "network")}
    assert info["roofline.step_seconds"] == parts[info["roofline.bound"]] == max(parts.values())
    fastest = 4 * CHIPS["v5e"].link_bytes_per_second  # a chip has links along two dims, both ways
    assert parts["network"] >= (1 - 1e-9) * info["compiled.sent_bytes"] / fastest


@pytest.mark.cuda
@pytest.mark.parametrize("strategy", ["fsdp", "explicit"])
def test_a_host_of_gpus_is_compiled_for(strategy: str) -> None:
    """XLA's GPU compiler compiles for described GPUs, and the program sends what the formulas predict.

    The compilation runs in a process of its own, as the command's does: without a GPU, JAX finds the GPU plugin only if
    no backend but the CPU's is requested before it starts.
    """
    tiny = dataclasses.replace(case("h100:1x4", strategy), dtype="bfloat16")
    (outcome,) = run_in_processes([tiny], partial(compile_and_replay, machine=machine("meshmark_gpus", "h100")), 1, 300)
    assert outcome.reason == ""
    info: dict[str, Any] = outcome.result
    assert (info["status"], info["platform"], info["device_kind"]) == ("ok", "gpu", GPUS["h100"]["name"])
    assert (info["chip.fits"], info["chip.capacity_bytes"]) == (True, CHIPS["h100"].memory_bytes)
    assert info["memory.argument_bytes"] == info["predicted.argument_bytes"]


@pytest.mark.libtpu
def test_a_failing_pass_of_libtpu_is_disabled_and_named() -> None:
    """With weights over fsdp and tensor, the pass on which libtpu fails is disabled, and the row names it."""
    split = dataclasses.replace(case("v5e:4x4", "three_d", "fsdp=8,tensor=2"), batch_size=16, dtype="bfloat16")
    info = compile_case(split).extra_info
    assert info["status"] == "ok"
    assert "xla_disable_hlo_passes=while-loop-all-reduce-code-motion" in str(info["compiler_options"]).split()


@pytest.mark.cuda
def test_gpus_gather_updated_weights_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are gathered by layer into the old ones. Gathered whole, matrices have a second copy as temporaries."""
    config = GPTConfig(layers=8, embed=256, heads=2, vocab=256, sequence=8)
    zero1 = dataclasses.replace(case("h100:1x4", "zero1", "data=4"), config=config)
    temporaries = []
    for backend in (NVIDIA_GPU, dataclasses.replace(NVIDIA_GPU, gathers_outermost_only=False)):
        monkeypatch.setattr(strategy, "backend_of", lambda device, backend=backend: backend)
        info: dict[str, Any] = compile_case(zero1).extra_info
        assert info["sent_as_predicted"]
        temporaries.append(info["memory.temp_bytes"])
    matrices = 4 * 12 * config.layers * config.embed**2
    assert temporaries[0] < temporaries[1] - matrices / 2


@pytest.mark.cuda
@pytest.mark.factorisations
def test_a_window_is_that_of_cudnn() -> None:
    """On H100s attention in bfloat16 is cuDNN's kernels, forward and backward; a window is an argument of both.

    The program's FLOPs are fewer by those of the keys that a window of 32 of 128 tokens skips: it computes 48 of each
    query, dense attention 96, in 2 matmuls forward and 5 backward.
    """
    flops = {}
    for window in (32, None):
        config = GPTConfig(layers=2, embed=128, heads=2, vocab=256, sequence=128, attention_window=window)
        step = dataclasses.replace(case("h100:1x4", "data", "data=4"), config=config, dtype="bfloat16").build()
        text = compile_step(step).program.as_text() or ""
        calls = [line for line in text.splitlines() if 'custom_call_target="__cudnn$fmha' in line]
        targets = [re.findall(r"__cudnn\$(\w+)", line)[0] for line in calls]
        assert sorted(targets) == ["fmhaSoftmax", "fmhaSoftmaxBackward"]
        assert [re.findall(r'"sliding_window_length": *"?(\d+)', line) for line in calls] == [[str(window or 0)]] * 2
        flops[window] = read_program(text, step.mesh.shape).flops
    assert flops[None] - flops[32] == (2 + 5) * config.layers * 2 * 128 * (96 - 48) * config.embed
