"""Multi-process runs: joining, agreeing on results and errors, and detecting lost processes."""
