"""`meshmark predict` predicts every row of a table, and says how far off it is and which rows it cannot predict."""

import csv
import json
import re
from dataclasses import replace

import pytest

from benchmarks.simulate.machines import FOLDER
from benchmarks.simulate.predict import mesh_of, model_of, read_rows, work_of
from benchmarks.simulate.published import config_of
from benchmarks.simulate.published_row import Published
from strategies.presets import PRESETS
from tests.commands import assert_refused, command
from tests.processes import ROOT

main = command("predict")

PUBLISHED = ROOT / "results" / "published"


@pytest.fixture
def rows():
    """Rows of a published table."""
    return read_rows(PUBLISHED / "megatron_a100_clusters.csv")[:8]


@pytest.fixture
def write(tmp_path):
    """Write rows to a CSV file and return its path."""

    def written(some, name="runs.csv"):
        path = tmp_path / name
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, some[0].keys())
            writer.writeheader()
            writer.writerows(some)
        return path

    return written


def predicted(tmp_path, *arguments):
    """The rows of the file that the command writes."""
    out = tmp_path / "predicted.csv"
    main([*map(str, arguments), f"--out={out}"])
    with out.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_row_is_written(rows, write, tmp_path):
    """In order, with all of its columns, and parts that add up to the predicted seconds."""
    told = predicted(tmp_path, write(rows))
    assert [{name: row[name] for name in rows[0]} for row in told] == rows
    for row in told:
        parts = [float(value) for name, value in row.items() if name.startswith("predicted.")]
        assert sum(parts) == pytest.approx(float(row["predicted_seconds"]), rel=1e-4)
        assert float(row["bound_seconds"]) < float(row["predicted_seconds"])
        assert row["problem"] == ""


def test_a_row_of_gpt_oss_is_the_model_of_its_preset():
    """It has the same sizes, blocks and window, and every second layer has full attention."""
    (row,) = [row for row in read_rows(PUBLISHED / "nemo.csv") if row["model"] == "gpt-oss-20b"]
    config, preset = config_of(Published.of(row)), replace(PRESETS["gpt-oss-20b"], sequence=4096)
    assert config.dim_sizes == preset.dim_sizes
    for name in ("layers", "block", "attention_window", "full_attention_every", "experts_per_token", "tied"):
        assert getattr(config, name) == getattr(preset, name), name


WRONG = {
    "unknown device": ({"device": "Z9"}, "topology z9:8x8: 'z9' is not known"),
    "device without a machine": ({"device": "v5e"}, "no machine has devices 'v5e' under Megatron-LM"),
    "unknown stack": ({"stack": "nanoGPT"}, "the kernels of stack 'nanoGPT' are not known; known are Megatron-LM"),
    "heads": ({"heads": "7"}, "heads=7 does not divide embed=3072"),
    "devices": ({"devices": "63"}, "are 64 devices, and the row has 63"),
    "microbatches": ({"microbatches": "3"}, "microbatches=3 does not divide batch_size=512"),
    "stages": ({"pipeline": "64", "data": "1"}, "30 blocks are too few for 64 parts of a pipeline"),
    "recompute": ({"recompute": "some"}, "recompute is 'some'; what is predicted is full, selective, none"),
    "dtype": ({"dtype": "int8"}, "dtype is 'int8'; what is predicted is float16, bfloat16"),
    "no number": ({"layers": "many"}, "layers is 'many'; it must be a whole number"),
    "a decimal comma": ({"step_seconds": "3,5"}, "step_seconds is '3,5'; it must be a number or null"),
    "no seconds": ({"step_seconds": "0"}, "step_seconds is '0'; it must be a number from 1e-06 to 1e+07"),
    "nothing": ({"heads": ""}, "the row lacks heads"),
    "no MLP": ({"mlp": ""}, "the row lacks mlp"),
    "no microbatches": ({"microbatches": "", "microbatch_size": ""}, "the row lacks microbatches, or microbatch_size"),
    "experts": ({"experts": "8"}, "the row lacks expert_mlp"),
    "8 bits": ({"dtype": "mxfp8"}, "machine a100_megatron has no rate of fp8 matmuls"),
    "other blocks": ({"model": "gemma3-12b", "kv_heads": "8"}, "there are no formulas for the blocks of gemma3"),
    "no hosts": ({"devices_per_host": "0"}, "devices_per_host is '0'; it must be a whole number of at least 1"),
    "truth": ({"sequence_parallel": "maybe"}, "sequence_parallel is 'maybe'; it must be true or false"),
    "schedule": ({"schedule": "foo"}, "schedule is 'foo'; it can be gpipe, 1f1b, interleaved, zb-h1"),
    "sequences": ({"microbatch_size": "7"}, "1 microbatches of 7 on 64 replicas are 448 sequences"),
    "sharding": ({"optimizer_sharded": "some"}, "optimizer_sharded is 'some'; it can be none, zero1, "),
}


