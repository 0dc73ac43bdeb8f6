"""Tests of the page in a browser: console, network, sorting, filters, hovering, printing and accessibility."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands import command
from tests.results.documents import GIB
from tests.results.documents import candidate as searched
from tests.results.documents import search as document
from tests.results.synthetic import edited, failed, row, sweep, write_run
from tests.results.webpage.browser import Opened, browser
from tests.strategies.sampling import nightly

main = command("page")

pytestmark = pytest.mark.chromium
EVIL = "</script><script>window.broken = true</script><img src=x onerror='window.broken = true'>"
WIDTHS = 390, 1400
OVERLAPPING = """
([container, selector]) => [...document.querySelectorAll(container)].flatMap(whole => {
  const there = [...whole.querySelectorAll(selector)].filter(each => each.getBoundingClientRect().width);
  const overlap = (a, b) => {
    const [p, q] = [a.getBoundingClientRect(), b.getBoundingClientRect()];
    const across = Math.min(p.right, q.right) - Math.max(p.left, q.left);
    return across > 1 && Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 2;
  };
  const pairs = there.flatMap((each, place) => there.slice(place + 1).map(other => [each, other]));
  return pairs.filter(pair => overlap(...pair)).map(pair => pair.map(each => each.textContent.slice(0, 40)));
})
"""
"""Script that returns the pairs of elements in a container that overlap, by their texts."""
CHART_TEXTS = ".chart svg text"
BLOCKS = ".words, form, figure > *, .table, dl.machine"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The browser, started once per module."""
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two runs and a search. One case is infeasible, and one has markup as the name of its mesh."""
    folder = tmp_path_factory.mktemp("page")
    evil = edited(row("data", "data=2"), {"mesh": EVIL, "preset": EVIL, "reason": EVIL})
    run = write_run(folder / "run.json", [*sweep(), failed("infeasible", "pipeline", "pipeline=16")], node=EVIL)
    other = write_run(folder / "other.json", [evil])
    main([str(run), str(other), str(search(folder)), f"--out={folder / 'page.html'}"])
    return folder / "page.html"


@pytest.fixture
def opened(chromium: Any, page: Path) -> Iterator[Opened]:
    """The page, opened in a wide window."""
    window = Opened(chromium, page)
    yield window
    window.close()


def search(folder: Path) -> Path:
    """Write the result of a search with 199 candidates. Four of them, close together in the chart, were compiled."""
    candidates = [candidate(number) for number in range(1, 200)]
    (folder / "found.json").write_text(json.dumps(document(*candidates)))
    return folder / "found.json"


def candidate(rank: int) -> dict[str, Any]:
    """Return the candidate of a rank, with its prediction. The first four ranks also have compiled values."""
    strategy, needed, seconds = ("fsdp", "tensor")[rank % 2], 2 + rank * 7 % 17, 1 + rank / 100
    compiled = {"compiled.needed_bytes": (needed + 1) * GIB, "compiled.seconds": seconds + 0.1} if rank < 5 else {}
    mesh = f"data={rank},{strategy}=4"
    return searched(strategy, needed, seconds, **{"rank": rank, "mesh": mesh, **compiled})


@pytest.mark.parametrize("width", WIDTHS)
def test_it_opens_quietly_and_asks_for_nothing(chromium: Any, page: Path, width: int) -> None:
    """The page prints nothing to the console, requests only itself, does not scroll sideways, and nothing overlaps."""
    window = Opened(chromium, page, width)
    window.draw_all()
    assert window.said == []
    assert window.asked == [page.as_uri()]
    assert window.tab.evaluate("document.documentElement.scrollWidth") == width
    assert window.tab.evaluate(OVERLAPPING, ["figure", CHART_TEXTS]) == []
    assert window.tab.evaluate(OVERLAPPING, ["main", BLOCKS]) == []
    window.close()


def test_it_never_scrolls_sideways(chromium: Any, page: Path) -> None:
    """At no width from a telephone's to a wide screen's, also where controls wrap."""
    window = Opened(chromium, page, 360)
    window.draw_all()
    wider = []
    for width in (*range(360, 640, 5), *range(640, 1601, 40)):
        window.tab.set_viewport_size({"width": width, "height": 900})
        window.tab.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        wider += [width] * (window.tab.evaluate("document.documentElement.scrollWidth") > width)
    assert wider == []
    window.close()


def test_the_caption_names_what_is_drawn(chromium: Any, tmp_path: Path) -> None:
    """The dashed line of the ideal is there with `single`, and without it neither the line nor its words are."""
    runs = {"with": [row(), row("data", "data=2")], "without": [row("data", "data=2", relative_to_single=None)]}
    for name, rows in runs.items():
        main([str(write_run(tmp_path / f"{name}.json", rows))])
        window = Opened(chromium, tmp_path / f"{name}.html")
        window.draw_all()
        dashed = window.tab.locator("[data-chart=curves] [stroke-dasharray='5 4']").count()
        assert ("dashed line" in window.texts("[data-chart=curves] figcaption")[0]) == bool(dashed) == (name == "with")
        window.close()


@pytest.mark.parametrize(("width", "theme"), [(390, "dark"), (1400, "light"), *nightly((390, "light"), (1400, "dark"))])
def test_axe_finds_nothing(chromium: Any, page: Path, width: int, theme: str) -> None:
    """axe finds no accessibility violation in the page or in the facts of a case: names, roles, keyboard, contrast."""
    from axe_playwright_python.sync_playwright import Axe

    window = Opened(chromium, page, width, theme)
    window.draw_all()
    found = Axe().run(window.tab)
    window.tab.locator("section.run tbody button").first.click()
    facts = Axe().run(window.tab)
    assert found.violations_count == 0, found.generate_report()
    assert facts.violations_count == 0, facts.generate_report()
    window.close()


def test_a_name_ends_no_script(opened: Opened) -> None:
    """Names of meshes, models and hosts in a file are shown as text, and markup in them is never executed."""
    opened.draw_all()
    assert opened.tab.evaluate("window.broken") is None
    select = opened.tab.locator("select[name=workload]")
    select.select_option("1")
    assert opened.texts("section.run tbody td:nth-of-type(1)") == [EVIL]
    opened.tab.locator("section.run tbody button").click()
    assert EVIL in opened.tab.locator("#facts h2").inner_text()
    assert EVIL in opened.tab.locator("dl.machine").inner_text()
    assert opened.tab.evaluate("window.broken") is None
    assert opened.said == []


def test_it_sorts_by_any_column(opened: Opened) -> None:
    """The table sorts both ways by mouse and keyboard. The header states the order, and unknown values come last."""
    header = opened.tab.locator("section.run thead th", has_text="Tokens/s")
    place = opened.texts("section.run thead th").index(header.inner_text())

    def speeds() -> list[float]:
        texts = opened.texts(f"section.run tbody tr > :nth-child({place + 1})")
        return [float(text.split()[0].replace(",", "")) if text else -1 for text in texts]

    header.locator("button").click()
    down = speeds()
    assert header.get_attribute("aria-sort") == "descending"
    assert down == sorted(down, reverse=True)
    assert down[-1] == -1
    opened.tab.keyboard.press("Enter")
    up = speeds()
    assert header.get_attribute("aria-sort") == "ascending"
    assert up == [*sorted(down[:-1]), -1]


def test_one_filter_narrows_table_and_charts(opened: Opened) -> None:
    """Filters by strategy, batch and words apply to the table and the charts, count the rows, and can be reset."""
    opened.draw_all()
    everything = len(opened.texts("section.run tbody tr"))
    opened.tab.get_by_label("fsdp", exact=True).uncheck(force=True)
    assert "fsdp" not in opened.texts("section.run tbody th")
    opened.tab.locator("select[name=batch]").select_option("8")
    opened.tab.get_by_label("Mesh or options", exact=True).fill("tensor=2 data=2")
    assert opened.texts("section.run tbody td:nth-of-type(1)") == ["data=2,tensor=2", "data=2,pipeline=2,tensor=2"]
    assert opened.texts("section.run .count")[0].startswith("2 of ")
    bars = opened.tab.locator("[data-chart=memory] .ytick")
    bars.nth(2).wait_for(state="detached")
    assert bars.count() == 2
    opened.tab.get_by_role("button", name="Show all", exact=True).click()
    opened.tab.locator("section.run tbody tr").nth(everything - 1).wait_for()
    assert len(opened.texts("section.run tbody tr")) == everything


@pytest.mark.parametrize("across", ["by devices", "by batch", "by memory"])
def test_a_point_names_its_case(opened: Opened, across: str) -> None:
    """A point under the mouse shows its strategy, mesh and interval of throughput, whatever the x axis is."""
    opened.tab.get_by_text(across, exact=True).click()
    opened.draw_all()
    point = opened.tab.locator("[data-chart=curves] .mark").first
    point.scroll_into_view_if_needed()
    point.hover(force=True)
    tip = opened.tab.locator("[data-chart=curves] .tip")
    assert tip.is_visible()
    assert "=" in tip.inner_text()
    assert "tokens/s (95%: " in tip.inner_text()
    opened.tab.mouse.move(0, 0)
    assert tip.is_hidden()
    point.click(force=True)
    assert opened.tab.locator("#facts").is_visible()


def test_a_press_opens_the_facts(opened: Opened) -> None:
    """Pressing a name shows the facts of its case and compiled program. Escape closes them and restores the focus."""
    name = opened.tab.locator("section.run tbody button", has_text="fsdp").first
    name.focus()
    opened.tab.keyboard.press("Enter")
    facts = opened.tab.locator("#facts")
    assert facts.is_visible()
    text = facts.inner_text()
    assert "The compiled program" in text
    assert "sent_bytes.all_gather.fsdp\n40.0 MiB (41,943,040 bytes)" in text
    opened.tab.keyboard.press("Escape")
    assert facts.is_hidden()
    assert name.evaluate("button => button === document.activeElement")


def test_it_prints(opened: Opened) -> None:
    """The page prints on white, with its charts and without controls."""
    opened.tab.emulate_media(media="print", color_scheme="dark")
    for name in ("time", "search", "memory"):
        opened.tab.locator(f"[data-chart={name}] .chart > svg[width='680']").wait_for()
    assert opened.tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not opened.tab.locator("select:visible, input[type=search]:visible, form button:visible").count()
    assert opened.tab.pdf().startswith(b"%PDF")
    assert opened.said == []


def test_a_search_draws_each_candidate_with_its_times(chromium: Any, page: Path) -> None:
    """A line each, named by strategy and mesh, whatever the width; a tick, and filled marks of the compiled ones."""
    for width in WIDTHS:
        window = Opened(chromium, page, width)
        window.draw_all()
        chart = window.tab.locator("[data-chart=search] .chart")
        names = chart.locator(".ytick").all_text_contents()
        assert "tensor data=1,tensor=4" in names
        assert len(names) == len(window.texts("section.search tbody tr")) == 4
        assert chart.locator(".mark").count() == 4 + 4 + 4
        window.close()


def test_a_candidate_without_a_known_time_is_not_drawn(chromium: Any, tmp_path: Path) -> None:
    """It is in the table, and the caption counts it. Without any other there is no chart."""
    path = search(tmp_path)
    document = json.loads(path.read_text())
    for each in document["candidates"][:2]:
        each |= {name: None for name in each if name.endswith("seconds")}
    path.write_text(json.dumps(document))
    main([str(path)])
    window = Opened(chromium, path.with_suffix(".html"))
    window.draw_all()
    chart, caption = (window.tab.locator(f"[data-chart=search] {part}") for part in (".chart", "figcaption"))
    assert len(window.texts("tbody tr")) == 4
    assert chart.locator(".ytick").count() == 2
    assert "Not drawn: 2 without a known time." in caption.inner_text()
    assert not re.search("NaN|Infinity", chart.inner_html())
    window.tab.locator("form input").fill("data=1,")
    chart.get_by_text("No candidate with a known time is selected.").wait_for()
    assert window.said == []
    window.close()


def test_a_filter_redraws_the_charts_of_its_section(opened: Opened) -> None:
    """Charts of other sections stay as they are."""
    opened.draw_all()
    opened.tab.evaluate("document.querySelectorAll('.chart > svg').forEach(each => { each.drawnBefore = true; })")
    kept = "name => document.querySelector(`[data-chart=${name}] .chart > svg`).drawnBefore === true"
    opened.tab.locator("section.search form input").fill("data=1,")
    assert [opened.tab.evaluate(kept, name) for name in ("search", "memory", "time")] == [False, True, True]
    opened.tab.locator("section.run form input[name=text]").fill("data")
    assert [opened.tab.evaluate(kept, name) for name in ("memory", "time")] == [False, False]


def test_charts_are_as_wide_as_the_window(opened: Opened) -> None:
    """Also after it was resized."""
    opened.draw_all()
    picture = opened.tab.locator("[data-chart=curves] .chart > svg")
    before = picture.bounding_box()["width"]
    opened.tab.set_viewport_size({"width": 800, "height": 900})
    opened.tab.wait_for_function("before => document.querySelector('.chart > svg').clientWidth < before", arg=before)
    assert opened.tab.evaluate("document.documentElement.scrollWidth") == 800


@pytest.mark.factorisations
def test_a_thousand_cases_are_small(chromium: Any, tmp_path: Path) -> None:
    """A table of 1,000 cases shows 100 rows at first and all on request, and the page's data is below 1 MB."""
    cases = [row("fsdp", f"fsdp={1 + number % 8}", 8 * (1 + number)) for number in range(1000)]
    main([str(write_run(tmp_path / "run.json", cases))])
    window = Opened(chromium, tmp_path / "run.html")
    assert len(window.texts("tbody tr")) == 100
    window.tab.get_by_role("button", name="Show all 1,000 rows").click()
    assert window.tab.locator("tbody tr").count() == 1000
    assert window.tab.locator("#data").evaluate("data => data.textContent.length") < 1_000_000
    window.close()
