"""One simulator: events of formulas or of a compiled program, a machine that prices them, and the queues that run them.

`queues.simulate` runs events. `program.replay` makes them of a compiled step.
"""
