"""The parser of all commands, and the options that it reads. It reports what it cannot parse in one line."""

import argparse
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, TypeVar

from benchmarks.cli.ending import run
from benchmarks.cli.statuses import WRONG_USAGE
from strategies.names import unknown

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """A parser that names what is wrong and `--help`, without lines of usage before it."""

    hint = ""
    """What the message says of options that are unknown or missing."""

    def error(self, message: str) -> NoReturn:
        """End the command with 2."""
        hint = f"; {self.hint}" if self.hint and message.startswith(("unrecognized", "the following")) else ""
        self.exit(WRONG_USAGE, f"{self.prog}: {message}{hint}; see --help")

    def print_help(self, file: Any = None) -> None:
        """Print the help, and end the command: with 141 or 5 if stdout takes nothing."""
        run(lambda: print(self.format_help(), end="", file=file))

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End the command, with one line on stderr if there is a message."""
        super().exit(status, f"{one_line(message)}\n" if message else None)


class Option(NamedTuple):
    """An option, or an argument without a name of its own.

    Attributes:
        name: as it is written, such as "--mesh"; that of an argument has no hyphens.
        read: the parser of a value; None of a switch.
        value: stands for a value in the help.
        many: "list" of comma-separated values, "repeat" for an option that can be given several times, "pass" for one
            that is kept as it was written, or a number of values as argparse writes it.
    """

    name: str
    help: str | None
    read: Callable[[str], Any] | None = None
    value: str = ""
    default: Any = None
    many: str = ""
    required: bool = False

    def one(self, **changes: Any) -> "Option":
        """The option where it takes one value, with other attributes changed."""
        return self._replace(many="", **changes)

    def declare(self, add: Callable[..., Any]) -> None:
        """Add it by argparse's or pytest's method to add an option."""
        kinds: dict[str, dict[str, Any]] = {
            "": {"default": self.default},
            "list": {"action": "extend", "default": [], "metavar": f"{self.value},..."},
            "repeat": {"action": "append", "default": []},
            "pass": {"action": PassOn, "default": [], "dest": "selection", "nargs": None if self.value else 0},
            "?": {"nargs": "?", "const": "-"},
        }
        if self.read is None and self.many != "pass":
            return add(self.name, action="store_true", help=self.help)
        read = commas(self.read) if self.read and self.many == "list" else self.read
        attributes = {"type": read, "metavar": self.value, "help": self.help}
        attributes |= kinds.get(self.many, {"nargs": self.many})
        add(self.name, **attributes | ({"required": True} if self.required else {}))


def option(
    written: str, help: str, read: Callable[[str], Any] | None = None, default: Any = None, **others: Any
) -> Option:
    """An option as it is written: "--mesh MESH", "--devices N,..." for a list, "--tokenizer bytes|chars" for names.

    An argument has a name without hyphens, as in "runs RUN.json". `others` are further attributes.
    """
    name, _, value = written.partition(" ")
    many = others.pop("many", "list" if value.endswith(",...") else "")
    if "|" in value:
        read = one_of(name.strip("-"), value.split("|"))
    value = value.removesuffix(",...") if many == "list" else value
    return Option(name, help, read, value, default, many, **others)


class Group:
    """Options that belong together, with a title over them in a help."""

    def __init__(self, title: str, *options: Option) -> None:
        self.title, self.options = title, options

    def __getitem__(self, name: str) -> Option:
        """The option of this name."""
        return next(option for option in self.options if option.name == name)

    def declare(self, add: Callable[..., Any]) -> None:
        """Add its options by argparse's or pytest's method to add an option."""
        for option in self.options:
            option.declare(add)


class Command:
    """A command of `meshmark`: its purpose in a line, and the module whose function `main` runs it with its options.

    `instead` has modules that run it in place of that one, by the options that select them. `defaults` are values of
    the parsed options that have no option.
    """

    def __init__(
        self,
        summary: str,
        module: str,
        *options: Group | Option,
        epilog: str | None = None,
        instead: Mapping[str, str] = MappingProxyType({}),
        hint: str = "",
        **defaults: Any,
    ) -> None:
        self.summary, self.module, self.options, self.epilog, self.defaults = summary, module, options, epilog, defaults
        self.instead, self.hint = instead, hint

    def all_options(self) -> list[Option]:
        """Its options, with those of its groups."""
        groups = (part.options if isinstance(part, Group) else (part,) for part in self.options)
        return [option for group in groups for option in group]

    def parser(self, name: str) -> Parser:
        """Return its parser; `name` is that of the command in messages."""
        form = argparse.RawDescriptionHelpFormatter
        parser = Parser(name, description=sentence(self.summary), epilog=self.epilog, formatter_class=form)
        for part in self.options:
            group = parser.add_argument_group(part.title) if isinstance(part, Group) else parser
            part.declare(group.add_argument)
        parser.set_defaults(**self.defaults)
        parser.hint = self.hint
        return parser


class PassOn(argparse.Action):
    """Collects options verbatim, to pass them on to other processes."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        """Append the option, with its value if it has one."""
        written = f"{option_string}={values}" if values else option_string
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), written])


def passed_on(groups: Iterable[Group]) -> Iterable[Option]:
    """The options of groups for a command that passes them on to others, which read them."""
    for option in (option for group in groups for option in group.options):
        yield Option(option.name, None, value="..." if option.read else "", many="pass")


def one_of(noun: str, names: Collection[str]) -> Callable[[str], str]:
    """A parser of one of several names."""

    def parse(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(unknown(text, noun, names))
        return text

    return parse


def commas(read: Callable[[str], T]) -> Callable[[str], list[T]]:
    """A parser of comma-separated lists.

    >>> commas(int)("8,16")
    [8, 16]
    """

    @wraps(read)
    def read_all(text: str) -> Any:
        return [read(part) for part in text.split(",")]

    return read_all


def sentence(text: str) -> str:
    """Return a sentence with a capital and a full stop.

    >>> sentence("judge a change")
    'Judge a change.'
    """
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def one_line(text: str) -> str:
    """Convert any text to one line of printable characters.

    >>> one_line("out of memory\\n\\x1b[31m12 GiB")
    'out of memory \ufffd[31m12 GiB'
    """
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in " ".join(text.split()))
