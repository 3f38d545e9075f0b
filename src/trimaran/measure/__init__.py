"""Measurements: the costs of a job on this machine. Importing this room does not import torch."""

from trimaran.measure.cache import cache_directory
from trimaran.measure.costs import measure_costs

__all__ = ["cache_directory", "measure_costs"]
