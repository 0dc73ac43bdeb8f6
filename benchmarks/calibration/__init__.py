"""Calibration of this machine: probes are timed, and their rates become a machine file."""
