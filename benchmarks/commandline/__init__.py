"""How the commands of all packages end and write their files. Standard library only: it is imported before all else."""

from benchmarks.commandline.ending import quiet_while_importing

quiet_while_importing()
