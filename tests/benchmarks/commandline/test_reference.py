"""docs/reference/commands.md, which is made from the parsers."""

from benchmarks.commandline.main import COMMANDS
from benchmarks.commandline.reference import PAGE, page, parser_of, subparsers


def test_the_page_is_what_is_made_of_the_parsers() -> None:
    """To regenerate it: `python -m benchmarks.commandline.reference`."""
    assert PAGE.read_text() == page()


def test_options_of_a_subcommand_are_there() -> None:
    """Also those that a command declares only when it is asked for the subcommand."""
    options = {
        option for action in parser_of(COMMANDS["regress"], "paired")._actions for option in action.option_strings
    }
    assert {"--launches", "--minimum-effect", "--junit"} <= options
    assert {"exact", "paired"} == {*subparsers(parser_of(COMMANDS["regress"]))}
