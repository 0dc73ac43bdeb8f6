"""The columns of a row: what each of them means, in which unit. docs/columns.md is made of this table.

python -m benchmarks.reporting.columns
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """One column, or a family of them.

    Attributes:
        name: a key of `extra_info`; a part in angle brackets, such as `<axis>`, stands for any word.
        unit: of its values; empty for texts, flags and plain numbers.
        meaning: in one or two sentences.
    """

    name: str
    unit: str
    meaning: str

    def covers(self, key: str) -> bool:
        """Whether a key of a row is this column.

        >>> Column("compiled.sent_bytes.<kind>.<axis>", "bytes", "").covers("compiled.sent_bytes.permute.data")
        True
        """
        return re.fullmatch(re.sub(r"<\w+>", r"\\w+", re.escape(self.name)), key) is not None


CASE = (
    Column("schema_version", "", "Version of the meaning of all columns."),
    Column("kind", "", "`compiled` with `--compile-only` or `--topology`, else `timed`."),
    Column(
        "status",
        "",
        "`ok`, or why there is no number: `infeasible`, `oom`, `compile_error`, `timeout`, `nan_loss`, "
        "`mismatch`, `interrupted` or `error`.",
    ),
    Column("reason", "", "Why, in words."),
    Column("strategy", "", "Name of the strategy."),
    Column("mesh", "", "Mesh axes and their sizes."),
    Column("devices", "", "Number of devices in the mesh."),
    Column("processes", "", "Number of processes that the step spans."),
    Column("platform", "", "Backend of JAX."),
    Column("device_kind", "", "What the backend calls its devices."),
    Column("virtual_devices", "", "Whether the devices share the cores of one CPU."),
    Column("topology", "", "The devices that were compiled for, if they are not there."),
    Column("preset", "", "Name of the model."),
    Column("param_count", "", "Parameters of the model, without padding."),
    Column("global_batch_sequences", "sequences", "Global batch size."),
    Column("sequence_tokens", "tokens", "Length of a sequence."),
    Column("microbatches", "", "Number of microbatches."),
    Column("dtype", "", "Dtype of the computation."),
    Column("remat", "", "What the backward pass recomputes."),
    Column("options", "", "What `--option` set for this case."),
    Column("compiler_options", "", "Options that XLA was given for this step."),
)
SPEED = (
    Column("step_seconds_median", "s", "Median time of a step."),
    Column("step_seconds_low", "s", "Lower end of the 95% interval of that median, by the quantile test."),
    Column("step_seconds_high", "s", "Upper end."),
    Column("tokens_per_second", "tokens/s", "Tokens of a global batch over the median step time."),
    Column("tokens_per_second_per_device", "tokens/s", "The same for each device."),
    Column("dispatch_seconds_median", "s", "Host time of a step until the call that dispatches it returns."),
    Column("steps_timed", "", "Number of steps that were timed."),
    Column(
        "relative_to_single",
        "",
        "Step time over that of `single` on the same work: the median of the ratios of each "
        "round. On virtual "
        "devices 1.0 means that spreading costs nothing. On n real devices the best is 1/n.",
    ),
    Column("relative_to_single_low", "", "Lower end of its 95% interval, for this process; other launches differ."),
    Column("relative_to_single_high", "", "Upper end."),
    Column(
        "single_in_own_process",
        "",
        "Whether `single` and the matmul were timed in a separate process with one device. Compile time, "
        "memory and program in the row of `single` still come from the main process.",
    ),
    Column("relative_to_twin", "", "Step time of `auto` over that of the hand-written strategy on the same mesh."),
    Column("relative_to_twin_low", "", "Lower end of its 95% interval."),
    Column("relative_to_twin_high", "", "Upper end."),
    Column(
        "canary_ratio",
        "",
        "Step time of `single` over that of a second copy of `single` in the same rounds; the same for all "
        "rows that took turns. It should be 1.",
    ),
    Column("canary_ratio_low", "", "Lower end of its 95% interval."),
    Column("canary_ratio_high", "", "Upper end."),
    Column(
        "noisy",
        "",
        "Whether that interval reaches below 0.95 or above 1.05. Smaller differences cannot be seen in this run.",
    ),
    Column(
        "attribution.compute_seconds",
        "s",
        "Forward and backward pass, without communication, recomputation and dispatch.",
    ),
    Column(
        "attribution.exposed_communication_seconds",
        "s",
        "What the step takes longer than one whose collectives exchange a single element.",
    ),
    Column("attribution.schedule_bubble_seconds", "s", "Waiting at the start and the end of a pipeline."),
    Column("attribution.lockstep_bubble_seconds", "s", "Waiting for slower devices wherever devices communicate."),
    Column("attribution.recomputation_seconds", "s", "Time that `--remat none` would save; at least 0."),
    Column("attribution.optimizer_seconds", "s", "The optimizer."),
    Column("attribution.dispatch_seconds", "s", "Handing the step to the devices."),
    Column("attribution.total_over_step", "", "Sum of these parts over the step time."),
    Column(
        "model_flops_per_step",
        "FLOP",
        "FLOPs of the model on all devices: nothing recomputed, attention counted whole.",
    ),
    Column(
        "model_flops_utilization",
        "",
        "`model_flops_per_step` per second over `matmul_flops_per_second`, on all devices.",
    ),
    Column(
        "matmul_flops_per_second", "FLOP/s", "Rate of a large matmul on one device, or on all virtual devices together."
    ),
    Column("compile_seconds", "s", "Time to compile the step."),
    Column("loss_first", "", "Loss on some tokens before training."),
    Column("loss_last", "", "Loss on the same tokens after two steps."),
    Column(
        "matches_single",
        "",
        "Whether losses and gradient norms of the first steps equal those of one device, to "
        "rounding. Null for "
        "steps that are inexact by design, and where one device could not run the model.",
    ),
)
MEMORY = (
    Column(
        "memory.argument_bytes", "bytes", "Arguments of the step on one device: parameters, optimizer state, batch."
    ),
    Column("memory.parameter_bytes", "bytes", "Part of them: parameters."),
    Column("memory.optimizer_bytes", "bytes", "Part of them: optimizer state."),
    Column("memory.temp_bytes", "bytes", "Temporaries, as the compiler plans them."),
    Column("memory.output_bytes", "bytes", "Outputs."),
    Column("memory.alias_bytes", "bytes", "Outputs that reuse the memory of donated arguments."),
    Column(
        "memory.total_bytes",
        "bytes",
        "Arguments, temporaries and outputs, less aliases: what the step needs at once.",
    ),
    Column(
        "memory.device_peak_bytes",
        "bytes",
        "Most that a device has held since the process started, in earlier cases too. Null on CPUs.",
    ),
    Column(
        "memory.host_peak_rss_bytes", "bytes", "Most that the process has held since it started, in earlier cases too."
    ),
)
PROGRAM = (
    Column("compiled.flops", "FLOP", "Matmuls of one device in one step, with loops multiplied out."),
    Column("compiled.instructions", "", "Instructions of the optimised program."),
    Column("compiled.hash", "", "Changes with the program."),
    Column("compiled.dtypes", "", "Dtypes of floating-point arrays in it."),
    Column("compiled.sent_bytes", "bytes", "What one device sends in a step."),
    Column(
        "compiled.sent_bytes.<kind>.<axis>",
        "bytes",
        "The same by kind of collective (`all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `permute`) and "
        "mesh axis (`data`, `fsdp`, `pipeline`, `context`, `tensor`, or `several` at once); 0 where there is none.",
    ),
    Column(
        "compiled.collectives.<kind>.<where>",
        "",
        "How often collectives of a kind (`all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `permute`) run "
        "in a step, `in_loops` and `outside_loops`; 0 where there is none.",
    ),
    Column(
        "compiled.bytes_accessed",
        "bytes",
        "Bytes read and written, as XLA estimates them. The body of a loop counts once.",
    ),
    Column("compiled.compilations", "", "How often the step was compiled; more than once is a fault."),
    Column("between_processes.axes", "", "Mesh axes that cross processes."),
    Column("between_processes.sent_bytes", "bytes", "What one device sends along these."),
    Column(
        "between_processes.sent_bytes.<axis>",
        "bytes",
        "The same by axis (`data`, `fsdp`, `pipeline`, `context`, `tensor`, or `several` at once).",
    ),
    Column(
        "predicted.flops",
        "FLOP",
        "`compiled.flops` by formula; of `auto`, that of its hand-written twin, as in all of `predicted`.",
    ),
    Column("predicted.sent_bytes", "bytes", "`compiled.sent_bytes` by formula."),
    Column("predicted.argument_bytes", "bytes", "`memory.argument_bytes` by formula."),
    Column("predicted.temp_bytes", "bytes", "`memory.temp_bytes` by formula."),
    Column("predicted.bubble", "", "Part of its time for which a stage of a pipeline is idle."),
    Column(
        "sent_over_predicted",
        "",
        "Compiled bytes over predicted bytes: 1 where the compiler left the communication as it was written. "
        "XLA's CPU backend sends bfloat16 as float32; there it is up to 2.",
    ),
    Column("sent_as_predicted", "", "Whether they agree for each kind and axis. Null for `auto`."),
    Column(
        "rewrites.sent_bytes", "bytes", "Bytes sent beyond the formulas; negative if fewer are sent. Null for `auto`."
    ),
    Column(
        "rewrites.unexplained_bytes", "bytes", "Differences that no known rewrite explains, each counted as positive."
    ),
    Column("rewrites.flops", "FLOP", "FLOPs beyond the formulas."),
    Column("rewrites.text", "", "The rewrites by name, array and axis."),
    Column("rewrites.advice", "", "What avoids them, where that is known."),
    Column("overlap.sent_bytes.beside_matmuls", "bytes", "Bytes of collectives that overlap with matmuls."),
    Column("overlap.sent_bytes.beside_memory", "bytes", "Bytes of collectives that overlap with memory traffic only."),
    Column(
        "overlap.sent_bytes.beside_nothing", "bytes", "Bytes of asynchronous collectives that overlap with nothing."
    ),
    Column("overlap.sent_bytes.waited_for", "bytes", "Bytes of synchronous collectives."),
    Column(
        "overlap.exposed_seconds",
        "s",
        "How much longer collectives take than the work beside them, at least, by the published figures of the chip.",
    ),
    Column("overlap.text", "", "The same of each collective."),
)
CHIP = (
    Column("chip.needed_bytes", "bytes", "What the step needs of a chip's memory."),
    Column("chip.capacity_bytes", "bytes", "Memory of a chip."),
    Column("chip.fits", "", "Whether it fits."),
    Column("roofline.compute_seconds", "s", "Least time to compute, by the published figures of the chip."),
    Column("roofline.memory_seconds", "s", "Least time to read and write memory. Caches avoid some of this traffic."),
    Column("roofline.network_seconds", "s", "Least time to send. Collectives are added up, though some could overlap."),
    Column("roofline.step_seconds", "s", "The largest of the three: the least time of a step if everything overlaps."),
    Column("roofline.bound", "", "Which of the three it is."),
    Column("roofline.tokens_per_second_per_device", "tokens/s", "Throughput at that time."),
    Column(
        "roofline.model_flops_utilization",
        "",
        "Model FLOPs per second at that time over the published peak of the chip.",
    ),
)
SECTIONS = {
    "The case": CASE,
    "Speed": SPEED,
    "Memory of one device": MEMORY,
    "The compiled program, and the formulas": PROGRAM,
    "Devices that you do not have": CHIP,
}
COLUMNS = tuple(column for section in SECTIONS.values() for column in section)


def tables() -> str:
    """All sections, as Markdown."""
    return "\n\n".join(f"## {title}\n\n{table(section)}" for title, section in SECTIONS.items())


def table(columns: Iterable[Column]) -> str:
    """A Markdown table."""
    rows = (f"| `{column.name}` | {column.unit} | {column.meaning} |" for column in columns)
    return "\n".join(("| column | unit | meaning |", "|---|---|---|", *rows))


if __name__ == "__main__":
    print(tables())
