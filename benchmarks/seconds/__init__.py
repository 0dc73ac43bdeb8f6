"""Predicted seconds of a step: kernels, collectives, what overlaps, and the pipeline's table run pass by pass.

Start at `predicted.predict_seconds`. The formulas of strategies/costs say what a step computes, sends and holds; a
`Machine` says how fast a kind of device does each of these under one software stack.
"""
