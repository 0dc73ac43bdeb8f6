"""Analysis of a compiled program's HLO text: collectives, FLOPs, memory traffic, overlap and possible deadlocks.

The entry point is `compiled.read_program`.
"""
