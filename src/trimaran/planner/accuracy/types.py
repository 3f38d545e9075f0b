"""What is compared on the way to a target: a strategy at a batch, and what a training by it takes and costs."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from trimaran.planner.candidates import Cases

if TYPE_CHECKING:
    from trimaran.costs.convergence.types import Need

Goal = Literal["throughput", "time", "cost"]
"""What is made best: samples a second; the time to the target; what that time costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A strategy at one global batch, as far as its step goes.

    Attributes:
        name: of the strategy
        devices: that take part
        global_batch: samples of one update
        replicas: that share them
        microbatches: of a replica
        cases: time of a step with all costs low, at their median, and high [s]
        peak_bytes: of the fullest rank [bytes]
        simplicity: sort key; of equally good ones the smallest is taken
        is_hybrid: a replica is spread over several devices
        limiter: what keeps it from being faster
        samples_factor: as in `planner.candidates.Candidate`
        origin: what it was made from
    """

    name: str
    devices: int
    global_batch: int
    replicas: int
    microbatches: int
    cases: Cases
    peak_bytes: int
    simplicity: tuple[int, ...]
    is_hybrid: bool = False
    limiter: str = ""
    samples_factor: float = 1.0
    origin: Any = field(default=None, compare=False, repr=False)

    @property
    def step_time_s(self) -> float:
        """Of one update [s]."""
        return self.cases[1]

    @property
    def samples_per_s(self) -> float:
        """Throughput [samples/s]."""
        return self.global_batch / self.step_time_s

    @property
    def local_batch(self) -> int:
        """Samples of one replica in one update."""
        return self.global_batch // self.replicas

    @property
    def microbatch(self) -> int:
        """Samples of one forward."""
        return self.local_batch // self.microbatches


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How much training a batch needs.

    Attributes:
        updates: until the target
        epochs: the same in epochs; None where nobody says how many samples an epoch has
        steps_per_epoch: samples of an epoch over those of a batch; None likewise
    """

    updates: "Need"
    epochs: "Need | None" = None
    steps_per_epoch: float | None = None

    def times(self, factor: float) -> "Training":
        """The training that needs so many times the samples."""
        epochs = None if self.epochs is None else self.epochs.scaled(factor, self.epochs.unit)
        return replace(self, updates=self.updates.scaled(factor, self.updates.unit), epochs=epochs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A strategy at a batch, with the training that it takes to the target.

    Attributes:
        contender: the strategy
        training: how much training; None without a curve
        time_s: to the target; None without a curve [s]
        time_interval_s: 90 % [s]
        cost: of the devices for so long, in `cost_unit`
        cost_interval: 90 %
        cost_unit: "device-hours", or a currency where there is a price
    """

    contender: Contender
    training: Training | None = None
    time_s: float | None = None
    time_interval_s: tuple[float, float] | None = None
    cost: float | None = None
    cost_interval: tuple[float, float] | None = None
    cost_unit: str = "device-hours"

    @property
    def global_batch(self) -> int:
        """Samples of one update."""
        return self.contender.global_batch

    @property
    def devices(self) -> int:
        """That take part."""
        return self.contender.devices

    def value(self, goal: Goal) -> float:
        """What is made small, in the unit of the goal; without a curve the time of a sample, as often as needed [s]."""
        if goal == "throughput" or self.time_s is None:
            return self.contender.samples_factor / self.contender.samples_per_s
        return self.time_s if goal == "time" or self.cost is None else self.cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Rivals:
    """The best hybrid against the best data parallelism, on any number of devices and at any batch.

    Attributes:
        data_parallel: the best of one network on each device, its local batch free; None: none fits
        hybrid: the best that spreads a network; None: none may be better
        reason: which one wins, and why
    """

    data_parallel: Estimate | None
    hybrid: Estimate | None
    reason: str
