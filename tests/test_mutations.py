"""Whatever is done to a valid file or argument, a command ends in a result or in one clear line, within ten seconds.

Hypothesis mutates what each command reads: types, keys, numbers, encodings, cells. The default test run tries the same
examples each time; `tox -e factorisations` tries many more, and others each night.
"""

import re
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.cli.commands import COMMANDS as KNOWN
from benchmarks.cli.main import resolved
from tests.commands import ended
from tests.mutations import TEXTS, mutated

SECONDS = 10.0
"""Most seconds of processor time that a command may take to refuse or to finish."""
CODES = 0, 1, 2, 4, 5
"""Done, a gate that is red, wrong usage, a gate that refuses to compare, and input that cannot be read."""
PROGRESS = re.compile(r"[0-9,]+ candidates in [0-9.]+ s")
"""What a search says before it writes files; it is no error."""
LONGEST = 2000
"""Most characters of the line that says what is wrong."""


class Reader(NamedTuple):
    """A command that reads a file, or stdin where its arguments name none."""

    command: str
    name: str
    """Of the valid file that is mutated; the arguments name it as FILE."""
    examples: int = 30


READERS = [
    Reader("plot FILE --out=figures", "run.json", 6),
    Reader("page FILE --out=page.html", "run.json", 20),
    Reader("page FILE --out=page.html", "found.json", 10),
    Reader("export FILE --format=csv", "run.json"),
    Reader("compare run.json FILE", "run.json"),
    Reader("regress exact run.json FILE", "run.json", 100),
    Reader("regress baseline FILE --out=baselines", "run.json"),
    Reader("regress exact run.json FILE --across-versions=5% --markdown=x.md", "run.json", 15),
    Reader("regress exact FILE run.json", "baseline.json", 100),
    Reader("merge FILE other.json --out=merged.json", "run.json"),
    Reader("merge FILE other.json --only-shared-cases --out=merged.json", "run.json", 15),
    Reader("plot FILE --out=x.svg", "found.json", 10),
    Reader("plot FILE --out=x.svg", "scaling.json", 10),
    Reader("plot FILE --out=x.svg", "trace.json", 15),
    Reader("plot FILE --out=figures", "log.jsonl", 10),
    Reader("plot - --out=x.svg", "schedule.json", 15),
    Reader("plot - --out=x.svg", "overview.json", 10),
    Reader("plot - --out=diagrams", "overview.json", 10),
    Reader("plot FILE --out=pages", "predicted.csv", 6),
    Reader("predict FILE --out=out.csv", "runs.csv"),
    Reader("predict runs.csv --machine=FILE", "machine.json"),
    Reader(
        "search --preset=nano --topology=h100:1x2 --batch-size=8 --strategy=data --machine=FILE",
        "machine.json",
        15,
    ),
]
TINY = "--model=layers=2,embed=16,heads=2,vocab=256,sequence=16"
COMMANDS = [
    f"search --topology=h100:1x2 --batch-size=8 --strategy=data {TINY}",
    "predict runs.csv",
    "export run.json --format=csv",
    "merge run.json other.json --out=merged.json",
    "regress exact run.json other.json",
    "show data --mesh=data=2",
    "schedule 1f1b --stages=2 --microbatches=4",
]
"""Commands whose arguments are mutated."""
UNTRIED = {"--compile", "--measure", "--workers", "--devices", "--png", "--json"}
"""Options that are not tried: they compile and time steps, or draw in another process, which takes too long."""


def require_clear_end(command: list[str], stdin: bytes = b"") -> None:
    """Check that a command ends as documented: with a result, or with one line of printable text.

    A gate says in its report on stdout what is wrong.
    """
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of figures whose fonts lack a letter
        code, printed, said = ended(command, stdin)
    assert time.process_time() - start < SECONDS
    assert code in CODES
    said = "".join(line for line in said.splitlines(keepends=True) if not PROGRESS.fullmatch(line.strip()))
    (said + printed).encode()  # a lone surrogate would end a terminal's writer
    if code == 1:
        assert len(said.splitlines()) < 10, said
    if code in (2, 4, 5):
        reported = command[0] == "regress" and not said
        assert len((printed if reported else said).strip().splitlines()) in (range(1, 10) if reported else (1,)), said
        assert 10 < len(said or printed) < LONGEST, said


def tries(examples: int, *, same: bool) -> settings:
    """How many examples are tried, and whether they are the same each time."""
    unhurried = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
    return settings(max_examples=examples, derandomize=same, database=None, suppress_health_check=unhurried)


def try_file(reader: Reader, files: Path, folder: Path, tried: settings) -> None:
    """Mutate the file of a command as often as said."""
    content = (files / reader.name).read_bytes()
    path = folder / reader.name
    command = reader.command.replace("FILE", str(path)).replace("run.json FILE", f"{files / 'run.json'} FILE")
    arguments = [
        str(files / part) if part in ("run.json", "other.json", "runs.csv") else part for part in command.split()
    ]
    reads_stdin = "FILE" not in reader.command

    @tried
    @given(mutated(content, reader.name))
    def try_one(other: bytes) -> None:
        path.write_bytes(other)
        require_clear_end(arguments, other if reads_stdin else b"")

    try_one()


def try_arguments(command: str, files: Path, tried: settings) -> None:
    """Give one option of a command another value, as often as said."""
    parts = [str(files / part) if part in ("run.json", "other.json", "runs.csv") else part for part in command.split()]
    known = KNOWN[resolved(parts)[0]].all_options()
    options = sorted({each.name for each in known if each.name.startswith("--")} - UNTRIED)

    @tried
    @given(st.sampled_from(options), st.sampled_from(TEXTS))
    def try_one(option: str, text: str) -> None:
        require_clear_end([*parts, f"{option}={text}"])

    try_one()


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: f"{reader.command.split()[0]}-{reader.name}")
def test_a_mutated_file_ends_in_a_result_or_a_line(
    reader: Reader, valid_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback, no hang, no line that cannot be printed; the exit code is a documented one."""
    monkeypatch.chdir(tmp_path)
    try_file(reader, valid_files, tmp_path, tries(reader.examples, same=True))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[0])
def test_a_mutated_argument_ends_in_a_result_or_a_line(
    command: str, valid_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any option with any value: a result, or the line that says what is wrong with it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    try_arguments(command, valid_files, tries(25, same=True))


@pytest.mark.factorisations
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: f"{reader.command.split()[0]}-{reader.name}")
def test_many_mutated_files(reader: Reader, valid_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same law, with other examples each time."""
    monkeypatch.chdir(tmp_path)
    try_file(reader, valid_files, tmp_path, tries(20 * reader.examples, same=False))


@pytest.mark.factorisations
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[0])
def test_many_mutated_arguments(
    command: str, valid_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same law, with other examples each time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    try_arguments(command, valid_files, tries(500, same=False))
