"""Defaults and limits of the options of commands, and the options that are sizes of the model."""

DEVICES = (1, 2, 8)
BATCH_SIZES = (16, 8)
"""The largest first: its rows are the curve over numbers of devices."""
ROUNDS = 20
EXTRA_SECONDS = 40.0
"""Comparable steps whose `ROUNDS` took less time are timed until then, where their intervals are wide."""
MIN_ROUNDS = 6
"""The fewest samples whose extremes enclose the median with 95% confidence."""
CASE_TIMEOUT = 600.0
LOST_AFTER = 30.0
"""Default seconds without heartbeat after which a process counts as lost."""
JOIN_TIMEOUT = 300.0
SIZES = ("layers", "embed", "heads", "mlp", "vocab", "sequence")
"""Sizes of the model, which are options and fields of `GPTConfig`."""
SPARSE = ("attention_stride", "attention_pattern", "attention_summary")
"""Options of sparse attention besides the window, which are fields of `GPTConfig`, too."""
