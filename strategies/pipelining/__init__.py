"""Pipeline parallelism: schedules of forward and backward passes, and their executor.

`schedules` orders each stage's operations, `timetable` assigns buffer slots to each tick, `executor` runs the ticks
inside a training step, and `split_backward` splits the backward pass into input and weight gradients for ZB-H1.
"""
