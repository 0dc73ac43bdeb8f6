"""The figures that `results.plot`, `results.frontier` and `results.timeline` draw."""
