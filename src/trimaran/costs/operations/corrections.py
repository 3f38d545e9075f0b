"""What a user's own figures say of the curves.

A profile tells kinds of kernels apart: the factor of a kind is what the profile shows of it over what is modelled. A
few measured steps tell only the device and the host apart, and only where their batches differ enough: the host costs
the same at every batch, the device more with each sample. One step alone moves both alike.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy
from numpy.typing import NDArray

from trimaran.costs.operations.kernels import Column
from trimaran.costs.operations.profiles import Profile
from trimaran.errors import InputError
from trimaran.graph.workload import WorkKind

_APART = 0.4
"""Standard deviation of the logarithm by which device and host may move apart, against `_NOISE`."""

_NOISE = 0.03
"""Standard deviation of the logarithm of a measured step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Factors on modelled times.

    Attributes:
        kinds: of a kind of kernel
        others: of kinds that are not in `kinds`
        host: of the host's time
        spread: standard deviation of the logarithm of what is left
        source: where the factors come from
    """

    kinds: Mapping[WorkKind, float] = field(default_factory=dict)
    others: float = 1.0
    host: float = 1.0
    spread: float = 0.05
    source: str

    def of_kinds(self, kind: NDArray[numpy.str_]) -> Column:
        """The factor of each of a column of kinds."""
        factors = numpy.full(len(kind), self.others)
        for name, factor in self.kinds.items():
            factors[kind == name.value] = factor
        return factors


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A step that was measured, and what is modelled of it.

    Attributes:
        seconds: measured [s]
        device_s: modelled, of its kernels [s]
        host_s: modelled, of asking for them [s]
        overlap: of the software, see `step_seconds`
    """

    seconds: float
    device_s: float
    host_s: float
    overlap: float


def step_seconds(device_s: float, host_s: float, overlap: float) -> float:
    """A step of a device's time and a host's [s].

    Args:
        device_s: kernels back to back [s]
        host_s: asking for them [s]
        overlap: how well the shorter hides behind the longer: not at all with 1, wholly with a large number

    Example:
        >>> step_seconds(3.0, 4.0, 1.0), step_seconds(3.0, 4.0, 2.0)
        (7.0, 5.0)
    """
    largest = max(device_s, host_s)
    if largest <= 0:
        return 0.0
    return float(largest * ((device_s / largest) ** overlap + (host_s / largest) ** overlap) ** (1 / overlap))


def correction_from_steps(steps: Sequence[MeasuredStep]) -> Correction:
    """The factors of device and host with which the model comes closest to measured steps.

    Minimises, over logarithms `a` and `b` of the two factors, the squared errors of the logarithm of each step plus
    `(noise / apart × (a - b))²`: where the steps do not tell device and host apart, both move alike.

    Args:
        steps: measured, on one device with one software

    Raises:
        InputError: no step, or one that is not a positive time
    """
    if not steps:
        raise InputError("a correction needs at least one measured step", code="correction.no-steps")
    for step in steps:
        if not (step.seconds > 0 and math.isfinite(step.seconds)):
            raise InputError(
                f"a measured step must be a positive time in seconds, got {step.seconds!r}", code="correction.bad-time"
            )
    a = b = 0.0
    for _ in range(60):
        a, b = _improved(steps, a, b)
    errors = [_error(step, a, b) for step in steps]
    left = math.sqrt(sum(error * error for error in errors) / max(1, len(errors) - 2)) if len(errors) > 2 else _NOISE
    return Correction(
        others=math.exp(a),
        host=math.exp(b),
        spread=max(left, _NOISE) * 1.5,
        source=f"{len(steps)} measured step{'s' if len(steps) > 1 else ''}",
    )


def correction_from_profile(profile: Profile, modelled_s: Mapping[WorkKind, float], host_s: float) -> Correction:
    """The factors of kinds with which the model gives what a profile shows.

    Args:
        profile: of steps of the same job at the same batch
        modelled_s: of one step, by kind [s]
        host_s: modelled, of asking for a step's kernels [s]

    Raises:
        InputError: the profile has none of the kernels that the step consists of
    """
    common = {kind: seconds for kind, seconds in profile.kinds_s.items() if modelled_s.get(kind, 0.0) > 0}
    if not common:
        raise InputError(
            f"{profile.source}: none of its kernels is of a kind that this step has "
            f"({', '.join(sorted(modelled_s))}): is it a profile of this job's training on a GPU?",
            code="correction.no-common-kernels",
        )
    seen, known = sum(common.values()), sum(modelled_s[kind] for kind in common)
    host = 1.0
    if profile.step_s > 1.15 * profile.device_s and host_s > 0:
        host = profile.step_s / host_s  # the device waits, so the step is the host's
    return Correction(
        kinds={kind: seconds / modelled_s[kind] for kind, seconds in common.items()},
        others=seen / known,
        host=host,
        source=profile.source,
    )


def _improved(steps: Sequence[MeasuredStep], a: float, b: float) -> tuple[float, float]:
    """One damped step of Gauss and Newton."""
    delta = 1e-4
    rows = [(_NOISE / _APART, -_NOISE / _APART, (a - b) * _NOISE / _APART)]
    for step in steps:
        error = _error(step, a, b)
        by_a = (_error(step, a + delta, b) - error) / delta
        by_b = (_error(step, a, b + delta) - error) / delta
        rows.append((by_a, by_b, error))
    matrix = numpy.array([row[:2] for row in rows])
    errors = numpy.array([row[2] for row in rows])
    move = numpy.linalg.lstsq(matrix, -errors, rcond=None)[0]
    move = numpy.clip(move, -0.5, 0.5)
    return a + float(move[0]), b + float(move[1])


def _error(step: MeasuredStep, a: float, b: float) -> float:
    return math.log(step_seconds(step.device_s * math.exp(a), step.host_s * math.exp(b), step.overlap) / step.seconds)
