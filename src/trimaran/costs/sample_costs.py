"""What the samples of a job take before a step can use them, as it was measured on this machine."""

from dataclasses import dataclass, replace

from trimaran.costs.types import Cost

NOT_MEASURED = "assumed"
"""Kind of the source of what nobody measured, because loading takes too little of a step to matter."""

_NOTHING = Cost(0.0, 0.0, 0.0, f"{NOT_MEASURED}: nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCosts:
    """What a microbatch takes from the data set to the step, apart by what it waits for.

    Reading is standing still (storage, network): several processes read at the same time. Preparing is work of a core
    (decode, augment, collate): processes that prepare share the cores with the training.

    Attributes:
        read: standing still, for a sample, the first time that it is read [s/sample]
        read_again: the same once the host has it in its page cache [s/sample]
        prepare: work of a core, for a sample [s/sample]
        batch: work of a core for a microbatch, beside its samples [s]
        take: work of the training's thread to take a microbatch over from a worker, beside its bytes [s]
        take_per_byte: the same for its bytes [s/byte]
        start_s: to start a worker [s]
        sample_bytes: of a sample once it is collated [bytes]
        stored_bytes: of a sample as a cache keeps it; 0 where samples are of different shapes, and none can [bytes]
        samples: of the data set
        repeats: a sample that is read twice is the same, bit for bit, under different random numbers
        give: work of a worker's core for a microbatch beyond `batch`: to hand it over [s]
        give_each: work of a worker's core for a sample beyond `prepare`: to wake up and go on [s/sample]
        recall: work of a core to get a sample out of a cache and collate it [s/sample]
        copy: to bring a microbatch to the device, beside its bytes; 0 where the device is the host [s]
        copy_per_byte: the same for its bytes [s/byte]
    """

    read: Cost
    read_again: Cost
    prepare: Cost
    batch: Cost
    take: Cost
    take_per_byte: float
    start_s: float
    sample_bytes: int
    stored_bytes: int
    samples: int
    repeats: bool
    give: Cost = _NOTHING
    give_each: Cost = _NOTHING
    recall: Cost = _NOTHING
    copy: Cost = _NOTHING
    copy_per_byte: float = 0.0

    @property
    def knows_workers(self) -> bool:
        """Whether it was measured what workers take."""
        return not self.take.source.startswith(NOT_MEASURED)

    @property
    def durations(self) -> tuple[Cost, ...]:
        """Everything that was measured as a duration."""
        each = (self.read, self.read_again, self.prepare, self.batch, self.take, self.give, self.give_each)
        rates = (self.take_per_byte, self.copy_per_byte, self.start_s)
        return (*each, self.recall, self.copy, *(Cost(rate, rate, rate, "") for rate in rates))

    def scaled(self, factor: float) -> "SampleCosts":
        """The same data set, `factor` times as long in everything.

        Example:
            >>> cost = Cost(1.0, 0.5, 2.0, "measured")
            >>> costs = SampleCosts(
            ...     read=cost, read_again=cost, prepare=cost, batch=cost, take=cost, take_per_byte=4.0, start_s=1.0,
            ...     sample_bytes=8, stored_bytes=8, samples=10, repeats=True)
            >>> half = costs.scaled(0.5)
            >>> half.read.seconds, half.take_per_byte, half.samples
            (0.5, 2.0, 10)
        """
        return replace(
            self,
            read=self.read.scaled(factor),
            read_again=self.read_again.scaled(factor),
            prepare=self.prepare.scaled(factor),
            batch=self.batch.scaled(factor),
            take=self.take.scaled(factor),
            take_per_byte=self.take_per_byte * factor,
            start_s=self.start_s * factor,
            give=self.give.scaled(factor),
            give_each=self.give_each.scaled(factor),
            recall=self.recall.scaled(factor),
            copy=self.copy.scaled(factor),
            copy_per_byte=self.copy_per_byte * factor,
        )
