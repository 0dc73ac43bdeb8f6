"""Reads the files that the other commands write: runs, searches, traces, logs, and what `--json` prints."""
