"""`meshmark show` without a strategy shows those that the mesh, the devices and the batch allow."""

import json

import pytest

from strategies import STRATEGIES
from tests.commands import command

show = command("show")


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ("--topology h100:1x8", {*STRATEGIES} - {"single", "tensor", "explicit"}),  # gpt2 has 12 heads
        ("--mesh fsdp=4", {"fsdp", "hsdp", "three_d", "auto"}),
        ("--batch-size 1", {"single", "context", "tensor"}),
        ("", {*STRATEGIES}),
    ],
)
def test_all_that_are_possible_are_shown(options: str, shown: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each that is refused is named in a line, with the reason; one that stands for another is shown by that name."""
    show([*options.split(), "--json"])
    out, err = capsys.readouterr()
    found = {each["strategy"] for each in json.loads(out)}
    refused = {line.split()[1].strip(":") for line in err.splitlines()}
    assert found >= shown
    assert not found & refused
    assert "--mesh" in options or found | refused == {*STRATEGIES}


def test_the_sizes_of_a_model_can_be_changed(capsys: pytest.CaptureFixture[str]) -> None:
    """They are in the title, and in the dims and bytes of its arrays; a size that a mesh does not divide is refused."""
    show(["tensor", "--mesh=tensor=3", "--model=layers=2,heads=6,embed=96,mlp=12,sequence=66", "--json"])
    (shown,) = json.loads(capsys.readouterr().out)
    assert "nano,layers=2,heads=6,embed=96,mlp=12,sequence=66" in shown["workload"]
    (down,) = [each for each in shown["arrays"] if (each["name"], each["what"]) == ("blocks.mlp.down_FD", "weight")]
    assert (down["whole_bytes"], down["held_bytes"]) == (4 * 2 * 12 * 96, 4 * 2 * 4 * 96)
    with pytest.raises(SystemExit, match="2"):
        show(["tensor", "--mesh=tensor=3", "--model=heads=4"])
    assert "tensor=3 does not divide heads=4" in capsys.readouterr().err


def test_what_no_strategy_allows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The reason is that of the first strategy."""
    with pytest.raises(SystemExit, match="2"):
        show(["--mesh", "nothing=4"])
    assert "unknown mesh axis 'nothing'; it can be data, " in capsys.readouterr().err


def test_a_strategy_that_is_named_must_be_possible(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing that is named is left out."""
    with pytest.raises(SystemExit, match="2"):
        show(["fsdp", "single", "--topology", "h100:1x8"])
    assert "single has no mesh of 8 devices" in capsys.readouterr().err
