"""Shared by the commands of all packages: exit codes, output files and tables of text.

Importing this package uses the standard library alone, because every command imports it before anything else.
"""

from benchmarks.commandline.ending import quiet_while_importing
from benchmarks.commandline.parent import end_with_parent

end_with_parent()
quiet_while_importing()
