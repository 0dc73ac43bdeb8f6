"""Compilation, correctness checks and timing of steps, and the attribution of their time."""
