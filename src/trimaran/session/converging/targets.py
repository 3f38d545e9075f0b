"""The value of the metric that runs are to reach: asked for, the job's own, or by what the job itself reaches."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trimaran.errors import CorruptDataError, InputError
from trimaran.measure.converge.state import Run
from trimaran.report.files import write_whole

SHARE = 0.99
"""Of the best metric that the job reaches with its own batch and epochs, where nobody says a target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is to be reached.

    Attributes:
        value: of the metric
        source: who says so
    """

    value: float
    source: str


def rule_of_thumb(runs: Iterable[Run]) -> Target:
    """A target from runs of the job with its own batch and epochs.

    Args:
        runs: of different seeds

    Returns:
        `SHARE` of the smallest of their best metrics, to three decimals.

    Raises:
        InputError: no run has a positive metric
    """
    found = [run.best for run in runs]
    best = min((metric for metric in found if metric is not None), default=0.0)
    value = round(SHARE * best, 3)
    if not found or None in found or not value > 0:
        raise InputError(
            f"the job's own run reaches a best metric of {best:g}, from which no target follows: say --target",
            code="converge.needs-target",
            best_metric=best,
        )
    return Target(
        value=value,
        source=f"{SHARE:.0%} of what the job reaches with its own batch and epochs, {best:.4g} "
        f"({len(found)} {'run' if len(found) == 1 else 'runs'})",
    )


def read_target(path: Path) -> Target:
    """A target that was found before.

    Args:
        path: of its file

    Raises:
        CorruptDataError: the file is damaged
    """
    try:
        plain = json.loads(path.read_bytes())
        found = Target(value=float(plain["value"]), source=str(plain["source"]))
        if not math.isfinite(found.value):
            raise ValueError(f"{found.value} is no target")
    except (ValueError, LookupError, TypeError, RecursionError, OSError) as error:
        raise CorruptDataError(
            f"{path} is damaged, {error}: remove it, and the target is found again from the runs",
            code="converge.damaged-target",
            path=str(path),
        ) from None
    return found


def write_target(path: Path, target: Target) -> None:
    """Keep a target.

    Args:
        path: of its file
        target: that was found
    """
    write_whole(path, json.dumps({"value": target.value, "source": target.source}).encode())
