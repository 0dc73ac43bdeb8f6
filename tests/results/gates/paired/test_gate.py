"""The paired gate on made-up checkouts, whose stub workers run nothing, and on real ones."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cli.commands import COMMANDS
from benchmarks.cli.ending import Refused
from benchmarks.cli.options import STEPS
from results.gates.paired import gate as paired
from results.gates.paired.comparison import WARM_UP_ROUNDS
from results.gates.verdict import Finding, Report
from results.records.reading import NotComparable
from tests.commands import command, parsed
from tests.processes import ROOT, git
from tests.results.gates.proof import plant

STUB = Path(__file__).with_name("stub_worker.py").read_text()
CASE = "test_step[a] stub float32 remat=none microbatches=1 sequence=8 params=64"
QUICK = ("--launches=3", "--blocks=5")


def stub(folder: Path, **behaviour: Any) -> Path:
    """A made-up checkout whose worker behaves as told."""
    room = folder / "benchmarks" / "run"
    room.mkdir(parents=True, exist_ok=True)
    for package in (room.parent, room):
        (package / "__init__.py").touch()
    (room / "server.py").write_text(STUB)
    (folder / "stub.json").write_text(json.dumps({"cases": ["a"]} | behaviour))
    return folder


def compare(base: Path | str, head: Path | str, *options: str) -> Report:
    """The gate's report on two checkouts."""
    return paired.run(parsed("regress paired", [f"--base={base}", f"--head={head}", *QUICK, *options]))


def findings(report: Report) -> dict[str, Finding]:
    """The findings by case id."""
    return {finding.case.partition("[")[2].partition("]")[0]: finding for finding in report.findings}


