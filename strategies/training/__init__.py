"""The training step, built from the layout and the implementation of a strategy, and parts that strategies share.

Start at `train_step.assemble`.
"""
