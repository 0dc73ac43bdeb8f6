"""Reads the files that the other commands write: runs, overviews of strategies, and pipeline schedules."""