def test_what_a_row_says_changes_the_step(rows, write, tmp_path):
    """Interleaving, selective recomputation, sequence parallelism and sharding are read."""
    pipeline = {**rows[0], "data": "1", "tensor": "8", "pipeline": "8", "layers": "32"}
    pipeline |= {"microbatches": "16", "microbatch_size": ""}
    changes: list[dict[str, str]] = [
        {},
        {"schedule": "interleaved", "virtual_stages": "2"},
        {"recompute": "selective"},
        {"recompute": "none"},
        {"sequence_parallel": "1"},
    ]
    told = predicted(tmp_path, write([{**pipeline, "virtual_stages": "", **change} for change in changes]))
    plain, interleaved, *others = [float(row["predicted_seconds"]) for row in told]
    assert interleaved < plain
    assert plain > others[0] > others[1]
    assert others[2] != plain
    sharded = [{**rows[0], "optimizer_sharded": name} for name in ("none", "zero1", "zero2", "zero3")]
    none, zero1, zero2, zero3 = [float(row["predicted_seconds"]) for row in predicted(tmp_path, write(sharded))]
    assert len({none, zero1, zero3}) == 3
    assert zero2 == zero1


def test_what_a_row_does_not_say_follows(rows, write, tmp_path):
    """Microbatches from the batch, sharding from the stack or the fsdp axis, seconds from the rate of tokens."""
    row = rows[0]
    rate = int(row["batch_size"]) * int(row["sequence"]) / float(row["step_seconds"]) / int(row["devices"])
    silent = dict.fromkeys(("microbatches", "sequence_parallel", "optimizer_sharded", "step_seconds"), "")
    rated = {**row, **silent, "tokens_per_second_per_device": str(rate), "contradicts": ""}
    contradicting = {**rated, "contradicts": "two rates differ"}
    said, followed, unscored = predicted(tmp_path, write([row]), write([rated, contradicting], "silent.csv"))
    assert followed["predicted_seconds"] == unscored["predicted_seconds"] == said["predicted_seconds"]
    assert float(followed["measured_seconds"]) == pytest.approx(float(row["step_seconds"]), rel=1e-12)
    assert (followed["step_seconds"], unscored["measured_seconds"]) == ("", "")
    assert followed["microbatches"] == said["microbatches"] == row["microbatches"]
    without = {name: cell for name, cell in rated.items() if name not in silent}  # as a table without these columns
    (lacking,) = predicted(tmp_path, write([without], "lacking.csv"))
    assert lacking["predicted_seconds"] == said["predicted_seconds"]
    assert lacking["microbatches"] == row["microbatches"]
    sharded = {**row, "data": "1", "fsdp": "64"}
    implied, zero3 = predicted(
        tmp_path, write([{**sharded, "optimizer_sharded": name} for name in ("", "zero3")], "fsdp.csv")
    )
    assert implied["predicted_seconds"] == zero3["predicted_seconds"]


@pytest.mark.parametrize("axes", [{"data": "8", "tensor": "8"}, {"data": "16", "pipeline": "4", "microbatches": "4"}])
def test_a_sharded_optimizer_is_divided_over_the_data_axis(axes, rows, write, tmp_path):
    """Beside other axes, too: it updates its part, and sends what an all-reduce does.

    Weights are gathered in two bytes, as gradients are scattered; norms and biases in four.
    """
    row = {**rows[0], "microbatch_size": "", "embed": "3072", "layers": "32", **axes}
    changes = [{"optimizer_sharded": name} for name in ("none", "zero1")]
    plain, sharded = predicted(tmp_path, write([{**row, **change} for change in changes]))
    updates, seconds = (float(each["predicted.optimizer_seconds"]) for each in (sharded, plain))
    assert updates == pytest.approx(seconds / int(axes["data"]), rel=1e-3)
    sent = [float(each["predicted.gradients_seconds"]) for each in (sharded, plain)]
    assert sent[0] == pytest.approx(sent[1], rel=0.01)


def test_constants_are_carried_over_to_devices_without_a_machine(rows, write, tmp_path, capsys):
    """Megatron-LM on H100 has no file: A100's constants and H100's specifications predict it; the report says so."""
    usual, faster = predicted(tmp_path, write([rows[0], {**rows[0], "device": "H100"}]))
    assert float(faster["predicted_seconds"]) < float(usual["predicted_seconds"])
    assert faster["machine.name"].endswith(" on h100")
    assert "carried over to h100" in capsys.readouterr().out


