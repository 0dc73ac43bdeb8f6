"""One simulator: events of formulas or of a compiled program, a machine that prices them, and queues that run them.

Start at `step.predict_seconds`, which simulates what formulas list of a step (layer.py), or at `program.replay`, which
simulates a compiled one. Both run events on the queues of a device, its links and its host (queues.py).
"""
