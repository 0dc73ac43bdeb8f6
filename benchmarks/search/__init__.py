"""The search for the best mesh by formula; the best are compiled. The command is `benchmarks.feasibility`."""
