"""Training on text, to a curve: what `benchmarks.training.train` runs. Start at `loop.Run`."""
