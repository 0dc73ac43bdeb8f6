"""The laws of the picture of a pipeline schedule."""

import io
import json

import pytest
from matplotlib.patches import Rectangle

from results.figures.timeline import timeline
from results.records.printed import read_schedule as read
from tests.commands import command

print_schedule = command("schedule")


def drawn(*arguments: str) -> dict:
    """Return a schedule as `meshmark schedule --json` prints it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", text := io.StringIO())
        print_schedule([*arguments, "--json"])
    return json.loads(text.getvalue())


@pytest.mark.parametrize(("name", "operations"), [("gpipe", 2), ("zb-h1", 3), ("dualpipe-v", 4)])
def test_each_operation_is_a_cell(name: str, operations: int) -> None:
    """Each operation is a cell at its tick and stage, or half of one, labelled with its microbatch; idle ticks have
    none.
    """
    schedule = read(drawn(name, "--stages=2", "--microbatches=4"))
    (axes,) = timeline(schedule).axes
    cells = {(patch.get_xy(), patch.get_width()) for patch in axes.patches if isinstance(patch, Rectangle)}
    expected = {
        ((tick + i / len(cell), stage), 1 / len(cell)): str(op.microbatch)
        for stage, row in enumerate(schedule.stages)
        for tick, cell in enumerate(row)
        for i, op in enumerate(cell)
    }
    assert cells == {*expected}
    assert len(cells) == operations * 2 * 4
    labels = {(text.get_position()[0], text.get_position()[1] - 0.5): text.get_text() for text in axes.texts}
    assert labels == {(x + width / 2, y): label for ((x, y), width), label in expected.items()}
