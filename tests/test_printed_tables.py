"""Tables that commands print: as wide as they are in a pipe, and without a broken number in a narrow terminal."""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from benchmarks.cases.row import Row
from benchmarks.cli.accuracy import errors_of
from benchmarks.cli.tables import paragraph
from benchmarks.run.calibrate import rates_table, timings_table
from benchmarks.run.summary import ABSENT, lines_of, summary, where_time_goes
from benchmarks.search.compile import case_report
from benchmarks.simulate.fit import Fit, constants_table, errors_table
from benchmarks.simulate.machines import machine
from benchmarks.simulate.rates import Timing
from tests.commands import command
from tests.processes import ROOT

RUN = ROOT / "docs" / "examples" / "nano-cpu" / "run.json"
LLAMA = ["--preset=llama3-8b", "--batch-size=64", "--strategy=fsdp", "--mesh=fsdp=16"]
NUMBER = re.compile(
    r"[-+!~]?\d[\d,]*(?:\.\d+)?%?(?:(?: to | -> | / |-)[-+]?\d[\d,.]*\d%?)*"
    r"(?: (?:[kMGT]?i?B(?:/s)?|[mu]?s|days|device-hours|devices|tokens/s)\b)?"
)
"""A number or an interval, with its unit."""


def rows() -> list[Row]:
    """Rows with all that may be in a table: intervals, twins, parts of the time, and bytes between processes."""
    own = {"attribution.total_over_step": 0.98, "between_processes.axes": "data", "chip.fits": True}
    own |= {"between_processes.sent_bytes": 3 << 20, "chip.capacity_bytes": 80 << 30, "chip.needed_bytes": 3 << 30}
    own |= {f"roofline.{part}_seconds": 0.0123 for part in ("step", "compute", "memory", "network")}
    own |= {"roofline.tokens_per_second_per_device": 123456, "roofline.model_flops_utilization": 0.45}
    own |= {f"relative_to_twin{end}": value for end, value in (("", 2.4), ("_low", 2.33), ("_high", 6.40))}
    parts = ("compute", "exposed_communication", "schedule_bubble", "lockstep_bubble", "recomputation", "optimizer")
    own |= {f"attribution.{part}_seconds": 0.0123 for part in (*parts, "dispatch")}
    measured = json.loads(RUN.read_text())["benchmarks"]
    return [Row(each["name"], {**each["extra_info"], **own}, (), None) for each in measured]


def lines(*tables: Iterable[str]) -> None:
    """Print the lines of tables."""
    for table in tables:
        print(*table, sep="\n")


def measured() -> None:
    """What `measure` prints at its end, of steps that were timed and of steps that were compiled."""
    found = rows()
    lines(*summary(found).values(), where_time_goes(found), lines_of(found, ABSENT))


def fitted() -> None:
    """The tables of `fit` and of `calibrate`."""
    gpus = machine("meshmark_gpus")
    lines(
        constants_table(Fit(gpus.constants, ("matmul_efficiency",), ())),
        errors_table({"the runs that were fitted": errors_of([0.0123, 0.0456], [0.0111, 0.0555])}),
        rates_table(gpus),
        timings_table([Timing("all_reduce", 8, 123456789.0, seconds=0.0123)]),
    )


def worse(folder: Path) -> Path:
    """A copy of the run in which every step holds and sends more."""
    run = json.loads(RUN.read_text())
    for each in run["benchmarks"]:
        each["extra_info"]["memory.total_bytes"] *= 2
    path = folder / "worse.json"
    path.write_text(json.dumps(run))
    return path


PRINTED: dict[str, Callable[[Path], object]] = {
    "measure": lambda _: measured(),
    "compile": lambda _: lines(*(paragraph(*case_report(row)) for row in rows()[:4])),
    "fit and calibrate": lambda _: fitted(),
    "search": lambda _: command("search")(["--topology=h100:2x8", *LLAMA, "--tokens=15T", "--price=2.5"]),
    "predict": lambda _: command("predict")([str(ROOT / "results" / "published" / "nanotron_h100.csv")]),
    "show": lambda _: command("show")(["three_d", "--mesh=fsdp=4,tensor=2"]),
    "schedule": lambda _: command("schedule")(["interleaved", "--stages=4", "--microbatches=8"]),
    "compare": lambda _: command("compare")([str(RUN), str(RUN)]),
    "regress exact": lambda folder: command("regress exact")([str(RUN), str(worse(folder))]),
}
"""Commands -> what prints their tables."""


@pytest.fixture(params=PRINTED)
def printed(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    terminal: Callable[[int | None], None],
    capsys: pytest.CaptureFixture[str],
) -> Callable[[int | None], list[str]]:
    """The lines that a command prints to a terminal of a width, or to a pipe."""

    def printed(width: int | None) -> list[str]:
        terminal(width)
        PRINTED[request.param](tmp_path)
        return capsys.readouterr().out.splitlines()

    return printed


def test_numbers_are_never_broken(printed: Callable[[int | None], list[str]]) -> None:
    """A number stands on one line with its unit, and an interval with both ends, however narrow the terminal.

    The tables of a pipe are those of a terminal that is wide enough.
    """
    piped = printed(None)
    numbers = {found[0].strip() for line in piped for found in NUMBER.finditer(line)}
    assert len(numbers) > 10
    for width in (40, 80, 200):
        narrow = printed(width)
        assert {number for number in numbers if not any(number in line for line in narrow)} == set()
    assert {line for line in piped if "  " in line.strip()} - {*printed(1000)} == set()
