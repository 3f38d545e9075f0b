"""What would help a job that was split by its stalls: known remedies, ranked by what they are sure to save of its step.

A gain is as sure as the steps that it was computed from are alike: advice is what saves something at the low end of the
gain's interval too. What may as well cost is no advice, however large its gain is in the middle.
"""

from trimaran.measure.stalls.splits import CLASSES, Split
from trimaran.report.remedies import Remedy, rank_remedies
from trimaran.session.advice import COMPUTE, LEAST_GAIN, LIMIT_GAIN
from trimaran.session.stalls.data_remedies import data_remedies
from trimaran.session.stalls.evidence import Evidence
from trimaran.session.stalls.exchange_remedies import exchange_remedies

_STALLS = tuple(name for name in CLASSES if name not in (COMPUTE, "unattributed"))


def name_stall(split: Split) -> str:
    """The largest class other than compute, where it takes 5 % of the step; else "compute".

    Args:
        split: of a step

    Example:
        >>> parts = dict.fromkeys(CLASSES, 0.0)
        >>> name_stall(Split(**parts | {"compute": 1.0, "fetch": 0.5, "communication": 0.1}))
        'fetch'
    """
    largest = max(_STALLS, key=lambda name: float(getattr(split, name)))
    return largest if getattr(split, largest) >= LIMIT_GAIN * split.step_s else COMPUTE


def advise_on_stalls(evidence: Evidence) -> tuple[list[Remedy], list[Remedy]]:
    """Known remedies: those that are sure to be worth it, the surest gain first, and the others by predicted gain.

    Args:
        evidence: what was measured
    """
    ranked = rank_remedies([*data_remedies(evidence), *exchange_remedies(evidence)])
    worth = [remedy for remedy in ranked if _sure(remedy) >= LEAST_GAIN]
    return sorted(worth, key=_sure, reverse=True), [remedy for remedy in ranked if _sure(remedy) < LEAST_GAIN]


def _sure(remedy: Remedy) -> float:
    """The gain that the interval leaves, whatever happens."""
    return remedy.gain_interval[0]
