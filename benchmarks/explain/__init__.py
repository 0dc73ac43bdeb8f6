"""What the facts of a program mean: against formulas, against the figures of a chip, and what to try next."""
