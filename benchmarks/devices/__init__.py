"""Devices that need not be present: topologies of pods and clusters, chip specifications, and mesh placement."""
