"""Which compressions of gradients a search tries.

Every method loses something, so none is tried without consent, and lossless plans that are as fast within the
uncertainty are taken before any of them (`choice.simplicity`). Two methods of 16 bits cost the same: "bf16" is tried,
because no gradient is too large for it, and "fp16" by its name only.

A step is not all that a method changes: a target may take more samples. With 16 bits nothing of that is to be seen.
PowerSGD may need more, and a search makes its step times that factor small
(`docs/decisions/0011-a-lossy-step-counts-as-often-as-training-needs-it.md`). Below rank 4 the samples grow by more than
the step can shrink, so lower ranks are tried by their names only.
"""

from collections.abc import Mapping

from trimaran.planner.pins import Pins
from trimaran.program import Strategy
from trimaran.program.compression import Compression

METHODS: tuple[Compression, ...] = (Compression(method="bf16"), Compression(method="powersgd", rank=4))
"""What is tried with consent, the most faithful first."""

ASSUMED_FACTORS: Mapping[int, float] = {4: 1.5, 2: 2.9, 1: 3.9}
"""Samples to a target with PowerSGD of a rank, over those with whole gradients.

Source: benchmarks/wire_accuracy, medians of the slower of its two jobs. A higher rank is taken for rank 4.
"""


def samples_factor(compression: Compression | None, pins: Pins) -> float:
    """How many times the samples training needs until its target, against whole gradients.

    Args:
        compression: how gradients are sent
        pins: perhaps with the user's own figure

    Example:
        >>> rank_8 = Compression(method="powersgd", rank=8)
        >>> samples_factor(rank_8, Pins()), samples_factor(rank_8, Pins(powersgd_samples=1.1))
        (1.5, 1.1)
    """
    if compression is None or compression.method != "powersgd":
        return 1.0
    if pins.powersgd_samples is not None:
        return pins.powersgd_samples
    return next(factor for rank, factor in ASSUMED_FACTORS.items() if compression.rank >= rank)


def offered(pins: Pins) -> tuple[Compression, ...]:
    """The methods that a search may use.

    Args:
        pins: with consent or without

    Example:
        >>> offered(Pins()), [method.name for method in offered(Pins(compression="powersgd:8"))]
        ((), ['powersgd-r8'])
    """
    if pins.compression is not None:
        return () if pins.method is None else (pins.method,)
    return METHODS if pins.compress and "compress" not in pins.forbid else ()


def may_be_compressed(strategy: Strategy) -> bool:
    """Whether a strategy sends whole gradients that a method could make smaller.

    Example:
        >>> may_be_compressed(Strategy(dp=2)), may_be_compressed(Strategy(dp=2, zero=1))
        (True, False)
    """
    summed = strategy.dp > 1 and strategy.sync == "all-reduce" and not strategy.zero
    return summed and strategy.tp == 1 and not strategy.shards and strategy.compression is None


def unfaithfulness(compression: Compression | None) -> int:
    """How little of a gradient a method keeps: 0 for all of it, more for less.

    Example:
        >>> ranks = (Compression(method="powersgd", rank=rank) for rank in (4, 1))
        >>> [unfaithfulness(one) for one in (None, *METHODS[:1], *ranks)]
        [0, 1, 9998, 10001]
    """
    if compression is None:
        return 0
    return {"bf16": 1, "fp16": 2}.get(compression.method, _LEAST_FAITHFUL - compression.rank)


_LEAST_FAITHFUL = 10_002
