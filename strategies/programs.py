"""Refuse `python -m` of a module that is not a program, because it would do nothing and exit with 0."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAIN = '\nif __name__ == "__main__":'
"""Text that a module contains if it is a program."""


def require_program(*packages: str, commands: Callable[[str], list[str]] = lambda module: []) -> None:
    """End the process if `python -m` is about to run a module of this or the named packages that is not a program.

    `python -m` keeps "-m" in `sys.argv[0]` while it imports the module's package (CPython, Lib/runpy.py), so packages
    call this on import. `commands` maps the module to the commands that it runs, for the message.
    """
    if sys.argv[:1] != ["-m"]:
        return
    module = re.sub("^-[A-Za-z]*?m", "", sys.orig_argv[-len(sys.argv) :][0])  # `-m` and its module may be one argument
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    if module.partition(".")[0] not in packages or not path.is_file() or MAIN in path.read_text():
        return
    names = " or ".join(f"`meshmark {name}`" for name in commands(module))
    way_out = f"use {names}" if names else "`meshmark --help` lists the commands"
    print(f"python -m {module} is not a command; {way_out}", file=sys.stderr)
    sys.exit(2)
