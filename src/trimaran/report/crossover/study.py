"""Where a hybrid of data and model parallelism begins to reach the target sooner than data parallelism, as values."""

from dataclasses import dataclass
from typing import Literal

from trimaran.costs.convergence.types import Unit

Basis = Literal["paper", "ours"]
"""Paper: a fixed local batch, SE = 1, equal devices. Ours: local batch free, predicted exchange, devices may be
idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """The best way to run a batch on several devices by model parallelism alone.

    Attributes:
        width: devices, M
        batch: samples of the worker
        strategy: of the plan; "one device" where no division is faster
        speedup: SU^M, over one device with the same batch
        interval: its 90 % interval
        slow_links: the speedup on links half as fast
        fast_links: the speedup on links twice as fast
    """

    width: int
    batch: int
    strategy: str
    speedup: float
    interval: tuple[float, float]
    slow_links: float
    fast_links: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to train on so many devices.

    Attributes:
        devices: that it uses
        width: devices of a worker; 1 is data parallelism
        local_batch: samples of a worker
        step_s: time of a step [s]
        alone_s: of it, what a worker takes without the others [s]
        need: samples to the target, in the unit of the curve; 1 without a curve
        time_s: to the target [s]; None where the curve says only how batches compare
    """

    devices: int
    width: int
    local_batch: int
    step_s: float
    alone_s: float
    need: float
    time_s: float | None = None

    @property
    def workers(self) -> int:
        """Data-parallel workers."""
        return self.devices // self.width

    @property
    def global_batch(self) -> int:
        """Samples of an update."""
        return self.workers * self.local_batch

    @property
    def name(self) -> str:
        """Such as "256 × 8" or "128 of 2 × 64": workers, and samples of each."""
        return f"{self.workers}{f' of {self.width}' if self.width > 1 else ''} × {self.local_batch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A number of devices.

    Attributes:
        devices: that there are
        data: best data parallelism
        hybrid: best hybrid
        speedup: time of the former by that of the latter; above 1 the hybrid is ahead
        interval: its 90 % interval
        likely: share of the draws in which the hybrid is ahead
        equal_batch_limit: largest global batch at which the hybrid's step is shorter than that of data parallelism with
            the same batch; None: at none
        needed_epoch_ratio: epochs of the batch at which data parallelism does the most samples a second, by epochs of
            the batch at which the hybrid would run: above it the hybrid is ahead
    """

    devices: int
    data: Way
    hybrid: Way
    speedup: float
    interval: tuple[float, float]
    likely: float
    equal_batch_limit: int | None
    needed_epoch_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """The crossover if something were otherwise.

    Attributes:
        change: such as "links twice as fast"
        devices: at which the hybrid is ahead then; None: at none of those that were asked for
    """

    change: str
    devices: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """One width on one basis.

    Attributes:
        width: devices of a worker
        basis: how it is reckoned
        worker: at the local batch of paper mode
        needed_speedup: of a worker, for as short a step as data parallelism has with the same global batch, without
            exchanges: T(b) / T(b / M); None where a share has no whole sample
        devices: fewest of those asked for at which the hybrid is ahead; None: at none, or no curve
        interval: 90 % of that; None: at none
        never: share of the draws in which it is ahead at none
        rows: by devices
        sensitivities: what it would be otherwise
        reason: in words
    """

    width: int
    basis: Basis
    worker: Worker
    needed_speedup: float | None
    devices: int | None
    interval: tuple[int | None, int | None]
    never: float
    rows: tuple[Row, ...]
    sensitivities: tuple[Sensitivity, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedCurve:
    """The convergence curve that is reckoned with.

    Attributes:
        name: as it was asked for
        task: what was trained to which target
        source: of the points
        unit: in what it counts
        range: smallest and largest measured batch
        projection: a study's projection rather than a measurement
        warnings: what the reader should know
    """

    name: str
    task: str
    source: str
    unit: Unit
    range: tuple[int, int]
    projection: bool
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """All widths on both bases.

    Attributes:
        job: as asked for
        cluster: the machine, with as many nodes as the largest count needs
        device: of which it has many
        precision: in which is computed
        software: framework and year
        local_batch: of a worker in paper mode
        counts: numbers of devices
        curve: None where there is none
        crossings: by width, paper mode first
        notes: what was assumed
    """

    job: str
    cluster: str
    device: str
    precision: str
    software: str
    local_batch: int
    counts: tuple[int, ...]
    curve: UsedCurve | None
    crossings: tuple[Crossing, ...]
    notes: tuple[str, ...]
