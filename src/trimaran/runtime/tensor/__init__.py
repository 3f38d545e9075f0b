"""Tensors shared by the ranks of a group: the user's layers on shares of their weights.

    flow of the model ──rewriting──▶ the same flow, its regions on shares ──▶ segments ──▶ Part
    user's parameters ──weights────▶ shares in their places, under their names

Weights are laid out and gathered by DTensor over a device mesh. Between columns and rows the user's operations run on
plain tensors, so that they cost what they cost alone, and any view that names a size is rewritten for the share.
"""
