"""`meshmark fit` writes a machine file that predicts the runs that it was fitted to."""

import csv
import json
import re
from dataclasses import asdict

import pytest

from benchmarks.simulate.machine import RANGES
from benchmarks.simulate.machines import machine
from benchmarks.simulate.predict import errors, predicted_rows, read_rows
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
    assert f"fitted to {len(read_rows(table)) - 1} runs of 1 sources" in its.source
    assert {*its.without} == {read_rows(table)[0]["source"]}
    assert 0 < its.error < 0.2
    assert "the kernels of stack 'nanoGPT' are not known" in left_out


def test_only_runs_on_devices_of_the_machine_are_fitted(capsys):
    """Of a table with five kinds of devices under one stack, each kind with its own specifications."""
    table = FSDP.parent / "megatron_bridge.csv"
    rows = read_rows(table)
    main([str(table), "--machine=megatron_bridge_h100", "--only=matmul_efficiency"])
    said, left_out = capsys.readouterr()
    others = sum(row["device"] != "H100" for row in rows)
    contradicting = sum(row["device"] == "H100" and bool(row["contradicts"]) for row in rows)
    assert 0 < others < len(rows)
    assert left_out.count("and machine megatron_bridge_h100 of h100, h200") == others
    assert re.search(rf"the runs that were fitted +{len(rows) - others - contradicting} ", said)


def test_a_source_is_left_out_with_all_of_its_runs(table, tmp_path, capsys):
    """The file has constants of a fit without each source; of one alone those of another machine stand in.

    Without another machine the error is in sample, and the report and the file say so.
    """
    rows = read_rows(table)[:-1]
    two = [{**row, "source": f"source {index % 2}"} for index, row in enumerate(rows)]
    of_two, out = write_rows(tmp_path / "two.csv", two), tmp_path / "two.json"
    main([str(of_two), "--machine=a100_fsdp", "--only=matmul_efficiency", f"--out={out}"])
    its = machine(str(out))
    assert {*its.without} == {"source 0", "source 1"}
    assert its.without["source 0"] != its.without["source 1"]
    assert its.leaving_out("source 0").constants.matmul_efficiency == its.without["source 0"]["matmul_efficiency"]
    assert "sources that were left out" in capsys.readouterr().out
    out = tmp_path / "otherwise.json"
    main([str(table), "--machine=a100_fsdp", "--only=matmul_efficiency", "--otherwise=h100_fsdp", f"--out={out}"])
    (source,) = machine(str(out)).without
    assert machine(str(out)).leaving_out(source).constants.matmul_efficiency == pytest.approx(
        machine("h100_fsdp").leaving_out(source).constants.matmul_efficiency, rel=1e-3
    )
    capsys.readouterr()
    out = tmp_path / "alone.json"
    main([str(table), "--machine=a100_fsdp", "--only=matmul_efficiency", f"--out={out}"])
    its = machine(str(out))
    assert "these errors are in sample" in capsys.readouterr().out
    assert its.source.endswith("its error is in sample")
    assert its.error == pytest.approx(errors(predicted_rows(rows, str(out))).mean, abs=1e-4)


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