def test_equal_checkouts_are_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal checkouts are green after the first launches, with a line of progress for each launch and case."""
    checkout = stub(tmp_path / "both", cases=["a", "b"])
    report = compare(checkout, checkout)
    assert (report.verdict, report.exit_code) == ("green", 0)
    assert [finding.word for finding in report.findings] == ["same", "same"]
    assert [measure.value for measure in report.measures] == pytest.approx([0.01, 0.01], rel=0.05)
    progress = capsys.readouterr().err.splitlines()
    assert progress[:2] == ["check, case 1/2, a: equal", "check, case 2/2, b: equal"]
    assert len(progress) == 2 + 6
    assert progress[2].startswith("first launch 1/3, case 1/2, a: head ")


@pytest.mark.parametrize(("factor", "word", "exit_code"), [(1.2, "slower", 1), (1 / 1.2, "faster", 0)])
def test_a_change_is_confirmed(tmp_path: Path, factor: float, word: str, exit_code: int) -> None:
    """A change is reported with its size after as many fresh launches; only a slowdown is red."""
    report = compare(stub(tmp_path / "base"), stub(tmp_path / "head", factor=factor))
    (finding,) = report.findings
    assert (finding.word, report.exit_code) == (word, exit_code)
    assert finding.ratio == pytest.approx(factor, rel=0.03)
    assert finding.interval == pytest.approx((factor, factor), rel=0.05)
    assert finding.note.startswith(f"launches 3 first: {word}, 3 fresh: {word}; BASE against itself ")
    assert "1 of 1 cases were not the same after these, and had fresh launches" in report.remarks


def test_sides_take_turns(tmp_path: Path) -> None:
    """In every round each process of a launch times one block of equally many steps, in random order."""
    log = tmp_path / "log"
    checkout = stub(tmp_path / "both", log=str(log))
    compare(checkout, checkout, "--blocks=10")
    turns = [line.split()[0] for line in log.read_text().splitlines() if line.endswith("block 2")]
    rounds = list(zip(*[iter(turns)] * 3, strict=True))
    assert len(rounds) == 3 * (10 + WARM_UP_ROUNDS)
    assert all(len(set(turn)) == 3 for turn in rounds)
    assert len(set(rounds)) > 3 * 3


def test_a_head_that_computes_something_else_is_remarked_on(tmp_path: Path) -> None:
    """A first loss that differs by more than rounding is remarked on: HEAD computes something else."""
    report = compare(stub(tmp_path / "base"), stub(tmp_path / "head", loss=6))
    assert f"{CASE}: first loss 5.5 -> 6: it computes something else" in report.remarks


@pytest.mark.parametrize(
    ("head", "options", "why"),
    [
        ({"unchecked": "single ended in oom"}, (), "single ended in oom"),
        ({"check": {"a": "die once"}}, (), "died: exit status 1"),
        ({}, ("--time-budget=0.001",), "the time budget is too short"),
    ],
)
def test_a_step_that_was_not_compared_is_remarked_on(
    tmp_path: Path, head: dict[str, Any], options: tuple[str, ...], why: str
) -> None:
    """If a step was not compared with one device, a remark says why; it is timed nevertheless."""
    report = compare(stub(tmp_path / "base"), stub(tmp_path / "head", **head), *options)
    assert f"{CASE}: HEAD was not compared with one device: {why}" in report.remarks
    assert [finding.word for finding in report.findings] == ["inconclusive" if options else "same"]


def test_cases_come_and_go(tmp_path: Path) -> None:
    """A case that only BASE has is red, and one that only HEAD has is new and green."""
    report = compare(stub(tmp_path / "base", cases=["a", "b"]), stub(tmp_path / "head", cases=["a", "c"]))
    words = {case: finding.word for case, finding in findings(report).items()}
    assert words == {"a": "same", "b": "vanished", "c": "new"}
    assert report.exit_code == 1


@pytest.mark.parametrize(
    ("base", "head", "word", "note"),
    [
        ({}, {"prepare": "no memory"}, "worse", "error: no memory"),
        ({}, {"block": "compiled while it was timed"}, "worse", "error: compiled while it was timed"),
        ({"prepare": "no memory"}, {}, "better", "was error: no memory"),
        ({"prepare": "no memory"}, {"prepare": "too large"}, "same", "failed in both: error: too large"),
        ({}, {"check": "gradient of x"}, "worse", "mismatch: gradient of x"),
        ({"check": "gradient of x"}, {}, "better", "was mismatch: gradient of x"),
        ({"check": "gradient of x"}, {"check": "loss"}, "same", "failed in both: mismatch: loss"),
        ({}, {"block": "die"}, "worse", "died: exit status 1\na stub that dies"),
        ({}, {"prepare": "hang"}, "worse", "hung: no answer in 10 s"),
        ({"block": "die"}, {}, "inconclusive", "BASE died: exit status 1\na stub that dies"),
    ],
)
def test_a_case_that_fails_is_a_finding(
    tmp_path: Path, base: dict[str, str], head: dict[str, str], word: str, note: str
) -> None:
    """A case that fails, dies or hangs is a finding with its reason, and the other cases go on."""
    sides = {"base": base, "head": head}
    behave = {side: {do: {"b": how} for do, how in behaviour.items()} for side, behaviour in sides.items()}
    ours, theirs = (stub(tmp_path / side, cases=["a", "b", "c"], **how) for side, how in behave.items())
    found = findings(compare(ours, theirs, "--case-timeout=10"))
    assert {case: finding.word for case, finding in found.items()} == {"a": "same", "b": word, "c": "same"}
    assert found["b"].note == note


@pytest.mark.parametrize("when", ["prepare", "block"])
def test_one_death_is_an_accident(tmp_path: Path, capsys: pytest.CaptureFixture[str], when: str) -> None:
    """A worker that dies once is restarted, its case is timed again on all sides, and a line says so."""
    report = compare(stub(tmp_path / "base"), stub(tmp_path / "head", **{when: {"a": "die once"}}))
    assert [finding.word for finding in report.findings] == ["same"]
    assert capsys.readouterr().err.count(", tried again, for head died; ") == 1


def test_where_nothing_runs_nothing_is_green(tmp_path: Path) -> None:
    """If no case runs in both checkouts, the verdict is `not comparable`."""
    checkout = stub(tmp_path, prepare={"a": "no memory"})
    report = compare(checkout, checkout)
    assert report.verdict == "not comparable"
    assert "no case runs in both: test_step[a]" in report.reason


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        ({"protocol": 3}, "speaks protocol 3, and this is 2"),
        ({"devices": "8 H200"}, "BASE runs on 8 cpu and HEAD on 8 H200"),
        ({"cases": ["b"]}, "no case of BASE is in HEAD"),
        ({"refuse": "'fsdp' is no strategy"}, "refuses the selection: 'fsdp' is no strategy"),
    ],
)
def test_checkouts_that_differ_are_not_comparable(tmp_path: Path, head: dict[str, Any], reason: str) -> None:
    """Checkouts that differ in protocol, devices or cases, or refuse the selection, raise NotComparable."""
    with pytest.raises(NotComparable, match=reason):
        compare(stub(tmp_path / "base"), stub(tmp_path / "head", **head))


def test_a_checkout_without_a_worker_is_too_old(tmp_path: Path) -> None:
    """A checkout without `benchmarks/run/server.py` raises NotComparable with its name."""
    (tmp_path / "old" / "benchmarks").mkdir(parents=True)
    with pytest.raises(NotComparable, match=r"old has no benchmarks/run/server\.py: it is too old to be timed"):
        compare(tmp_path / "old", tmp_path / "old")


def test_a_ref_that_is_not_there_is_broken_input() -> None:
    """An unknown ref exits with 5 and says how to fetch it."""
    report = compare("no-such-ref", ".")
    assert report.exit_code == 5
    assert report.reason.startswith("'no-such-ref' is neither a directory with a benchmarks/ in it nor a commit")
    assert "git fetch" in report.reason


def test_another_copy_of_the_code_is_not_timed(tmp_path: Path) -> None:
    """A worker that imports another checkout's code exits with 5; otherwise both sides would always be the same."""
    report = compare(stub(tmp_path), stub(tmp_path / "head", root="/elsewhere"))
    assert report.exit_code == 5
    assert "would run the code in /elsewhere" in report.reason


