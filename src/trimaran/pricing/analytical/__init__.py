"""Transformers that are divided over devices: memory of a rank and time of a step, by closed forms.

A trace says what one device does and holds, and knows neither division nor schedule. What is here needs only the shape
of the network and how it is divided.
"""
