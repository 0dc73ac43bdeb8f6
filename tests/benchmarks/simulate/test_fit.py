"""Constants are recovered from steps that they made; `meshmark fit` writes them, and judges what it has not fitted."""

import csv
import re
from dataclasses import asdict, replace

import numpy as np
import pytest

from benchmarks.cli.accuracy import errors_of
from benchmarks.simulate.fit import fit, left_out, predicted_seconds
from benchmarks.simulate.machine import RANGES
from benchmarks.simulate.machines import machine
from benchmarks.simulate.predict import errors, predicted, read_rows
from benchmarks.simulate.published import run_of
from tests.commands import assert_refused, command
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
    assert its.error == pytest.approx(errors(predicted(row, str(out)) for row in rows).mean, abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "status", "problem"),
    [
        (["{table}", "--machine=abacus"], 2, "machine 'abacus' is not known"),
        (["{table}", "--machine=a100_fsdp", "--only=luck"], 2, "luck is not a constant; the constants are matmul_eff"),
        (["{folder}/none.csv", "--machine=a100_fsdp"], 5, "does not exist"),
        (
            ["{unmeasured}", "--machine=a100_fsdp"],
            2,
            "no measured row of this stack and device can be expressed; add rows",
        ),
        (["{table}", "--machine=a100_fsdp", "--out={table}"], 5, "would overwrite the input"),
        (["{few}", "--machine=a100_fsdp"], 2, "2 runs cannot fix"),
        (["{table}", "--machine=a100_fsdp", "--out={table}/fitted.json"], 5, "cannot be written"),
    ],
)
def test_what_cannot_be_fitted_is_refused(arguments, status, problem, table, tmp_path):
    """With a line that says what is wrong."""
    few = tmp_path / "few.csv"
    few.write_text("".join(table.read_text().splitlines(keepends=True)[:3]))
    unmeasured = write_rows(tmp_path / "unmeasured.csv", [{**row, "step_seconds": ""} for row in read_rows(table)])
    names = {"table": table, "few": few, "unmeasured": unmeasured, "folder": tmp_path}
    assert_refused(["fit", *(text.format(**names) for text in arguments)], status, problem)


ROW = {
    **{"stack": "Megatron-LM", "device": "A100", "devices": 16, "devices_per_host": 8, "layers": 8, "embed": 2048},
    **{"heads": 16, "mlp": 8192, "vocab": 51200, "sequence": 1024, "batch_size": 64, "microbatches": 4, "data": 2},
    **{"fsdp": 1, "tensor": 8, "pipeline": 1, "schedule": "1f1b", "recompute": "full", "sequence_parallel": False},
    **{"optimizer_sharded": "none", "dtype": "float16", "step_seconds": 1.0},
}
SPREADS = [(16, 1, 1), (8, 2, 1), (4, 4, 1), (2, 8, 1), (1, 16, 1), (4, 2, 2), (2, 2, 4), (1, 8, 2)]


@pytest.fixture(scope="module")
def runs():
    """Runs of two models, spread in several ways."""
    rows = [
        {**ROW, **dict(zip(("data", "tensor", "pipeline"), spread, strict=True)), **sizes}
        for spread in SPREADS
        for sizes in ({"embed": 1024, "mlp": 4096, "layers": 8}, {"embed": 4096, "mlp": 16384, "layers": 16})
    ]
    return [run_of(row) for row in rows]


@pytest.fixture(scope="module")
def planted():
    """Constants inside of their ranges, unlike those where a fit starts."""
    start = machine("a100_megatron")
    values = {name: each.low + 0.3 * (each.high - each.low) for name, each in RANGES.items()}
    return replace(start, constants=replace(start.constants, **values))


def on(machine_):
    """A machine for all kinds of devices."""
    return lambda kind: machine_


def measured_on(machine_, runs):
    """The runs with the seconds that a machine predicts."""
    seconds = predicted_seconds(runs, on(machine_), machine_.constants)
    return [replace(run, step_seconds=float(each)) for run, each in zip(runs, seconds, strict=True)]


def test_a_fit_recovers_what_made_the_steps(runs, planted):
    """Fitted to steps of known constants, predictions are those steps; what does not matter keeps its value."""
    made = measured_on(planted, runs)
    found = fit(made, on(replace(planted, constants=machine("a100_megatron").constants)))
    error = predicted_seconds(made, on(planted), found.constants) / [run.step_seconds for run in made] - 1
    assert np.abs(error).max() < 0.01
    assert "attention_efficiency" not in found.fitted  # Megatron-LM's attention is not fused
    assert found.constants.attention_efficiency == machine("a100_megatron").constants.attention_efficiency


def test_a_constant_at_the_end_of_its_range_is_reported(runs, planted):
    """Steps that are faster than any plausible constant allows push it to its end, and the fit says so."""
    fast = [replace(run, step_seconds=(run.step_seconds or 0) / 5) for run in measured_on(planted, runs)]
    assert "matmul_efficiency" in fit(fast, on(planted), ["matmul_efficiency"]).at_edges


def test_what_is_judged_is_not_fitted(runs, planted):
    """A model whose steps were planted twice as slow is judged by the other model's constants: about half too fast."""
    made = measured_on(planted, runs)
    models = [str(run.cost.plan.config.embed) for run in made]
    slow = [
        replace(run, source=name, step_seconds=(2 if name == "1024" else 1) * (run.step_seconds or 0))
        for run, name in zip(made, models, strict=True)
    ]
    only = ["matmul_efficiency", "memory_efficiency"]
    without = left_out(slow, on(planted), only)
    judged = np.array([name == "1024" for name in models])
    ratios = {
        name: predicted_seconds(slow, on(planted), constants) / [run.step_seconds for run in slow]
        for name, constants in without.items()
    }
    assert ratios["1024"][judged] == pytest.approx(0.5, rel=0.01)
    assert np.all(ratios["4096"][~judged] > 1.1)  # the slow model pulled these constants down
    assert left_out(made, on(planted)) == {}


def test_errors_of_predictions():
    """Absolute errors are averaged, signed ones are the bias; regret is what the predicted best loses."""
    told = errors_of([1.2, 1.0, 3.0], [1.0, 1.25, 3.0])
    assert (told.mean, told.bias, told.median) == pytest.approx(((0.2 + 0.2 + 0) / 3, 0.0, 0.2))
    assert told.regret == pytest.approx(0.25)
    assert errors_of([1.0], [2.0]).rank_correlation is None
