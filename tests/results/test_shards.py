"""The laws of the picture of which device holds which part of each array."""

import io
import json
import math
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from results.figures.palette import device_colours
from results.figures.shards import draw_parts, layout_panels, parts_of, shards, size
from results.records.printed import MOST_DEVICES, Overview
from results.records.printed import read_overviews as read
from strategies import STRATEGIES
from strategies.costs.overview import overview
from tests.commands import command

show = command("show")


def read_one(name: str, **others: Any) -> Overview:
    """An overview as it is read."""
    return read(json.loads(json.dumps([overview(name, "nano", **others).as_dict()])))[0]


def stripes(axes: Axes) -> list[Rectangle]:
    """The stripes of a panel: one for each device that holds a part."""
    return [patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_fill()]


def cells(axes: Axes) -> set[tuple[float, float]]:
    """The corners of the cells of a panel."""
    return {patch.get_xy() for patch in axes.patches if isinstance(patch, Rectangle) and not patch.get_fill()}


@pytest.mark.parametrize(
    "mesh", ["fsdp=8", "fsdp=4,tensor=2", "data=2,pipeline=2,tensor=2", "fsdp=2,pipeline=2,tensor=2"]
)
def test_devices_share_a_part_if_jax_gives_them_the_same_slice(mesh: str) -> None:
    """Of each array: the parts are the slices of JAX's own sharding, and each has the same devices."""
    shown = read_one("three_d", mesh=mesh)
    names, sizes = zip(*shown.mesh, strict=True)
    device_mesh = jax.make_mesh(sizes, names, devices=jax.devices()[: math.prod(sizes)])
    number = {device: at for at, device in enumerate(device_mesh.devices.flat)}
    for array in shown.arrays:
        sharding = NamedSharding(device_mesh, P(*(axes or None for axes in array.axes)))
        slices: dict[str, list[int]] = {}
        for device, index in sharding.devices_indices_map(array.shape).items():
            slices.setdefault(str(index), []).append(number[device])
        assert sorted(map(list, parts_of(shown, array).values())) == sorted(map(sorted, slices.values()))


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_layout_has_a_panel(name: str) -> None:
    """One, beside the device grid: no two are alike, each array has the parts of one, and bytes are of all arrays."""
    shown = read_one(name)
    grid, *panels = shards(shown).axes
    assert len(cells(grid)) == len(shown.devices)
    layouts = layout_panels(shown)
    assert [axes.get_title(loc="left") for axes in panels] == [title for title, _ in layouts]
    assert len({repr(sorted(parts.items())) for _, parts in layouts}) == len(layouts)
    for array in shown.arrays:
        assert sum(parts_of(shown, array) == parts for _, parts in layouts) == 1
    for (title, parts), axes in zip(layouts, panels, strict=True):
        own = [array for array in shown.arrays if parts_of(shown, array) == parts]
        assert own[0].name in title.replace("\n", "")
        assert (
            f"{size(sum(array.whole_bytes for array in own))}, {size(sum(array.held_bytes for array in own))}" in title
        )
        assert all(len(parts) * array.held_bytes == array.whole_bytes for array in own)
        assert cells(axes) == {(column, row) for row, column in parts}
        assert len(parts) == axes.get_xlim()[1] * axes.get_ylim()[0] == len(axes.texts)


def test_a_device_has_one_colour() -> None:
    """In every panel, and in every cell that it holds; no two devices have the same."""
    shown = read_one("three_d", mesh="fsdp=4,tensor=2")
    colours = device_colours(8)
    assert len({*colours}) == 8
    for axes, (_, parts) in zip(shards(shown).axes[1:], layout_panels(shown), strict=True):
        expected = [colours[device] for devices in parts.values() for device in devices]
        assert [to_hex(stripe.get_facecolor()) for stripe in stripes(axes)] == expected


def test_a_cell_names_all_of_its_devices() -> None:
    """Replicas stand in one cell, consecutive ones as a range."""
    shown = read_one("hsdp", mesh="data=2,fsdp=4")
    (norm,) = [array for array in shown.arrays if (array.what, array.name) == ("weight", "head.norm.bias_D")]
    axes = shards(shown).axes[0].figure.add_subplot()
    draw_parts(axes, parts_of(shown, norm), device_colours(8))
    assert [text.get_text() for text in axes.texts] == ["0, 4", "1, 5", "2, 6", "3, 7"]


def test_neighbours_have_different_colours() -> None:
    """Whatever the number of devices, all of them."""
    for count in range(1, MOST_DEVICES + 1):
        assert len({*device_colours(count)}) == count


def test_many_parts_of_one_dim_are_in_lines() -> None:
    """Of 64 devices 16 in a line, so that all numbers are legible."""
    shown = read_one("fsdp", mesh="fsdp=64", batch_size=64)
    for axes in shards(shown).axes:
        assert len(cells(axes)) in (1, 64)
        assert axes.get_xlim()[1] <= 16


def test_show_draws_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`show --png` writes the picture that `show --json | meshmark plot -` writes, and prints the table."""
    asked = ["fsdp", "--mesh=fsdp=4,tensor=2", "--preset=nano"]
    show([*asked, f"--png={tmp_path / 'shown.png'}"])
    said = capsys.readouterr()
    assert said.out.startswith("three_d on fsdp=4,tensor=2: nano, 16 × 64 tokens")
    assert "blocks.mlp.up_DF" in said.out
    assert (
        said.err
        == "fsdp lacks an axis of fsdp=4,tensor=2; this is three_d, which does the same along the axes of fsdp\n"
    )
    show([*asked, "--json"])
    monkeypatch.setattr("sys.stdin", io.StringIO(capsys.readouterr().out))
    command("plot")(["-", "--out", str(tmp_path / "piped.png")])
    assert (tmp_path / "piped.png").read_bytes() == (tmp_path / "shown.png").read_bytes()
