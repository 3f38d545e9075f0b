"""Memory of a rank and time of a step for transformers that are sharded over devices, by the analytical model.

A trace describes the work and memory of one device and has neither degrees nor schedule. The analytical model needs
only the shape of the network and its parallel degrees.
"""
