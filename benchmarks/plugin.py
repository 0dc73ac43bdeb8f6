"""Pytest plugin for `pytest --pyargs benchmarks` outside of a checkout: replaces the package name by its folder.

Pytest loads the conftest.py of folders early enough for their options, but not that of package names. Other runs of
pytest, in any environment in which this project is installed, are unaffected: nothing is imported and no option is
declared.
"""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Replace the package's name by its folder among the arguments."""
    namespace = early_config.known_args_namespace
    if namespace.pyargs and not (early_config.invocation_params.dir / HERE.name).exists():
        namespace.file_or_dir[:] = map(located, namespace.file_or_dir)
        args[:] = map(located, args)


def located(argument: str) -> str:
    """The folder of this package, or the file of its test module, for their names; other arguments unchanged.

    >>> Path(located("benchmarks")) == HERE, located("benchmarks_of_others"), located("--strategy=data")
    (True, 'benchmarks_of_others', '--strategy=data')
    """
    name, colons, rest = argument.partition("::")
    if name not in (HERE.name, f"{HERE.name}.test_step"):
        return argument
    return f"{HERE if name == HERE.name else HERE / 'test_step.py'}{colons}{rest}"
