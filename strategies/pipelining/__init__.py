"""Pipelines: the orders of forward and backward passes, and what executes them.

`schedules` orders the work of each stage, `timetable` says which slots each tick reads and writes, `executor` runs
the ticks inside a step, and `split_backward` makes two backward passes of one, as ZB-H1 needs them.
"""
