"""The commands: their table, their options, and what they share: how they start and end, output files, tables of text.

It needs no JAX, because every command imports it before anything else.
"""

from benchmarks.cli.parent import end_with_parent
from benchmarks.cli.starting import quiet_while_importing

end_with_parent()
quiet_while_importing()
