"""The table of commands: the purpose of each, the module that runs it, and its options."""

import math
import sys
from pathlib import Path

from benchmarks.cli.options import (
    CANDIDATES,
    CASES,
    DEVICES_OF,
    DTYPES,
    LOGGING,
    MEASURE,
    MODEL,
    OF_STRATEGIES,
    PICTURE,
    PROCESSES,
    SCHEDULES,
    SPACE,
    STEPS,
    TRACE,
    TRAIN,
    TRAINED_MODEL,
    TRAINING,
    joined,
)
from benchmarks.cli.options import CASE_TIMEOUT as TIMEOUT
from benchmarks.cli.parser import Command, Group, one_of, option, passed_on
from benchmarks.cli.values import (
    amount,
    assignment,
    batch,
    count,
    inches,
    interval,
    percent,
    picture,
    positive,
    program,
    seconds,
    sizes,
    tokens,
    topology,
    topology_or_here,
    whole,
)

PYTEST = """Options of pytest and pytest-benchmark also work, such as -k EXPRESSION, and --benchmark-json FILE, which
writes the results. `pytest --pyargs benchmarks --help` describes them."""
GATES = """exit codes:
  0  green: nothing is worse
  1  red: a case is worse, slower, or vanished
  2  the command cannot be understood
  3  inconclusive: too noisy to tell (paired only)
  4  not comparable: other versions (without --across-versions), flags or devices, or no case in common
  5  broken input: a file is missing, cut short, foreign, empty, or of another schema; or a report cannot be written
"""
COMPARED = """exit codes:
  0  the runs were compared, whatever the difference; `meshmark regress` judges it
  2  not comparable: the runs differ in machine, versions or configuration
  5  a file cannot be read
"""

RUN = option("run RUN.json", "a run, measured or merged", Path)
REPORTS = Group(
    "reports",
    option("--markdown FILE", "write the report as Markdown, for a pull request", Path),
    option("--junit FILE", "write the report as JUnit XML", Path),
    option("--action-json FILE", "write HEAD's values for github-action-benchmark's customSmallerIsBetter", Path),
    option("--bencher-json FILE", "write HEAD's values in Bencher Metric Format", Path),
)
JSON = option("--json FILE", "write it as JSON to FILE, or to stdout", Path, many="?")
MACHINE = option("--machine FILE", "machine file, by name or path", str)
TABLES = option("runs RUNS.csv", "tables with the columns of results/published", Path, many="+")

