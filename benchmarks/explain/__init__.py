"""Interpretation of a compiled program: against the formulas, against a chip's specifications, and advice."""
