"""The figures of a step some of whose modules run on a part of the batch at a time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFigures:
    """Modules that run on a part of the batch at a time, and the split step with everything kept.

    Attributes:
        name: which modules in how many parts, for people
        written: the same as the command takes it
        whole_floor_bytes: least memory of the step that is not split [bytes]
        kept_s: the split step with memory without end [s]
        keep_peak_bytes: peak of the split step as autograd keeps everything [bytes]
    """

    name: str
    written: str
    whole_floor_bytes: int
    kept_s: float
    keep_peak_bytes: int
