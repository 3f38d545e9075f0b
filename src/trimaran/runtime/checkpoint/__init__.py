"""Checkpoints: files from which a training goes on, and the plain weights of a model.

`weights.py` writes and reads the user's `state_dict`.
"""