def test_a_machine_of_another_stack_is_refused(rows, write, tmp_path):
    """Constants of PyTorch FSDP say nothing of Megatron-LM."""
    (row,) = predicted(tmp_path, write(rows[:1]), "--machine=a100_fsdp")
    assert (row["predicted_seconds"], row["problem"]) == (
        "",
        "machine a100_fsdp is of PyTorch FSDP, and the row of Megatron-LM",
    )


@pytest.mark.parametrize("name", WRONG)
def test_a_row_that_cannot_be_expressed_is_kept_with_the_reason(name, rows, write, tmp_path, capsys):
    """It has no seconds, the file and the report say why, and the rows beside it are predicted all the same."""
    change, problem = WRONG[name]
    told = predicted(tmp_path, write([rows[0], {**rows[0], **change}, rows[1]]))
    assert [bool(row["predicted_seconds"]) for row in told] == [True, False, True]
    assert problem in told[1]["problem"]
    said = capsys.readouterr().out
    named = f"    row 2: {model_of(told[1])}, {mesh_of(told[1])}"
    assert f"1 rows cannot be predicted: {told[1]['problem']}\n{named}\n" in said
    assert "2 of 3 rows are predicted and measured" in said


def test_tables_of_different_columns_are_one_file(rows, write, tmp_path):
    """Columns that a table lacks are empty in its rows."""
    other = [{**row, "remark": "twice"} for row in rows[:2]]
    told = predicted(tmp_path, write(rows[:2]), write(other, "others.csv"))
    assert [row["remark"] for row in told] == ["", "", "twice", "twice"]


def test_a_machine_may_be_named_for_all_rows(rows, write, tmp_path):
    """Its constants predict all rows, instead of those of the device, the stack and the number of hosts.

    They are carried over to devices that the file does not name, and their error is then assumed.
    """
    told, path = json.loads((FOLDER / "a100_megatron.json").read_text()), tmp_path / "mine.json"
    path.write_text(json.dumps(told | {"constants": told["constants"] | {"matmul_efficiency": 0.8}}))
    usual, other = (
        [float(row["predicted_seconds"]) for row in predicted(tmp_path, write(rows), *more)]
        for more in ([], [f"--machine={path}"])
    )
    assert all(abs(one / two - 1) > 0.001 for one, two in zip(usual, other, strict=True))
    on_h100 = write([{**rows[0], "device": "H100"}], "h100.csv")
    (row,) = predicted(tmp_path, on_h100, f"--machine={path}")
    assert (row["machine.name"], row["machine.error"]) == ("mine on h100", "0.2")


def test_the_report_has_the_errors_of_each_group(rows, write, tmp_path, capsys):
    """A line for each source and work, with the number of its runs, and how many lie in their intervals."""
    predicted(tmp_path, write([{**row, "source": "ours"} for row in rows]))
    said = capsys.readouterr().out
    assert re.search(r"ours +8 +\d+\.\d%", said)
    assert re.search(r"8 of 8 rows are predicted and measured, [5-8] of them inside of their 80% interval", said)
    assert re.search(rf"{re.escape(work_of(rows[0]))} +8 +", said)


def test_the_report_has_a_line_for_each_machine(rows, write, tmp_path, capsys):
    """Rows of one machine file are one line, although their stacks and precisions differ."""
    table = PUBLISHED / "megatron_bridge.csv"
    told = predicted(tmp_path, table, write(rows))
    lines = re.findall(r"^\d+ rows by machine (.+?): ", capsys.readouterr().out, re.MULTILINE)
    assert sorted(lines) == sorted({row["machine.name"] for row in told if row["machine.name"]})


@pytest.mark.parametrize(
    ("arguments", "status", "problem"),
    [
        (["{good}", "--machine=abacus"], 2, "machine 'abacus' is not known; known are a100_fsdp, a100"),
        (["{folder}/none.csv"], 5, "does not exist"),
        (["{good}", "{good}"], 2, "is given twice, and its rows would count twice; pass each table once"),
        (["{folder}"], 5, "is a folder, not a file"),
        (["{good}", "--out={good}"], 5, "would overwrite the input"),
        (["{empty}"], 5, "has no rows"),
        (["{short}"], 5, "lacks the columns heads, mlp; name a table that has them"),
        (["{good}", "--out={good}/predicted.csv"], 5, "cannot be written"),
    ],
)
def test_what_cannot_be_read_or_written_is_refused(arguments, status, problem, rows, write, tmp_path):
    """With a line that says what is wrong."""
    paths = {
        "good": write(rows),
        "folder": tmp_path,
        "empty": tmp_path / "empty.csv",
        "short": write([{k: v for k, v in row.items() if k not in ("heads", "mlp")} for row in rows], "short.csv"),
    }
    paths["empty"].write_text(",".join(rows[0]) + "\n")
    assert_refused(["predict", *(text.format(**paths) for text in arguments)], status, problem)
