"""The commands: their table, their options, and what they share: how they start and end, output files, tables of text.

It needs no JAX, because every command imports it before anything else.
"""

from benchmarks.cli.starting import end_with_parent, quiet_while_importing

end_with_parent()
quiet_while_importing()

from strategies.programs import require_program  # noqa: E402 (imported once Ctrl-C is quiet)


def commands_of(module: str) -> list[str]:
    """Names of the commands that a module runs.

    >>> commands_of("results.regress"), commands_of("results.plot"), commands_of("results.records.reading")
    (['regress exact', 'regress paired'], ['plot'], [])
    """
    from benchmarks.cli.commands import COMMANDS

    return [name for name, each in COMMANDS.items() if module in (each.module, *each.instead.values())]


require_program("benchmarks", "results", commands=commands_of)
