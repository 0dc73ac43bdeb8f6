"""Fixtures for tests of the exact gate."""

from pathlib import Path
from typing import Any

import pytest

from results.gates.counters import read_snapshot
from results.gates.exact import compare, rule
from results.gates.verdict import Report
from tests.results.gates.changed_rows import Rows
from tests.results.synthetic import write_run


@pytest.fixture
def judge(tmp_path: Path):
    """Compare two lists of rows through files; `machine` replaces facts of HEAD's machine."""

    def judge(base: Rows, head: Rows, *allow: str, **machine: Any) -> Report:
        before = read_snapshot(write_run(tmp_path / "base.json", base))
        after = read_snapshot(write_run(tmp_path / "head.json", head, **machine))
        return compare(before, after, dict(rule(*text.rsplit("=", 1)) for text in allow))

    return judge
