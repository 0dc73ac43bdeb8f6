"""Output of a run: the pytest plugin of the measuring process, the terminal table, and the JSON report."""
