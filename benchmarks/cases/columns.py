"""The columns of a record with their units and meanings, from which docs/reference/columns.md is made.

python -m benchmarks.cases.columns
"""

from collections.abc import Iterable

from benchmarks.cases.column import Column
from benchmarks.cases.program_columns import CHIP, PROGRAM

CASE = (
    Column("schema_version", "", "Version of the record's schema: of the names and meanings of all columns."),
    Column("kind", "", "`compiled` with `--compile-only` or `--topology`, otherwise `timed`."),
    Column(
        "status",
        "",
        "`ok`, or why the case has no numbers: `infeasible`, `oom`, `compile_error`, `timeout`, `nan_loss`, "
        "`mismatch`, `interrupted` or `error`.",
    ),
    Column("reason", "", "Explanation of the status, in words. Null if there is none."),
    Column("strategy", "", "Name of the strategy."),
    Column("mesh", "", "Mesh axes and their sizes."),
    Column("devices", "", "Number of devices in the mesh."),
    Column("processes", "", "Number of processes that the step spans."),
    Column("platform", "", "JAX backend, such as `cpu` or `gpu`."),
    Column("device_kind", "", "The backend's name for the kind of device."),
    Column("virtual_devices", "", "Whether the devices share the cores of one CPU."),
    Column("topology", "", "Topology that was compiled for, with `--topology`."),
    Column("preset", "", "Name of the model."),
    Column("param_count", "", "Parameters of the model, without padding."),
    Column("global_batch_sequences", "sequences", "Global batch size."),
    Column("sequence_tokens", "tokens", "Length of a sequence."),
    Column(
        "attention_window",
        "tokens",
        "Tokens that a token attends to, itself included. Null for all before it, or as many as the stride. Files of "
        "older versions lack this column and the next three: their attention is dense.",
    ),
    Column("attention_stride", "tokens", "Stride of sparse attention. Null without one."),
    Column("attention_pattern", "", "Pattern of the stride: `strided` or `fixed`. Null without one."),
    Column("attention_summary", "tokens", "With `fixed`, tokens of each block that all later blocks attend to."),
    Column("microbatches", "", "Number of microbatches."),
    Column("dtype", "", "Dtype of the computation."),
    Column("remat", "", "What the backward pass recomputes."),
    Column(
        "reduce",
        "",
        "Whether gradients are summed over replicas in the backward loop over layers (`layer`) or after it (`step`). "
        "Null for strategies without the option, and in files of older versions, which sum after it.",
    ),
    Column(
        "prefetch",
        "",
        "Whether weights are gathered one layer ahead: `on` or `off`. Null for strategies without the option, and in "
        "files of older versions, which do not.",
    ),
    Column(
        "halves",
        "",
        "Whether layers run on two halves of the batch, so that one communicates while the other computes: "
        "`on` or `off`. Null for strategies without the option, and in files of older versions, which do not.",
    ),
    Column(
        "unroll",
        "",
        "The most layers in one iteration of the loop over layers. Null in files of older versions, where it is 1 "
        "unless `options` says otherwise.",
    ),
    Column(
        "context_attention",
        "",
        "How tokens attend to tokens on other devices: `ring` or `ulysses`. Null without a context axis, and in files "
        "of older versions.",
    ),
    Column("options", "", "Strategy options that `--option` set for this case."),
    Column("compiler_options", "", "XLA compiler options for this step."),
)
SPEED = (
    Column("step_seconds_median", "s", "Median time of a step."),
    Column("step_seconds_low", "s", "Lower end of the 95% interval of that median, by the quantile test."),
    Column("step_seconds_high", "s", "Upper end of that interval."),
    Column("tokens_per_second", "tokens/s", "Tokens of a global batch divided by the median step time."),
    Column("tokens_per_second_per_device", "tokens/s", "`tokens_per_second` divided by the number of devices."),
    Column("dispatch_seconds_median", "s", "Median host time until the call that dispatches a step returns."),
    Column("steps_timed", "", "Number of steps that were timed."),
    Column(
        "relative_to_single",
        "",
        "Step time divided by that of `single` on the same work: the median of the ratios of each round. "
        "On virtual devices, 1.0 means that parallelism adds no cost. On n real devices, a linear speed-up is 1/n.",
    ),
    Column("relative_to_single_low", "", "Lower end of its 95% interval in this launch; launches can differ by more."),
    Column("relative_to_single_high", "", "Upper end of that interval."),
    Column(
        "single_in_own_process",
        "",
        "Whether `single` and the matmul benchmark were timed in a separate process with one device. Compile time, "
        "memory and program in the row of `single` still come from the main process.",
    ),
    Column(
        "relative_to_twin", "", "Step time of `auto` divided by that of the hand-written strategy on the same mesh."
    ),
    Column("relative_to_twin_low", "", "Lower end of its 95% interval."),
    Column("relative_to_twin_high", "", "Upper end of that interval."),
    Column(
        "canary_ratio",
        "",
        "Step time of `single` divided by that of a second copy of `single` in the same rounds. Rows that were timed "
        "interleaved share one value. Without noise it is 1.",
    ),
    Column("canary_ratio_low", "", "Lower end of its 95% interval."),
    Column("canary_ratio_high", "", "Upper end of that interval."),
    Column(
        "noisy",
        "",
        "Whether the interval of `canary_ratio` reaches below 0.95 or above 1.05. The run cannot resolve differences "
        "that are smaller than that interval.",
    ),
    Column(
        "attribution.compute_seconds",
        "s",
        "Time of the forward and backward passes, without communication, recomputation and dispatch.",
    ),
    Column(
        "attribution.exposed_communication_seconds",
        "s",
        "Exposed communication: step time minus that of a step whose collectives exchange a single element.",
    ),
    Column("attribution.schedule_bubble_seconds", "s", "Idle time while a pipeline fills and drains."),
    Column(
        "attribution.lockstep_bubble_seconds", "s", "Time that devices wait for slower ones where they communicate."
    ),
    Column("attribution.recomputation_seconds", "s", "Time that `--remat none` would save; at least 0."),
    Column("attribution.optimizer_seconds", "s", "Time of the optimizer."),
    Column("attribution.dispatch_seconds", "s", "Time to dispatch the step to the devices."),
    Column("attribution.total_over_step", "", "Sum of the parts divided by the step time; it should be near 1."),
    Column("checkpoint.total_bytes", "B", "Bytes of the arrays of a checkpoint: weights and optimizer state."),
    Column(
        "checkpoint.save_blocking_seconds", "s", "Time of a save until training may go on: the state is on the host."
    ),
    Column("checkpoint.save_seconds", "s", "Time of a save until the checkpoint is on disk."),
    Column("checkpoint.save_bytes_per_second", "B/s", "`checkpoint.total_bytes` divided by that time."),
    Column("checkpoint.restore_seconds", "s", "Time to restore it under the same strategy, from the page cache."),
    Column("checkpoint.restore_bytes_per_second", "B/s", "`checkpoint.total_bytes` divided by that time."),
    Column(
        "checkpoint.restore_single_seconds",
        "s",
        "Time to restore it under `single`. Null if one device cannot hold the state.",
    ),
    Column(
        "model_flops_per_step",
        "FLOP",
        "FLOPs of the model for one step on all devices, without recomputation. Attention counts in full: the causal "
        "mask is not deducted. With a window or a stride each token counts as many keys as the last one attends to.",
    ),
    Column(
        "model_flops_utilization",
        "",
        "Model FLOPs per second divided by the measured matmul rate, `matmul_flops_per_second`, of all devices.",
    ),
    Column(
        "matmul_flops_per_second", "FLOP/s", "Rate of a large matmul on one device, or on all virtual devices together."
    ),
    Column("compile_seconds", "s", "Time to compile the step."),
    Column("loss_first", "", "Loss on a fixed batch before training, in nats per token."),
    Column("loss_last", "", "Loss on the same batch after two steps, in nats per token."),
    Column(
        "matches_single",
        "",
        "Whether losses and gradient norms of the first steps equal those of one device, up to rounding. "
        "Null for steps that are inexact by design, and where one device cannot run the model.",
    ),
)
MEMORY = (
    Column(
        "memory.argument_bytes", "bytes", "Arguments of the step on one device: parameters, optimizer state, batch."
    ),
    Column("memory.parameter_bytes", "bytes", "Parameters, a part of the arguments."),
    Column("memory.optimizer_bytes", "bytes", "Optimizer state with master weights, a part of the arguments."),
    Column("memory.temp_bytes", "bytes", "Temporaries, such as gradients and activations."),
    Column("memory.output_bytes", "bytes", "Outputs of the step on one device."),
    Column("memory.alias_bytes", "bytes", "Outputs that reuse the memory of donated arguments."),
    Column(
        "memory.total_bytes",
        "bytes",
        "Arguments, temporaries and outputs, minus aliases: the memory that the step needs at once.",
    ),
    Column(
        "memory.device_peak_bytes",
        "bytes",
        "Peak memory of a device since the process started, including earlier cases. Null on CPUs.",
    ),
    Column(
        "memory.host_peak_rss_bytes",
        "bytes",
        "Peak resident memory of the process since it started, including earlier cases.",
    ),
    Column(
        "memory.live_<holder>_bytes",
        "bytes",
        "With `--memory-profile`: bytes of live arrays on one device after a step, by what holds them: `parameter`, "
        "`optimizer` (moments, count, master weights, quantisation errors, loss scale), `batch`, or `rest`, such as "
        "the loss. On CPUs all but the rest are equal to the formulas.",
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
    """Return the tables of all sections as Markdown."""
    return "\n\n".join(f"## {title}\n\n{table(section)}" for title, section in SECTIONS.items())


def table(columns: Iterable[Column]) -> str:
    """Return a Markdown table of columns with their units and meanings."""
    rows = (f"| `{column.name}` | {column.unit} | {column.meaning} |" for column in columns)
    return "\n".join(("| column | unit | meaning |", "|---|---|---|", *rows))


if __name__ == "__main__":
    print(tables())
