"""From which number of devices on a hybrid of data and model parallelism reaches the target sooner."""

from trimaran.features.crossover.find import find_crossover
from trimaran.features.crossover.request import CrossoverRequest

__all__ = ["CrossoverRequest", "find_crossover"]
