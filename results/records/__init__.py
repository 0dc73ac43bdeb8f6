"""Reads what `pytest benchmarks --benchmark-json=...` wrote, row by row or as one table."""
