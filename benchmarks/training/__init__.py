"""Training on text, to a curve: what `benchmarks.train` runs. Start at `loop.Run`."""