def test_a_selection_that_nobody_knows_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The selection is passed on to the workers, and their message about it is a usage error of the command."""
    checkout = stub(tmp_path, refuse="'ddp' is no strategy")
    with pytest.raises(SystemExit, match="2"):
        command("regress paired")(
            [f"--base={checkout}", f"--head={checkout}", "--strategy", "ddp", "--model=tied=false", "--devices=8"]
        )
    assert "'ddp' is no strategy in ['--strategy=ddp', '--model=tied=false', '--devices=8']" in capsys.readouterr().err


def test_the_selection_is_that_of_the_benchmarks() -> None:
    """The gate passes on exactly the options with which `pytest benchmarks` selects cases."""
    selecting = {each.name for group in STEPS for each in group.options}
    passed = {each.name for each in COMMANDS["regress paired"].all_options() if each.many == "pass"}
    assert passed == selecting


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--minimum-effect=0.05", "'0.05' is not a percentage; write 5%"),
        ("--time-budget=0", "'0' is not a time"),
        ("--head-python=no-such-python", "'no-such-python' is not a program"),
    ],
)
def test_bad_options_are_refused_at_once(option: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A bad option exits with 2 before anything is checked out."""
    with pytest.raises(SystemExit, match="2"):
        compare(".", ".", option)
    assert message in capsys.readouterr().err


def test_too_few_launches_are_refused() -> None:
    """Two launches have no interval, whatever they measure."""
    with pytest.raises(Refused, match="2 launches settle nothing; use 3 or more"):
        compare(".", ".", "--launches=2")


def test_too_little_time_is_never_green(tmp_path: Path) -> None:
    """A time budget too small for three launches and as many fresh ones ends early, inconclusive."""
    checkout = stub(tmp_path, cases=["a", "b", "c"])
    report = compare(checkout, checkout, "--time-budget=0.01")
    assert report.exit_code == 3
    assert {finding.word for finding in report.findings} == {"inconclusive"}
    assert any("3 launches and as many fresh ones do not fit" in remark for remark in report.remarks)


def test_a_ref_is_compared_with_uncommitted_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HEAD is the commit, '.' the working tree with uncommitted changes, and git keeps no extra worktree."""
    monkeypatch.chdir(stub(tmp_path))
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message=stub"]):
        git(tmp_path, *words)
    stub(tmp_path, factor=1.5)
    report = compare("HEAD", ".")
    assert [finding.word for finding in report.findings] == ["slower"]
    assert report.title.endswith("-dirty)")
    assert len(git(tmp_path, "worktree", "list").splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    """After SIGINT or SIGTERM workers and worktrees are gone, both reports count the launches, and it ends with 130."""
    log = tmp_path / "log"
    repository = stub(tmp_path / "repository", cases=["a", "b"], log=str(log), prepare={"b": "hang"})
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message=stub"]):
        git(repository, *words)
    command = [sys.executable, "-P", "-m", "benchmarks", "regress", "paired", "--base=HEAD", "--head=HEAD", *QUICK]
    command += [f"--markdown={tmp_path / 'report.md'}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=repository, env=environment, stdout=-1, stderr=-1, text=True) as process:
        assert process.stderr
        assert any("launch 1/3, case 1/2, a: head" in process.stderr.readline() for _ in range(3))
        process.send_signal(number)
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert output.startswith("step times, HEAD (")
    assert "stopped before the end" in output
    assert "launches 1 first: inconclusive" in " ".join(output.split())
    assert "no launch was finished" in output
    assert all("1 of 3 launches of" in report for report in (output, (tmp_path / "report.md").read_text()))
    workers = [int(line.split()[0]) for line in log.read_text().splitlines() if line.endswith("start")]
    assert len(workers) == 7  # two of them only say hello, and two check
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)
    assert len(git(repository, "worktree", "list").splitlines()) == 1


@pytest.mark.stress  # it times real steps, which a busy machine slows down
def test_a_planted_slowdown_is_found(tmp_path: Path) -> None:
    """Of two real checkouts, the one whose blocks take twice as long is slower, by a factor of two."""
    base = plant(ROOT, tmp_path / "base", {})
    head = plant(ROOT, tmp_path / "head", {"single-data=1-b4": 1.0})
    tiny = "--model=layers=1,embed=16,heads=2,sequence=16", "--batch-size=4", "--strategy=single"
    (finding,) = compare(base, head, "--blocks=9", *tiny).findings
    assert finding.word == "slower"
    assert finding.ratio == pytest.approx(2.0, rel=0.2)
