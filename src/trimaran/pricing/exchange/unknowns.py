"""Constants of exchanges that nobody has measured for the software in question: each with two ends and their source.

A constant has a value, which predictions use, and two ends. The value of what is only known to lie between two ends is
their geometric middle. Where the order of two methods depends on the ends, it is not known which is faster
(`simulator.exchange_comparison`).
"""

from dataclasses import dataclass, replace
from typing import Literal

from trimaran.machine import topology
from trimaran.pricing.types import IntervalEnd

End = Literal["fast", "typical", "slow"]
"""All unknowns of a method at their fast ends, at their values, or at their slow ends."""


BOTH_ENDS: tuple[tuple[End, IntervalEnd], ...] = (("fast", "low"), ("slow", "high"))
"""The ends of an interval of a step: of what nobody has measured, and of the costs."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A constant between two ends.

    Attributes:
        value: that predictions use
        fast: its end at which a step is the shortest
        slow: its end at which a step is the longest
        source: of the ends
    """

    value: float
    fast: float
    slow: float
    source: str

    def at(self, end: End, place: float | None = None) -> float:
        """The constant at an end.

        Args:
            end: where it is taken
            place: of its value, where that was fitted: from 0 at the fast end to 1 at the slow one, by the logarithm

        Example:
            >>> between(1e-6, 4e-6, "example").at("typical"), between(1e-6, 16e-6, "example").at("typical", 0.75)
            (2e-06, 8e-06)
        """
        value = self.value if place is None else placed(self.fast, self.slow, place)
        return {"fast": self.fast, "typical": value, "slow": self.slow}[end]

    def valued(self, place: float) -> "Unknown":
        """This with its value at a place between the ends, as of `at`."""
        return replace(self, value=self.at("typical", place))

    def times(self, fewest: float, most: float | None = None) -> "Unknown":
        """What a number of them takes, from the fewest at the fast end to the most at the slow end.

        Example:
            >>> operations = between(1e-6, 4e-6, "example").times(2, 8)
            >>> operations.fast, operations.slow
            (2e-06, 3.2e-05)
        """
        return between(self.fast * fewest, self.slow * (fewest if most is None else most), self.source)


def placed(fast: float, slow: float, place: float) -> float:
    """What lies between two ends, to three figures.

    Args:
        fast: end at which a step is the shortest
        slow: end at which a step is the longest
        place: from 0 at the fast end to 1 at the slow one, by the logarithm
    """
    return float(f"{fast ** (1.0 - place) * slow**place:.3g}")


def between(fast: float, slow: float, source: str) -> Unknown:
    """A constant of which the ends alone are known: their geometric middle.

    Args:
        fast: end at which a step is the shortest
        slow: end at which a step is the longest
        source: of both
    """
    return Unknown(placed(fast, slow, 0.5), fast, slow, source)


LAUNCH_S = between(
    5.9e-6, 10.5e-6, "microsoft/superbenchmark@700d650 (A100): on the device, and of the launching thread"
)
"""Launch of a kernel, one after another [s]."""

OPERATION_S = between(5.9e-6, 20e-6, f"{LAUNCH_S.source}; PyTorch on a V100, from the call to the kernel's start")
"""An operation of a framework's engine [s]."""

COPY_S = between(4.6e-6, 24e-6, "Tartan (DGX-1, peer copies): 9.2 us, half of it with two threads; 24 us: MI100")
"""Handling of a copy between devices or to the host [s]."""

HOST_SUM_BYTES_PER_S = between(
    48e9, 8e9, "four threads of MXNet's CommCPU of 12e9 B/s each; one: ten lines of 64 bytes in flight for 80 ns"
)
"""At which cores of a host read and write what they sum [bytes/s]."""

STAGED = Unknown(
    topology.STAGED, 0.87, topology.STAGED, "uuudown/Tartan@e3166ab, P2P disabled: 9.2e9 to 10.8e9 of 12.4e9 B/s"
)
"""Share of a slot that one copy between devices through the host's memory sustains."""

STAGED_TOGETHER = between(
    1.0, topology.STAGED, "no measurement of several at once: from all that a slot carries to what one alone reaches"
)
"""Share of a slot that several such copies sustain together."""

READS_BETWEEN_SOCKETS = between(1.0, 6.0 / 19.2, "all of the raw rate; what NCCL counts on for copies between devices")
"""Share of the raw rate of links between sockets that copies staged in the host's memory sustain."""

INTERFERENCE = Unknown(1.1, 1.02, 1.18, "Calculon: 2 % of a processor (cards) to 15 % (NVLink); Galvatron: 1.13")
"""Factor on the time of compute while a call runs."""

EXCHANGE_UNSURE = 0.3
"""Half the width of the 90 % interval of what an exchange adds to a step, as a share of it.

Of collectives on machines that were left out of their fit 80 % of the times are within 25 %, on kinds of links that
were left out within 33 % (pricing/collectives/constants.toml).
"""