MEASURED = {
    "measure": Command("time strategies on the devices of this machine", "pytest", *MEASURE, epilog=PYTEST),
    "launch": Command(
        "measure in several processes on this machine",
        "benchmarks.cluster.launch",
        option("--processes N", "how many: at most 64, or 4 for each core if that is more", count, required=True),
        option("--devices-per-process N", "virtual CPU devices of a process; default: %(default)s", count, 1),
        option("pytest -- OPTION", "options of `pytest benchmarks`", str, many="*"),
        hint="options of `meshmark measure` go after --, as in `meshmark launch --processes 2 -- --strategy fsdp`",
    ),
    "train": Command(
        "train on text, with checkpoints, and log the loss",
        "benchmarks.training.train",
        TRAIN,
        TRAINED_MODEL,
        TRAINING,
        LOGGING,
        PROCESSES,
        case_timeout=TIMEOUT,  # how long processes wait for each other
    ),
    "doctor": Command("describe this installation and machine, for an issue", "benchmarks.run.doctor"),
}
PLANNED = {
    "search": Command(
        "rank strategies and meshes for a model by predicted step time; compile and measure the best",
        "benchmarks.search.command",
        option("--topology TOPOLOGY", f"{DEVICES_OF} h100:1x8 or here", topology_or_here, required=True),
        MACHINE._replace(help="machine file, by name or path; default: the packaged one for these devices"),
        option(
            "--set NAME=VALUE",
            "change a specification of the devices, such as hbm=141GiB; repeatable",
            assignment,
            many="repeat",
        ),
        option("--compile N", "compile the N best, and replay their schedules", whole, 0),
        option("--measure N", "with --topology here: time N candidates, and compare predictions", whole, 0),
        option("--tokens N", "also print days and device-hours to train on N tokens, such as 15T", tokens),
        option("--price X", "price of a device-hour, in any currency; with --tokens, also print the cost", amount),
        option("--scaling N..N", "find the best on each power of two of devices, such as 8..16384", sizes),
        option("--sequences-per-device N", "for weak scaling; default: the batch over the fewest devices", count),
        option("--all", "print every candidate that fits, and why others are infeasible"),
        option("--json FILE", "write every candidate to this file, which `plot` and `page` draw", Path),
        option("--trace FILE", f"write the predicted step of the best, {TRACE}", Path),
        SPACE,
        MODEL,
        CANDIDATES,
    ),
    "compile": Command(
        "compile a step for devices that need not be present, and report its time, memory and communication",
        "benchmarks.search.compile",
        option("--topology TOPOLOGY", f"{DEVICES_OF} v5p:4x4x4, h100:2x8 or cpu:64", topology, required=True),
        option("--trace FILE", f"write the replayed step, {TRACE}", Path),
        CASES,
        MODEL,
    ),
    "predict": Command(
        "predict step times of published training runs, and report the errors",
        "benchmarks.simulate.predict",
        TABLES,
        option("--out FILE", "write the rows with their predictions to this CSV file", Path),
        MACHINE._replace(help="machine file for all rows; default: that of each row's device and stack"),
    ),
    "fit": Command(
        "fit the constants of a machine file to measured training runs, with cross-validation",
        "benchmarks.simulate.fit",
        TABLES,
        MACHINE._replace(help="machine file to start from, by name or path", required=True),
        option("--only NAME,...", "fit these constants; default: all on which the runs depend", str),
        option("--otherwise MACHINE", "machine file for a source without which too few runs are left", str),
        option("--out FILE", "write the machine file with the fitted constants", Path),
    ),
    "calibrate": Command(
        "write a machine file for this machine, by which steps on it are predicted",
        "benchmarks.run.calibrate",
        option("--out FILE", "the machine file, such as mine.json", Path, required=True),
    ),
}
SHOWN = {
    "show": Command(
        "print the options of strategies, and what a device holds and sends in a step",
        "benchmarks.show",
        option("names STRATEGY", "such as fsdp; default: all", str, many="*"),
        CASES["--mesh"].one(help="such as fsdp=4; default: four devices, or two along each of several axes"),
        option("--topology TOPOLOGY", "all devices of a topology such as v5p:4x4x4", topology),
        MODEL["--preset"]._replace(default=None, help="default: nano, or nano-moe on a mesh with an expert axis"),
        MODEL["--model"],
        CASES["--batch-size"].one(help="global batch, in sequences; default: 16; one per device with --topology"),
        CASES["--option"]._replace(help=OF_STRATEGIES, value="NAME=VALUE"),
        JSON,
        option("--png PICTURE", f"draw which device holds which part of each array; {PICTURE}", picture),
    ),
    "schedule": Command(
        "print a pipeline schedule, tick by tick",
        "benchmarks.schedule",
        option("name SCHEDULE", joined(SCHEDULES), one_of("schedule", SCHEDULES)),
        option("--stages N", "number of pipeline stages", count, required=True),
        CASES["--microbatches"].one(help="number of microbatches", required=True),
        option("--chunks N", "chunks of layers on a stage; default: 2 if interleaved, otherwise 1", count),
        JSON,
        option("--png PICTURE", f"draw the table; {PICTURE}", picture),
    ),
}
METRICS = (
    "throughput, speedup, efficiency, step_time, memory or mfu against devices, or the name of a figure of the folder; "
    "default of one picture: throughput"
)
JUDGED = {
    "plot": Command(
        "draw figures of a run, training logs, a search, a trace or predictions",
        "results.plot",
        option(
            "files FILE", "files of one kind; - is the output of `show --json` or `schedule --json`", Path, many="+"
        ),
        option(
            "--out PATH", "the picture to write, its suffix is the format, or a folder; default: next to FILE", Path
        ),
        option("--metric METRIC", METRICS, str),
        option("--weak", "compare cases with the same batch of a device, not with the same global batch"),
        option("--strategy NAME,...", "strategies of a run to draw, with single; default: all", str),
        option("--devices N,...", "numbers of devices of a run to draw; default: all", count),
        option(
            "--batch-size N", "global batch of a run to draw, or all, a panel each; default: that of most cases", batch
        ),
        option("--size WxH", "width and height of a picture in inches, such as 3.3x2.5", inches),
        option("--font-size PT", "size of letters in points; default: 11", positive),
        option("--no-title", "leave title and remarks to the caption, which is printed on stderr"),
        option("--between MS,MS", "part of a trace to draw, in milliseconds", interval),
    ),
    "page": Command(
        "write an HTML page about runs and searches",
        "results.page",
        option("files FILE", "written by `pytest benchmarks --benchmark-json` or `search --json`", Path, many="+"),
        option("--out PAGE", "default: NAME.html, in the folder of the first FILE", Path),
    ),
    "compare": Command(
        "compare runs with the first one, case by case",
        "results.compare",
        option("base A.json", "the run to compare with, measured or merged", Path),
        option("others B.json", "a run to compare with A.json", Path, many="+"),
        option("--format text|markdown|csv", "format of the output; default: %(default)s", default="text"),
        epilog=COMPARED,
    ),
    "merge": Command(
        "merge several runs of the same cases on one machine into one run",
        "results.merge",
        option("runs RUN.json", "a run, measured or merged", Path, many="+"),
        option("--out FILE", "the file to write", Path, required=True),
        option("--only-shared-cases", "leave out cases that only some runs have; default: refuse such runs"),
    ),
    "export": Command(
        "write a run as CSV or Markdown, or a checkpoint as a Hugging Face folder",
        "results.export",
        RUN._replace(help="a run, measured or merged; with --to-huggingface a folder of checkpoints"),
        option("--format csv|markdown", "format: a short table in Markdown, or all columns in CSV"),
        option("--columns NAME,...", "columns to write, named as in docs/reference/columns.md", str),
        option("--out FILE", "file to write; default: stdout", Path),
        option("--to-huggingface FOLDER", "create a folder with config.json and safetensors", Path),
        option("--at N", "step of the checkpoint; default: the latest", whole),
        CASES["--dtype"]._replace(help=f"dtype of the tensors: {joined(DTYPES)}; default: %(default)s"),
        instead={"to_huggingface": "benchmarks.training.export"},
    ),
    "regress exact": Command(
        "judge FLOPs, memory and collectives of compiled steps; nothing is timed",
        "results.regress",
        option("base BASE.json", "a run, or a baseline of results/baselines", Path),
        option("head HEAD.json", "the run to judge", Path),
        option(
            "--allow METRIC=AMOUNT",
            "allowed growth of a metric, in its unit or in percent such as 1.5%%; default: 0. "
            "METRIC may contain *; repeatable, the last match applies",
            assignment,
            many="repeat",
        ),
        option("--across-versions TOLERANCE", "compare two versions of JAX, with a tolerance such as 5%%", percent),
        option("--only-head-cases", "judge only the cases that HEAD has; the others do not count as vanished"),
        REPORTS,
        epilog=GATES,
        gate="exact",
    ),
    "regress paired": Command(
        "judge step times of two checkouts, timed interleaved on this machine",
        "results.regress",
        option("--base REF", "what to compare with: a git ref, or the folder of a checkout", str, required=True),
        option("--head REF", "what to judge: a git ref, or the folder of a checkout such as '.'", str, required=True),
        option("--base-python FILE", "Python interpreter for BASE; default: this one", program, sys.executable),
        option("--head-python FILE", "Python interpreter for HEAD; default: this one", program, sys.executable),
        option("--launches N", "how often each side is started afresh; default: %(default)s", count, 7),
        option("--blocks N", "timed blocks of a side in a launch; default: %(default)s", count, 60),
        option("--minimum-effect P", "smallest slowdown that counts; default: 5%%", percent, 0.05),
        option("--time-budget S", "seconds for the gate; makes as many launches as fit", seconds, math.inf),
        option("--case-timeout S", "seconds without progress; default: %(default)s", seconds, TIMEOUT),
        option("--seed N", "random seed of the order of timing; default: %(default)s", whole, 0),
        Group("cases, as for `pytest benchmarks`", *passed_on(STEPS)),
        REPORTS,
        epilog=GATES,
        gate="paired",
    ),
    "regress baseline": Command(
        "write a baseline, with which `regress exact` compares later runs",
        "results.baseline",
        RUN,
        option("--out DIR", "folder to write to; default: %(default)s", Path, Path("baselines")),
    ),
}
STEPS_COMMANDS = "measure", "launch", "train", "search", "compile", "calibrate", "regress paired"
"""The commands that compile or run training steps."""
SECTIONS = {"measure and train": MEASURED, "plan": PLANNED, "look up": SHOWN, "draw and judge results": JUDGED}
COMMANDS = {name: command for section in SECTIONS.values() for name, command in section.items()}
RARE = "launch", "schedule", "predict", "fit", "calibrate"
"""Commands of which the list of all has the names alone."""
