"""docs/reference/commands.md, made from the parsers of all commands.

python docs/reference/commands.py
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.cli.commands import SECTIONS
from benchmarks.cli.options import MODEL_KEYS
from benchmarks.cli.parser import Option, sentence

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "commands.md"
INTRODUCTION = """# Commands

All commands of `meshmark`, with their options. `meshmark COMMAND --help` prints the same. In a checkout that is not
installed, `python -m benchmarks COMMAND` is `meshmark COMMAND`. `meshmark measure` is `pytest benchmarks`, and takes
the options of pytest and pytest-benchmark, too.

This page is made by `python docs/reference/commands.py`.
"""


def page() -> str:
    """The whole page."""
    lines = [INTRODUCTION]
    for title, commands in SECTIONS.items():
        lines.append(f"## {sentence(title).rstrip('.')}")
        for name, command in commands.items():
            lines += [f"### {name}", sentence(command.summary), *table(command.all_options())]
    keys = (f"| `{key}` | {what} |" for key, what in MODEL_KEYS.items())
    lines += [
        "## Keys of --model",
        "Fields of `GPTConfig`. The default is the preset's.",
        "| key | meaning |",
        "|---|---|",
        *keys,
    ]
    return "\n\n".join(lines).replace("|\n\n|", "|\n|") + "\n"


def table(options: Iterable[Option]) -> Iterator[str]:
    """A row for each argument and option; nothing if there is none."""
    for number, option in enumerate(options):
        yield from () if number else ("| option | meaning |", "|---|---|")
        yield "| `{}` | {} |".format(*(text.replace("|", r"\|") for text in (spelled(option), meaning(option))))


def spelled(option: Option) -> str:
    """An option with its value, as one writes it."""
    several = {"list": ",...", "+": " ...", "*": " ..."}.get(option.many, "")
    return " ".join(filter(None, (option.name if option.name.startswith("-") else "", option.value + several)))


def meaning(option: Option) -> str:
    """What the help says of an option, without keys of models and paths; some options are passed on to `measure`."""
    text = option.help % {"default": option.default} if option.help else "as of [measure](#measure)"
    if option.name == "--model" and option.help:
        text = "change the preset by [keys](#keys-of---model), such as layers=2,embed=64"
    return text.replace(f"{ROOT}/", "").replace(str(Path.home()), "~")


if __name__ == "__main__":
    PAGE.write_text(page())
