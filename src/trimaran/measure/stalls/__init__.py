"""Waits of a job's steps: run cold, cached and on synthetic data, and split by cause."""

from trimaran.measure.stalls.steps import CLASSES, WAYS, Split, TimedStep, Way, calm, mean_split, split_steps

__all__ = ["CLASSES", "WAYS", "Split", "TimedStep", "Way", "calm", "mean_split", "split_steps"]
