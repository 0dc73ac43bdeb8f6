"""Calibration of the machine at hand: probes are timed, and the constants of a machine file are fitted to them.

Virtual devices share the cores of one host. Their seconds are those of the process on all cores, divided by the number
of cores: the time that they take on a host that does nothing else.
"""
