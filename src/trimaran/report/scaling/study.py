"""A scaling study as values: what a job does on so many devices of a machine, what limits it, what would help."""

from dataclasses import dataclass
from typing import Literal

from trimaran.costs.scaled import ScaledStep

Mode = Literal["weak", "strong"]
"""Weak: each device has its batch, however many there are. Strong: all devices share one batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRow:
    """One set-up of the study.

    Attributes:
        step: the step of each rank, taken apart
        nodes: that the devices are in
        samples_per_s: of all devices together [samples/s]
        low: lower end of its 90 % interval [samples/s]
        high: upper end [samples/s]
        speedup: against one device, with the same batch a device (weak) or in all (strong)
        efficiency: speedup by devices
        peak_bytes: memory of the rank that needs the most, as its framework's allocator counts [bytes]
        own_peak_bytes: memory of a rank that is home to no tensor [bytes]
        card_bytes: memory of a device, as its driver reports [bytes]
        fits: whether the rank that needs the most fits its device, with what no allocator counts
    """

    step: ScaledStep
    nodes: int
    samples_per_s: float
    low: float
    high: float
    speedup: float
    efficiency: float
    peak_bytes: int
    own_peak_bytes: int
    card_bytes: int
    fits: bool

    @property
    def limiter(self) -> str:
        """What the step would be shortened by; memory before all where it does not fit."""
        return self.step.limiter if self.fits else "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A change of the network, or of how it is trained, with what it is expected to gain.

    Attributes:
        change: what to do
        reason: why it helps
        gain: of throughput, as a share; 0.1 is 10 % more samples/s
        row: the set-up that it is about
    """

    change: str
    reason: str
    gain: float
    row: ScalingRow


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingStudy:
    """All set-ups.

    Attributes:
        job: as asked for
        cluster: machine with the number of nodes
        device: of which it has many
        precision: in which is computed
        software: framework and year
        mode: weak or strong
        unit: what is counted, "images" or "samples"
        rows: by batch, method and devices, in that order
        advice: changes that help the largest groups, the largest gain first
        notes: what was assumed
        source: of the times
    """

    job: str
    cluster: str
    device: str
    precision: str
    software: str
    mode: Mode
    unit: str
    rows: tuple[ScalingRow, ...]
    advice: tuple[Advice, ...]
    notes: tuple[str, ...]
    source: str
