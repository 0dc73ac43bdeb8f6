"""Examples in README and docs/: a command of `meshmark`, indented and behind `$`, and the lines that it prints."""

import re
import textwrap
from typing import NamedTuple


class Example(NamedTuple):
    """A command, its arguments, and what is shown below it, as they stand on the page but without the indentation."""

    command: str
    arguments: list[str]
    shown: str


def examples(page: str, *commands: str) -> list[Example]:
    """All examples of these commands in a page, in order. A command may continue in other lines, behind a backslash."""
    pattern = rf"^    \$ meshmark ({'|'.join(commands)}) ((?:.*\\\n)*.*)\n((?:    .*\n|\n(?=    ))+)"
    return [
        Example(command, arguments.replace("\\\n", " ").split(), textwrap.dedent(shown).strip("\n"))
        for command, arguments, shown in re.findall(pattern, page, re.MULTILINE)
    ]
