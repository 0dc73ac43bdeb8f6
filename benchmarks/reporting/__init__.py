"""What a run prints and writes: pytest's plugin in the process that measures, the table, and the report."""
