"""`meshmark fit` writes a machine file that predicts the runs that it was fitted to."""

import csv
import json
import re
from dataclasses import asdict

import pytest

from benchmarks.simulate.machine import RANGES
from benchmarks.simulate.machines import machine
from benchmarks.simulate.predict import cluster_of, errors, model_of, predicted_rows, read_rows
from tests.commands import command
from tests.processes import ROOT

main = command("fit")

FSDP = ROOT / "results" / "published" / "mpt_fsdp_a100_80gb.csv"
ONLY = "matmul_efficiency,matmul_dim,attention_efficiency"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table of some published runs, one of which has a stack that is not known."""
    rows = [*read_rows(FSDP)[::4]]
    path = tmp_path_factory.mktemp("runs") / "runs.csv"
    return write_rows(path, [*rows, {**rows[0], "stack": "nanoGPT"}])


def write_rows(path, rows):
    """Write a CSV file and return its path."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_what_is_written_is_a_machine(table, tmp_path, capsys):
    """`machine` reads the file back: the fitted constants, the others as they were, and the error of unseen runs."""
    out, start = tmp_path / "fitted.json", machine("a100_fsdp")
    main([str(table), "--machine=a100_fsdp", f"--only={ONLY}", f"--out={out}"])
    said, left_out = capsys.readouterr()
    its = machine(str(out))
    for name, value in asdict(its.constants).items():
        assert RANGES[name].low <= value <= RANGES[name].high
        assert (value == getattr(start.constants, name)) is (name not in ONLY.split(","))
        assert f"{name} " in said
    assert its.stack == start.stack
    assert its.source == f"fitted to {len(read_rows(table)) - 1} runs of runs.csv"
    assert its.fitted_to == (read_rows(table)[0]["source"],)
    assert 0 < its.error < 0.2
    assert "the kernels of stack 'nanoGPT' are not known" in left_out
    assert "models that were left out" in said


def test_only_runs_on_devices_of_the_machine_are_fitted(capsys):
    """Of a table with five kinds of devices under one stack: a run on another kind says nothing of this one's rates."""
    rows = read_rows(FSDP.parent / "megatron_bridge.csv")
    main([str(FSDP.parent / "megatron_bridge.csv"), "--machine=megatron_bridge_b300", "--only=matmul_efficiency"])
    said, left_out = capsys.readouterr()
    others = sum(row["device"] != "B300" for row in rows)
    assert 0 < others < len(rows)
    assert left_out.count("and machine megatron_bridge_b300 of b300") == others
    assert re.search(rf"the runs that were fitted +{len(rows) - others} ", said)


def test_an_error_in_sample_is_not_said_to_be_held_out(tmp_path, capsys):
    """With one model and one cluster nothing can be left out: the report and the machine file say `in sample`."""
    rows = read_rows(FSDP)
    one = [row for row in rows if (model_of(row), cluster_of(row)) == (model_of(rows[0]), cluster_of(rows[0]))]
    table, out = write_rows(tmp_path / "one.csv", one), tmp_path / "fitted.json"
    main([str(table), "--machine=a100_fsdp", "--only=matmul_efficiency", f"--out={out}"])
    said, its = "".join(capsys.readouterr()), machine(str(out))
    assert "these errors are in sample" in said
    assert "left out" not in said.replace("could be left out", "")
    assert its.source.endswith("its error is in sample")
    assert its.error == pytest.approx(errors(predicted_rows(one, str(out))).mean, abs=1e-4)
    assert its.error_text.endswith("for the runs that the constants were fitted to, and likely by more for others")


def test_a_fit_is_no_worse_than_where_it_started(table, tmp_path):
    """On the runs that it was fitted to, with constants that were moved away first."""
    told = json.loads((ROOT / "benchmarks" / "devices" / "machines" / "a100_fsdp.json").read_text())
    told["constants"] |= {"matmul_efficiency": 0.6, "attention_efficiency": 0.9}
    moved, out = tmp_path / "moved.json", tmp_path / "fitted.json"
    moved.write_text(json.dumps(told))
    main([str(table), f"--machine={moved}", f"--only={ONLY}", f"--out={out}"])
    rows = read_rows(table)[:-1]
    before, after = (errors(predicted_rows(rows, str(path))).mean for path in (moved, out))
    assert before > 0.2
    assert after < 0.08


@pytest.mark.parametrize(
    ("arguments", "status", "problem"),
    [
        (["{table}", "--machine=abacus"], 2, "machine 'abacus' is not known"),
        (["{table}", "--machine=a100_fsdp", "--only=luck"], 2, "luck is no constant; the constants are matmul_eff"),
        (["{folder}/none.csv", "--machine=a100_fsdp"], 5, "does not exist"),
        (
            ["{unmeasured}", "--machine=a100_fsdp"],
            2,
            "no measured row of this stack and device can be expressed; give rows",
        ),
        (["{table}", "--machine=a100_fsdp", "--out={table}"], 5, "would overwrite the input"),
        (["{few}", "--machine=a100_fsdp"], 2, "2 runs cannot fix"),
        (["{table}", "--machine=a100_fsdp", "--out={table}/fitted.json"], 5, "cannot be written"),
    ],
)
def test_what_cannot_be_fitted_is_refused(arguments, status, problem, table, tmp_path, capsys):
    """With a line that says what is wrong."""
    few = tmp_path / "few.csv"
    few.write_text("".join(table.read_text().splitlines(keepends=True)[:3]))
    unmeasured = write_rows(tmp_path / "unmeasured.csv", [{**row, "step_seconds": ""} for row in read_rows(table)])
    with pytest.raises(SystemExit) as ended:
        main([text.format(table=table, few=few, unmeasured=unmeasured, folder=tmp_path) for text in arguments])
    assert ended.value.code == status
    assert problem in capsys.readouterr().err
