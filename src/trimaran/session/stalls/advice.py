"""What would help a job that was split by its stalls: known remedies, ranked by what they would save of its step."""

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
    """Known remedies, the best first: those that are worth it, and those that are not.

    Args:
        evidence: what was measured
    """
    ranked = rank_remedies([*data_remedies(evidence), *exchange_remedies(evidence)])
    worth = [remedy for remedy in ranked if remedy.predicted_gain >= LEAST_GAIN]
    return worth, [remedy for remedy in ranked if remedy.predicted_gain < LEAST_GAIN]
