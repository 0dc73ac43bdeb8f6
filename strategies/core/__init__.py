"""Axes (`axis`), what follows from a list of axes (`placement`, `plan`, `traffic`), and the training step.

Start at `axis.Axis`, then `plan.Plan` and `train_step.assemble`.
"""
