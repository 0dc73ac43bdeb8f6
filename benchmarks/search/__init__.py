"""Search for the best mesh by formulas, with compilation of the best candidates (`benchmarks.feasibility`)."""
