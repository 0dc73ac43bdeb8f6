"""A picture of each collective, as SVG: what four devices hold before and after it.

python docs/learn/collectives.py
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

FOLDER = Path(__file__).parent
DEVICES = range(4)
COLOURS = "#4c72b0", "#dd8452", "#55a868", "#c44e52"
"""One for the data of each device."""
SUM = "#444444"
CELL, GAP, LEFT, TOP = 26, 22, 58, 24
Cell = tuple[str, str] | None
"""Label and colour of a part of an array; None where a device holds nothing."""


def _own(device: int, part: int) -> Cell:
    return f"{device}{'abcd'[part]}", COLOURS[device]


def _sum(part: int) -> Cell:
    return f"Σ{'abcd'[part]}", SUM


WHOLE = [[_own(device, part) for part in DEVICES] for device in DEVICES]
PARTS = [[_own(device, part) if part == device else None for part in DEVICES] for device in DEVICES]
COLLECTIVES = {
    "all-reduce": (WHOLE, [[_sum(part) for part in DEVICES] for _ in DEVICES]),
    "reduce-scatter": (WHOLE, [[_sum(part) if part == device else None for part in DEVICES] for device in DEVICES]),
    "all-gather": (PARTS, [[_own(part, part) for part in DEVICES] for _ in DEVICES]),
    "all-to-all": (WHOLE, [[_own(part, device) for part in DEVICES] for device in DEVICES]),
    "permute": (
        PARTS,
        [[_own(part, part) if part == (device - 1) % 4 else None for part in DEVICES] for device in DEVICES],
    ),
}
"""What each device holds before and after: a column of parts for each device."""


def picture(name: str) -> str:
    """The SVG of a collective."""
    width, height = LEFT + 4 * (CELL + GAP), TOP + 4 * CELL + 8
    before, after = COLLECTIVES[name]
    parts = [*_columns(before, 0), *_columns(after, width + 40)]
    arrow = f'<text x="{width + 12}" y="{TOP + 2 * CELL + 6}" font-size="20">→</text>'
    title = f"<title>{name}: what four devices hold before and after</title>"
    size = f'viewBox="0 0 {2 * width + 40} {height}" width="{2 * width + 40}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    return "\n".join([head, title, '<rect width="100%" height="100%" fill="#ffffff"/>', *parts, arrow, "</svg>"]) + "\n"


def _columns(held: Sequence[Sequence[Cell]], left: int) -> Iterator[str]:
    yield f'<text x="{left + 4}" y="14">device</text>'
    for device, parts in enumerate(held):
        x = left + LEFT + device * (CELL + GAP)
        yield f'<text x="{x + CELL / 2}" y="14" text-anchor="middle">{device}</text>'
        for row, cell in enumerate(parts):
            y = TOP + row * CELL
            label, colour = cell or ("", "none")
            yield f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="{colour}" stroke="#bbbbbb"/>'
            yield from (
                [f'<text x="{x + CELL / 2}" y="{y + 17}" fill="#ffffff" text-anchor="middle">{label}</text>']
                if cell
                else ()
            )


if __name__ == "__main__":
    for collective in COLLECTIVES:
        (FOLDER / f"{collective}.svg").write_text(picture(collective))
