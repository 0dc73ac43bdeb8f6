"""The columns of a record that describe the compiled program, what the formulas predict, and a chip."""

from benchmarks.cases.column import Column

PROGRAM = (
    Column("compiled.flops", "FLOP", "FLOPs of one device's matmuls in a step; loops count every iteration."),
    Column("compiled.instructions", "", "Number of instructions in the optimised program."),
    Column("compiled.hash", "", "Hash of the optimised program."),
    Column("compiled.dtypes", "", "Dtypes of the floating-point arrays in the program."),
    Column("compiled.sent_bytes", "bytes", "Bytes that one device sends in a step."),
    Column(
        "compiled.sent_bytes.<kind>.<axis>",
        "bytes",
        "Bytes that one device sends by kind of collective (`all_reduce`, `all_gather`, `reduce_scatter`, "
        "`all_to_all`, `permute`) and by mesh axis (`data`, `fsdp`, `pipeline`, `context`, `tensor`, or `several` at "
        "once). 0 where the program has no such collective.",
    ),
    Column(
        "compiled.collectives.<kind>.<where>",
        "",
        "How often collectives of a kind (`all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `permute`) run "
        "in a step, `in_loops` and `outside_loops`. 0 where the program has no such collective.",
    ),
    Column(
        "compiled.bytes_accessed",
        "bytes",
        "Bytes read and written, as XLA estimates them. The body of a loop counts once.",
    ),
    Column("compiled.compilations", "", "How often the step was compiled; more than once is a defect."),
    Column("between_processes.axes", "", "Mesh axes that cross processes."),
    Column("between_processes.sent_bytes", "bytes", "Bytes that one device sends in a step along these axes."),
    Column(
        "between_processes.sent_bytes.<axis>",
        "bytes",
        "Bytes that one device sends between processes, by axis (`data`, `fsdp`, `pipeline`, `context`, `tensor`, or "
        "`several` at once).",
    ),
    Column(
        "predicted.flops",
        "FLOP",
        "Prediction of `compiled.flops` by formula. For `auto`, all `predicted` columns have the values of the "
        "hand-written strategy on the same mesh.",
    ),
    Column("predicted.sent_bytes", "bytes", "Prediction of `compiled.sent_bytes` by formula."),
    Column("predicted.argument_bytes", "bytes", "Prediction of `memory.argument_bytes` by formula."),
    Column("predicted.temp_bytes", "bytes", "Prediction of `memory.temp_bytes` by formula."),
    Column("predicted.bubble", "", "Fraction of the time for which a pipeline stage is idle."),
    Column(
        "predicted.lockstep_bubble", "", "Fraction lost on top of it if each tick lasts as long as its longest pass."
    ),
    Column(
        "predicted.step_seconds",
        "s",
        "Prediction of `step_seconds_median` by a machine file. Null without `--machine`.",
    ),
    Column("predicted.ratio", "", "That prediction divided by the measured time. Null without `--machine`."),
    Column(
        "sent_over_predicted",
        "",
        "Compiled bytes divided by predicted bytes: 1 where the compiler left the communication as written. "
        "XLA's CPU backend sends bfloat16 as float32, so the ratio is up to 2 there.",
    ),
    Column("sent_as_predicted", "", "Whether both agree for each kind of collective and each axis. Null for `auto`."),
    Column("rewrites.sent_bytes", "bytes", "Compiled minus predicted bytes sent. Null for `auto`."),
    Column("rewrites.unexplained_bytes", "bytes", "Sum of absolute differences that no known rewrite explains."),
    Column("rewrites.flops", "FLOP", "Compiled FLOPs minus predicted FLOPs."),
    Column("rewrites.text", "", "The compiler's rewrites by name, array and axis."),
    Column("rewrites.advice", "", "How to avoid the rewrites, where that is known."),
    Column("overlap.sent_bytes.beside_matmuls", "bytes", "Bytes of collectives that overlap with matmuls."),
    Column("overlap.sent_bytes.beside_memory", "bytes", "Bytes of collectives that overlap only with memory traffic."),
    Column(
        "overlap.sent_bytes.beside_nothing", "bytes", "Bytes of asynchronous collectives that overlap with nothing."
    ),
    Column("overlap.sent_bytes.waited_for", "bytes", "Bytes of synchronous collectives."),
    Column("overlap.text", "", "The overlap of each collective, in words."),
)
CHIP = (
    Column("chip.needed_bytes", "bytes", "Memory that the step needs on one chip."),
    Column("chip.capacity_bytes", "bytes", "Memory of a chip."),
    Column("chip.fits", "", "Whether the step fits into the memory of a chip."),
    Column("roofline.compute_seconds", "s", "Least time for compute, from the published figures of the chip."),
    Column("roofline.memory_seconds", "s", "Least time for memory traffic. Caches can avoid some of this traffic."),
    Column(
        "roofline.network_seconds",
        "s",
        "Least time for communication: the sum over collectives, though some could overlap.",
    ),
    Column(
        "roofline.step_seconds",
        "s",
        "Least time of a step if everything overlaps: the largest of the three times above.",
    ),
    Column("roofline.bound", "", "Which of the three is largest: `compute`, `memory` or `network`."),
    Column(
        "roofline.tokens_per_second_per_device", "tokens/s", "Throughput at `roofline.step_seconds`: an upper bound."
    ),
    Column(
        "roofline.model_flops_utilization",
        "",
        "Model FLOPs per second at `roofline.step_seconds`, divided by the published peak of the chip.",
    ),
    Column(
        "replay.step_seconds",
        "s",
        "Time of a step, replayed in the order of the compiled schedule by the published figures of the chip: the sum "
        "of the four parts below. Null where no chip is known, or the program is not in schedule order.",
    ),
    Column("replay.compute_seconds", "s", "Time in instructions that are bound by compute."),
    Column("replay.memory_seconds", "s", "Time in instructions that are bound by memory traffic."),
    Column("replay.exposed_seconds", "s", "Exposed communication: time for which the device waits for collectives."),
    Column("replay.idle_seconds", "s", "Pipeline bubble, by `predicted.bubble`."),
    Column("replay.tokens_per_second_per_device", "tokens/s", "Throughput at `replay.step_seconds`."),
    Column(
        "replay.model_flops_utilization",
        "",
        "Model FLOPs per second at `replay.step_seconds`, divided by the published peak of the chip.",
    ),
)
