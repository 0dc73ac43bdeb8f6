"""Devices, and those that are not there: topologies of pods and clusters, figures of chips, where a mesh is placed."""
