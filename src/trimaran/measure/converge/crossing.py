"""When a run reached its target, between the evaluations that it had.

metric                     ·  evaluated
  target ─ ─ ─ ─ ─ ─ ─╱─ ─    the first one at the target or above, and the one before it:
                  ·  ╱        a straight line between them says when
               ·    │
  ─────────────────────── epochs
"""

from collections.abc import Sequence

Evaluation = tuple[float, float]
"""Epochs of training, and the metric then."""


def find_crossing(evaluations: Sequence[Evaluation], target: float) -> float | None:
    """Epochs that a run needed.

    Args:
        evaluations: by rising epochs
        target: value of the metric

    Returns:
        Between the first evaluation that reaches it and the one before [epochs]; None where none does.

    Example:
        >>> find_crossing([(1.0, 0.5), (2.0, 0.9), (3.0, 0.8)], target=0.8)
        1.75
    """
    before: Evaluation | None = None
    for epochs, metric in evaluations:
        if metric >= target:
            if before is None:
                return epochs
            return before[0] + (epochs - before[0]) * (target - before[1]) / (metric - before[1])
        before = (epochs, metric)
    return None


def best_metric(evaluations: Sequence[Evaluation]) -> float | None:
    """The largest value; None where there was no evaluation."""
    return max((metric for _, metric in evaluations), default=None)


def is_due(epochs: float, last: float, *, per_epoch: int, growth: float = 0.05) -> bool:
    """Whether it is time to evaluate.

    Args:
        epochs: of training so far
        last: at the last evaluation
        per_epoch: most evaluations of an epoch
        growth: share of the training so far that may pass without one

    Returns:
        True as soon as both the share and that part of an epoch have passed; half an update early does not matter.

    Example:
        >>> is_due(0.25, 0.0, per_epoch=4), is_due(10.25, 10.0, per_epoch=4), is_due(10.5, 10.0, per_epoch=4)
        (True, False, True)
    """
    # Sums of fractions of an epoch are a little less than what they stand for.
    return epochs - last >= max(1.0 / per_epoch, growth * last) - 1e-9
