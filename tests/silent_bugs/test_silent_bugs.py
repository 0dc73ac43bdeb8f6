"""The check finds every bug of the museum, and nothing where none is planted."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from strategies.checking import Mismatch, check, check_step
from tests.processes import ROOT
from tests.silent_bugs import BUGS, KINDS
from tests.silent_bugs.museum import Bug
from tests.silent_bugs.page import SEEN, page, summary
from tests.strategies.checking.shared_runs import shared_runs

DAILY = [bug for kind in KINDS for bug in kind.BUGS[:3]]
"""Three bugs of each kind. The others take two minutes more, and run with `-m factorisations`."""
CASES = {bug.case: bug for bug in BUGS}
DAILY_CASES = {bug.strategy: bug.case for bug in DAILY}.values()
"""A case of each strategy."""


def _daily(params: Any, daily: Any) -> list[Any]:
    return [pytest.param(each, marks=[] if each in daily else pytest.mark.factorisations) for each in params]


@pytest.fixture(scope="module", autouse=True)
def _shared() -> Iterator[None]:
    with shared_runs():
        yield


@pytest.mark.parametrize("bug", _daily(BUGS, DAILY), ids=str)
def test_the_check_finds_it(bug: Bug) -> None:
    """A step with the bug is told from one device, and the message names what is wrong."""
    with pytest.raises(Mismatch, match=bug.named):
        check_step(bug.step())


@pytest.mark.factorisations
@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_the_check_finds_it_in_bfloat16(bug: Bug) -> None:
    """By the float32 step of the same strategy, where bfloat16 hides it."""
    step = bug.step(dtype="bfloat16")
    with pytest.raises(Mismatch):
        check(bug.planted(), step.config, bug.mesh, step.train, [*step.mesh.devices.flat])


@pytest.mark.parametrize("case", _daily(CASES, DAILY_CASES), ids=str)
def test_the_case_is_sound_without_it(case: tuple[Any, ...]) -> None:
    """Where no bug is planted the check raises nothing."""
    check_step(CASES[case].step(sound=True))


@pytest.mark.factorisations
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_case_is_sound_in_bfloat16(case: tuple[Any, ...]) -> None:
    """Nor in bfloat16, where its rounding is larger."""
    check_step(CASES[case].step(sound=True, dtype="bfloat16"))


def test_the_page_has_every_bug() -> None:
    """docs/reference/silent-bugs.md is what `python -m tests.silent_bugs.page` prints."""
    assert (ROOT / "docs" / "reference" / "silent-bugs.md").read_text() == page()


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_the_line_of_the_page_names_what_is_wrong(bug: Bug) -> None:
    """The line of the check that was seen holds to the pattern that the test of the bug demands."""
    assert re.search(bug.named, SEEN[bug.name]["line"])


def test_the_guide_has_what_loss_curves_show() -> None:
    """Its table is that of the page's numbers."""
    assert summary() in (ROOT / "docs" / "guides" / "check.md").read_text()
