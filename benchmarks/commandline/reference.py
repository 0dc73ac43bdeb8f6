"""docs/reference/commands.md, made from the parsers of all commands.

python -m benchmarks.commandline.reference
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from benchmarks.commandline.main import COMMANDS, Command

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "commands.md"
INTRODUCTION = """# Commands

All commands of `meshmark`, with their options. `meshmark COMMAND --help` prints the same. In a checkout that is not
installed, `python -m benchmarks COMMAND` is `meshmark COMMAND`. `meshmark measure` is `pytest benchmarks`, and takes
the options of pytest and pytest-benchmark, too.

This page is made by `python -m benchmarks.commandline.reference`.
"""


def parser_of(command: Command, *subcommand: str) -> argparse.ArgumentParser:
    """The parser of a command, or of a subcommand of it."""
    parser = command.make_parser(*subcommand)
    for name in subcommand if not command.parser else ():
        parser = subparsers(parser)[name]
    return parser


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of its subcommands, by name."""
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: each for action in found for name, each in action.choices.items()}


def page() -> str:
    """The whole page."""
    lines = [INTRODUCTION]
    for name, command in COMMANDS.items():
        parser = parser_of(command)
        lines += [f"## {name}", sentence(command.summary), *table(parser)]
        for subcommand, each in subparsers(parser).items():
            lines += [
                f"### {name} {subcommand}",
                sentence(each.description or ""),
                *table(parser_of(command, subcommand)),
            ]
    return "\n\n".join(lines).replace("|\n\n|", "|\n|") + "\n"


def sentence(text: str) -> str:
    """A text that begins with a capital and ends with a full stop.

    >>> sentence("judge a change")
    'Judge a change.'
    """
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def table(parser: argparse.ArgumentParser) -> Iterator[str]:
    """A row for each argument and option; nothing if there is none."""
    hidden = argparse._HelpAction, argparse._SubParsersAction
    actions = [each for each in parser._actions if not isinstance(each, hidden) and each.help != argparse.SUPPRESS]
    if actions:
        yield from ("| option | meaning |", "|---|---|")
    for action in actions:
        yield "| `{}` | {} |".format(*(text.replace("|", r"\|") for text in (spelled(action), cell(parser, action))))


def spelled(action: argparse.Action) -> str:
    """An option with its value, as one writes it.

    >>> parser = argparse.ArgumentParser()
    >>> spelled(parser.add_argument("--format", choices=("csv", "markdown")))
    '--format csv|markdown'
    >>> spelled(parser.add_argument("runs", nargs="+", metavar="RUN.json"))
    'RUN.json ...'
    """
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    value = "" if action.nargs == 0 else f"{value} ..." if action.nargs in ("+", "*") else str(value)
    return " ".join(filter(None, (action.option_strings[-1] if action.option_strings else "", value)))


def cell(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """What the help says of an option, without paths of this machine.

    An option without help is passed on to `measure`.
    """
    text = parser._get_formatter()._expand_help(action) if action.help else "as of [measure](#measure)"
    return text.replace(f"{ROOT}/", "").replace(str(Path.home()), "~")


if __name__ == "__main__":
    PAGE.write_text(page())
