"""What a compiled program does, read from its text: collectives, FLOPs, memory traffic, and what could deadlock.

Start at `compiled.read_program`.
"""
