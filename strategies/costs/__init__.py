"""Cost model of a training step: FLOPs, bytes sent and bytes held, by formula, without a device or a compiler.

Start at `predict.predict`.
"""
