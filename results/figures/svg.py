"""A small SVG writer, so committed pictures do not depend on the versions of libraries."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree as Tree

from results.figures.palette import INK, PAPER

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def tint(colour: str, strength: float) -> str:
    """Mix a colour #rrggbb with white. Strength 1 is the colour, and 0 is white.

    >>> tint("#000000", 1), tint("#000000", 0)
    ('#000000', '#ffffff')
    """
    channels = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(255 - strength * (255 - channel)):02x}" for channel in channels)


class Drawing:
    """An SVG picture of fixed width. y grows downwards. The fill `url(#share)` hatches a shape.

    Attributes:
        width: width of the picture.
        y: upper edge of the next section; at the end, the height of the picture.
        root: the SVG element.
        into: the element to which new elements are added.
    """

    def __init__(self, width: float) -> None:
        self.width, self.y = width, 0.0
        self.root = Tree.Element("svg", xmlns="http://www.w3.org/2000/svg", role="img")
        self.into = self.root
        with self.group(
            "pattern", id="share", width=4, height=4, patternUnits="userSpaceOnUse", patternTransform="rotate(45)"
        ):
            self.rect(0, 0, 2.2, 4, PAPER)

    def add(self, name: str, text: str | None = None, **attributes: Any) -> Tree.Element:
        """Add an element and return it. Underscores in the names of attributes become hyphens."""
        element = Tree.SubElement(
            self.into, name, {key.replace("_", "-"): as_attribute(v) for key, v in attributes.items()}
        )
        element.text = text
        return element

    @contextmanager
    def group(self, name: str = "g", **attributes: Any) -> Iterator[None]:
        """Add an element; elements added in the context are its children. Children of a "g" inherit its attributes."""
        outer, self.into = self.into, self.add(name, **attributes)
        yield
        self.into = outer

    def rect(self, x: float, y: float, width: float, height: float, fill: str, **attributes: Any) -> None:
        """Add a rectangle whose upper left corner is at x and y."""
        self.add("rect", x=x, y=y, width=width, height=height, fill=fill, **attributes)

    def text(self, x: float, y: float, text: str, size: float = 11, fill: str = INK, **attributes: Any) -> None:
        """Add a line of text that starts at x, with its baseline at y. `text_anchor` changes what x refers to."""
        self.add("text", text, x=x, y=y, font_size=size, fill=fill, **attributes)

    def arrow(self, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
        """Add a line from `start` to `end` with an arrowhead at its end."""
        (x1, y1), (x2, y2) = start, end
        length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 1e-9)
        along, across = ((x2 - x1) / length, (y2 - y1) / length), (-(y2 - y1) / length, (x2 - x1) / length)
        back = x2 - 5 * along[0], y2 - 5 * along[1]
        corners = [(back[0] + side * across[0], back[1] + side * across[1]) for side in (2, -2)]
        self.add("line", x1=x1, y1=y1, x2=back[0], y2=back[1], stroke=colour)
        points = " ".join(f"{as_attribute(x)},{as_attribute(y)}" for x, y in [(x2, y2), *corners])
        self.add("polygon", points=points, fill=colour)

    def finished(self, title: str, shown: float = 1.0) -> str:
        """Return the picture as the text of an SVG file.

        Args:
            title: description for screen readers.
            shown: factor by which the picture is enlarged where there is room.
        """
        width, height = self.width, self.y
        size = {
            "width": as_attribute(width * shown),
            "height": as_attribute(height * shown),
            "viewBox": f"0 0 {width:g} {height:g}",
        }
        self.root.attrib |= size | {"font-family": FONT}
        name, paper = Tree.Element("title"), Tree.Element("rect", width="100%", height="100%", rx="8", fill=PAPER)
        name.text = title
        self.root[:0] = [name, paper]
        Tree.indent(self.root, "")
        return Tree.tostring(self.root, "unicode") + "\n"


def as_attribute(value: object) -> str:
    """Return a number with at most one digit after the decimal point, and anything else unchanged, as text.

    >>> as_attribute(2.0), as_attribute(1.25), as_attribute("x")
    ('2', '1.2', 'x')
    """
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, int | float) else str(value)
