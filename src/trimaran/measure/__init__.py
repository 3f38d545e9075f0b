"""Measurements: the costs of a job on this machine. Importing this room does not import torch."""
