"""Transformers that are sharded over devices: memory of a rank and time of a step, by the analytical model.

A trace says what one device does and holds, and knows neither degrees nor schedule. What is here needs only the shape
of the network and its parallel degrees.
"""
