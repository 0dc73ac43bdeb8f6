"""docs/reference/commands.md, which is made from the table of commands."""

from benchmarks.cli.reference import PAGE, page


def test_the_page_is_what_is_made_of_the_table() -> None:
    """To regenerate it: `python -m benchmarks.cli.reference`."""
    assert PAGE.read_text() == page()
