"""Pipeline parallelism: schedules of forward and backward passes, and their executor.

`schedules` orders the operations of each stage, `timetable` says which slots each tick reads and writes, `executor`
runs the ticks inside a training step, and `split_backward` splits the backward pass into that for inputs and that for
weights, as ZB-H1 needs it.
"""
