"""The training step that is built from a strategy's decisions, and what several strategies share in it.

Start at `train_step.assemble`.
"""
