"""Pipeline parallelism: schedules of forward and backward passes, and their executor.

`orders` has each stage's operations in order, `schedules` their ticks, and `timetable` the buffer slots of each tick.
`executor` runs the ticks inside a training step, and `split_backward` splits the backward pass into input and weight
gradients.
"""
