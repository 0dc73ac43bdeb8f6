"""Benchmarks of training steps: cases, their measurement, and one record for each."""

import benchmarks.cli  # noqa: F401 (no traceback on Ctrl-C during imports)


def __getattr__(name: str) -> str:
    """The version, `__version__`, read from the installed package when it is asked for."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from benchmarks.cli.main import installed_version

    return installed_version()
