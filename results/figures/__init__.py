"""The figures that `results.plot`, `results.frontier`, `results.timeline` and `results.diagram` draw."""
