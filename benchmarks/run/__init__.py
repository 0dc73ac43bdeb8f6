"""Measure cases: compile steps, check them against one device, time them interleaved, and keep a row for every case."""
