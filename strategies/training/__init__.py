"""What turns a strategy's decisions into a training step, and what several strategies share in doing so.

Start at `train_step.assemble`.
"""
