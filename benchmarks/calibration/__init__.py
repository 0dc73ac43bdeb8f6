"""Calibration of the machine at hand: probes are timed, and the constants of a machine file are fitted to them."""
