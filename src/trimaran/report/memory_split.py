"""The figures of a step some of whose modules run on a part of the batch at a time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFigures:
    """Modules that run on a part of the batch at a time, and the step as it is without that.

    Attributes:
        name: which modules in how many parts, for people
        written: the same as the command takes it
        keep_peak_bytes: peak of the whole step as autograd keeps everything [bytes]
        floor_bytes: least memory of the whole step [bytes]
        kept_s: the whole step with memory without end [s]
    """

    name: str
    written: str
    keep_peak_bytes: int
    floor_bytes: int
    kept_s: float
