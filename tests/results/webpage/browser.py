"""Chromium, driven by Playwright, for the tests of pages."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.extras import CHROMIUM

ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
LIMIT_MILLISECONDS = 300_000
"""Time limit of the browser. A page takes a second, but much longer on a machine with thirty busy processes."""


@contextmanager
def browser() -> Iterator[Any]:
    """Yield Chromium, as a browser of Playwright's sync API."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=LIMIT_MILLISECONDS)


class Opened:
    """A page in its own window, with a log of what it printed and requested.

    Attributes:
        tab: the page, as in Playwright's sync API.
        said: console messages and uncaught errors.
        asked: URLs that the page requested, itself included.
    """

    def __init__(self, chromium: Any, path: Path, width: int = 1400, theme: str = "light") -> None:
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        context.set_default_timeout(LIMIT_MILLISECONDS)
        self.tab = context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.tab.on("console", lambda message: self.said.append(message.text))
        self.tab.on("pageerror", lambda error: self.said.append(str(error)))
        self.tab.on("request", lambda request: self.asked.append(request.url))
        self.tab.goto(path.as_uri())

    def draw_all(self) -> None:
        """Scroll to every chart, and wait until each is drawn or replaced by a sentence."""
        for figure in self.tab.locator("figure").all():
            figure.scroll_into_view_if_needed()
            figure.locator(".chart > svg, .chart.empty").first.wait_for()

    def texts(self, selector: str) -> list[str]:
        """Return the texts of the elements that match a selector, in document order."""
        return self.tab.locator(selector).all_inner_texts()

    def close(self) -> None:
        """Close the window."""
        self.tab.context.close()
