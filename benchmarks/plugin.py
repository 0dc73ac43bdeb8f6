"""`pytest --pyargs benchmarks`, away from a checkout: the folder takes the place of the name before options are read.

Pytest loads the conftest.py of folders, not of names, in time for its options. All other runs of pytest, of any project
that is installed beside this one, are left as they are: nothing is imported and no option is declared.
"""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Name the folder, where the package is named."""
    known = early_config.known_args_namespace
    if known.pyargs and not (early_config.invocation_params.dir / HERE.name).exists():
        known.file_or_dir[:] = map(located, known.file_or_dir)
        args[:] = map(located, args)


def located(argument: str) -> str:
    """The folder of this package, or the file of a module of it; anything else as it is.

    >>> Path(located("benchmarks")) == HERE, located("benchmarks_of_others"), located("--strategy=data")
    (True, 'benchmarks_of_others', '--strategy=data')
    """
    name, colons, rest = argument.partition("::")
    if name not in (HERE.name, f"{HERE.name}.test_step"):
        return argument
    return f"{HERE if name == HERE.name else HERE / 'test_step.py'}{colons}{rest}"
