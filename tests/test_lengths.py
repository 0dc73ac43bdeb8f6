"""Files and functions are short enough to read in one sitting."""

import ast
import statistics
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = "strategies", "benchmarks", "results"
FILES = {
    str(path.relative_to(ROOT)): path.read_text()
    for folder in (*PACKAGES, "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
}


def function_lines(source: str) -> dict[str, int]:
    """The lines of each function and method, nested ones too: from `def` to the end, docstrings in, decorators out."""
    nodes = (each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    return {f"{each.name}:{each.lineno}": (each.end_lineno or each.lineno) - each.lineno + 1 for each in nodes}


def test_no_file_is_long() -> None:
    """No Python file of the packages and the tests has more than 300 lines."""
    lines = {path: len(source.splitlines()) for path, source in FILES.items()}
    assert {path: count for path, count in lines.items() if count > 300} == {}


def test_no_function_is_long() -> None:
    """No function of the packages and the tests has more than 60 lines."""
    lines = {f"{path}:{name}": n for path, source in FILES.items() for name, n in function_lines(source).items()}
    assert {name: count for name, count in lines.items() if count > 60} == {}


def test_the_median_function_is_short() -> None:
    """The median of all functions and methods of the three packages has at most 10 lines; tests do not count."""
    ours = [source for path, source in FILES.items() if path.startswith(PACKAGES)]
    lines = [count for source in ours for count in function_lines(source).values()]
    assert len(lines) > 1000
    assert statistics.median(lines) <= 10
