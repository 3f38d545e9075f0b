"""How intervals combine.

Two kinds of error. The errors of different operations are taken as independent: half-widths add in quadrature. The
error of a factor that all of them share (the context, a slow minute of the machine) is common: it scales the sum as a
whole. Both are approximations for 90 % intervals that need not be symmetric, so the two sides are treated separately.
"""

import math
from collections.abc import Iterable

from trimaran.costs.types import Cost


def add(costs: Iterable[Cost], *, source: str | None = None) -> Cost:
    """The sum of costs whose errors are independent.

    Args:
        costs: the terms
        source: of the sum; None: that of the longest term

    Returns:
        The sum; 0 for no terms.

    Example:
        >>> add([Cost(10.0, 7.0, 13.0, "measured"), Cost(5.0, 1.0, 9.0, "measured")])
        Cost(seconds=15.0, low=10.0, high=20.0, source='measured')
    """
    terms = list(costs)
    seconds = math.fsum(term.seconds for term in terms)
    below = math.hypot(*(term.seconds - term.low for term in terms))
    above = math.hypot(*(term.high - term.seconds for term in terms))
    longest = max(terms, key=lambda term: term.seconds, default=None)
    if source is None:
        source = longest.source if longest else "measured"
    return Cost(seconds, max(0.0, seconds - below), seconds + above, source)


def multiply(cost: Cost, factor: Cost) -> Cost:
    """A cost times a factor with an error of its own, independent of the cost's.

    Args:
        cost: duration
        factor: the factor [1], with its interval

    Example:
        >>> multiply(Cost(10.0, 7.0, 13.0, "measured"), Cost(2.0, 1.2, 2.8, "measured"))
        Cost(seconds=20.0, low=10.0, high=30.0, source='measured')
    """
    seconds = cost.seconds * factor.seconds
    below = math.hypot((cost.seconds - cost.low) * factor.seconds, (factor.seconds - factor.low) * cost.seconds)
    above = math.hypot((cost.high - cost.seconds) * factor.seconds, (factor.high - factor.seconds) * cost.seconds)
    return Cost(seconds, max(0.0, seconds - below), seconds + above, cost.source)


def divide(cost: Cost, seconds: float) -> Cost:
    """A cost as a multiple of a reference duration; 1 where the reference is nothing.

    Args:
        cost: duration
        seconds: the reference [s]

    Returns:
        The ratio [1], with its interval.
    """
    return cost.scaled(1.0 / seconds) if seconds > 0 else Cost(1.0, 1.0, 1.0, "assumed: nothing to compare with")
