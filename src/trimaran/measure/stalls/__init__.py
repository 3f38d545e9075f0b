"""What a step of a job waits for: run cold, cached and on synthetic data, and split by cause."""

from trimaran.measure.stalls.splits import CLASSES, Split, calm, mean_split
from trimaran.measure.stalls.steps import WAYS, TimedStep, Way, split_steps

__all__ = ["CLASSES", "WAYS", "Split", "TimedStep", "Way", "calm", "mean_split", "split_steps"]
