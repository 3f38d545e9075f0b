"""Which compressions of gradients a search tries.

Every method loses something, so none is tried without consent, and lossless plans that are as fast within the
uncertainty are taken before any of them (`choice.simplicity`). Two methods of 16 bits cost the same: "bf16" is tried,
because no gradient is too large for it, and "fp16" by its name only.
"""

from trimaran.planner.pins import Pins
from trimaran.program import Strategy
from trimaran.program.compression import Compression

METHODS: tuple[Compression, ...] = (
    Compression(method="bf16"),
    *(Compression(method="powersgd", rank=rank) for rank in (4, 2, 1)),
)
"""What is tried with consent, the most faithful first."""


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
