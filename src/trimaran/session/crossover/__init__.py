"""From which number of devices on a hybrid of data and model parallelism reaches the target sooner."""

from trimaran.session.crossover.finding import find_crossover
from trimaran.session.crossover.request import CrossoverRequest

__all__ = ["CrossoverRequest", "find_crossover"]
