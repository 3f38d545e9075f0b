"""Measured costs of a device and its links: the input of every price.

An operation's cost is found by its content, so that it serves every job that uses the same operation. Costs of a whole
job (its forward in one piece, its update, its data) are found by digests of the graph and of the job. A table
belongs to one fingerprint: costs of another device, version or load are never mixed in.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal, NamedTuple, TypeVar, get_args

from trimaran.base.errors import InputError
from trimaran.graph.trace.live_bytes import StepMemory
from trimaran.pricing.curves import at_batch
from trimaran.pricing.kernels.software import Software
from trimaran.pricing.types import Between, Cost, Interference, OpCost

# ---------------------------------------------------------------------------------------------------------------------
# Measured costs of the samples of a job before a step can use them


NOT_MEASURED = "assumed"
"""Kind of the source of costs that were not measured, because loading takes too little of a step to matter."""

_NOTHING = Cost(0.0, 0.0, 0.0, f"{NOT_MEASURED}: nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCosts:
    """Costs of a microbatch from the data set to the step: waiting and work of cores apart.

    Reading is waiting (storage, network): several processes read at the same time. Preparing is work of a core
    (decode, augment, collate): processes that prepare share the cores with the training.

    Attributes:
        read: waiting, for a sample, the first time that it is read [s/sample]
        read_again: the same once the host has it in its page cache [s/sample]
        prepare: work of a core, for a sample [s/sample]
        batch: work of a core for a microbatch, without its samples [s]
        take: work of the training's thread to take a microbatch over from a worker, without its bytes [s]
        take_per_byte: the same for its bytes [s/byte]
        start_s: to start a worker [s]
        sample_bytes: of a sample once it is collated [bytes]
        stored_bytes: of a sample as a cache keeps it; 0 where samples are of different shapes, and none can [bytes]
        samples: of the data set
        repeats: a sample that is read twice is the same, bit for bit, under different random numbers
        give: work of a worker's core for a microbatch beyond `batch`: to hand it over [s]
        give_each: work of a worker's core for a sample beyond `prepare`: to wake up and go on [s/sample]
        recall: work of a core to get a sample out of a cache and collate it [s/sample]
        copy: to bring a microbatch to the device, without its bytes; 0 where the device is the host [s]
        copy_per_byte: the same for its bytes [s/byte]
        shared: time for which a sample has what all ranks of a host use in turn, such as a disk [s/sample]
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
    shared: Cost = _NOTHING

    @property
    def knows_workers(self) -> bool:
        """Whether the costs of workers were measured."""
        return not self.take.source.startswith(NOT_MEASURED)

    @property
    def durations(self) -> tuple[Cost, ...]:
        """Everything that was measured as a duration."""
        each = (self.read, self.read_again, self.prepare, self.batch, self.take, self.give, self.give_each)
        rates = (self.take_per_byte, self.copy_per_byte, self.start_s)
        return (*each, self.recall, self.copy, self.shared, *(Cost(rate, rate, rate, "") for rate in rates))

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
            shared=self.shared.scaled(factor),
        )


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

Form = Literal["module", "replicated", "graph"]
"""How a model runs: the user's module as it is, the same under DDP, or as graph segments."""

FORMS: tuple[Form, ...] = get_args(Form)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Where and how the figures of a table were measured.

    Attributes:
        device: its name
        kind: "cpu" or "cuda"
        torch: version of torch
        threads: threads of one rank
        ranks: ranks that were busy at the same time
        cores: usable processor cores
        link: the rate that the links between the ranks were limited to, such as "1 Gb/s"; empty: nothing
    """

    device: str
    kind: str
    torch: str
    threads: int
    ranks: int
    cores: int
    link: str = ""


class OperationKey(NamedTuple):
    """Key of an operation's cost, together with the batch.

    Attributes:
        content: `Op.content`
        execution: "eager" or "compiled"
    """

    content: str
    execution: str


class WholeKey(NamedTuple):
    """Key of the cost of a model in one piece, together with the batch.

    Attributes:
        graph: `Graph.digest`
        form: how it ran
        execution: "eager" or "compiled"
    """

    graph: str
    form: str
    execution: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeCost:
    """Durations of the whole model and its loss, run in one piece at one batch size.

    Attributes:
        forward: forward and loss
        backward: backward, with the accumulation of gradients
        evaluation: forward without gradients, in evaluation mode
    """

    forward: Cost
    backward: Cost
    evaluation: Cost


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFit:
    """Duration of work over a list of tensors: `fixed + per_tensor * tensors + per_byte * bytes`.

    Attributes:
        fixed_s: however many there are [s]
        per_tensor_s: for each tensor [s]
        per_byte_s: for each byte of them [s/byte]
        low: lower end of the 90 % interval, as a multiple of the duration
        high: upper end of the 90 % interval, as a multiple of the duration
        source: where the figures come from

    Example:
        >>> fit = TensorFit(fixed_s=1.0, per_tensor_s=0.5, per_byte_s=0.001, low=0.75, high=1.5, source="example")
        >>> fit.at(tensors=4, nbytes=1000)
        Cost(seconds=4.0, low=3.0, high=6.0, source='example')
    """

    fixed_s: float
    per_tensor_s: float
    per_byte_s: float
    low: float
    high: float
    source: str

    def at(self, *, tensors: int, nbytes: float) -> Cost:
        """Duration for a number of tensors and their bytes together; 0 for none."""
        if tensors == 0:
            return Cost(0.0, 0.0, 0.0, self.source)
        seconds = self.fixed_s + self.per_tensor_s * tensors + self.per_byte_s * nbytes
        return Cost(seconds, self.low * seconds, self.high * seconds, self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNeeds:
    """Memory of a step of the whole network on one device.

    Attributes:
        memory: by the trace of the step
        workspace_bytes: of the library of products [bytes]
    """

    memory: StepMemory
    workspace_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Costs of one job's step in addition to its forward and backward.

    Attributes:
        update: the optimizer's step and the clearing of gradients, by trained parameters
        clip: clipping by global norm, by trained parameters
        load: fetching and collating a batch, by number of samples [samples]
        state_bytes_per_byte: state that the optimizer keeps for a byte of parameter [bytes/byte]
        accumulate: adding the gradients of a further microbatch to those that are there, by trained parameters; None:
            it is in the time of the backward, as where that was measured
        samples: what a sample takes before a step can use it; None: not measured apart
        updates: update by samples of a microbatch, where it depends on them (a host that cannot keep up) [samples]
        needs: memory of a step on a device of the catalog, by samples of a microbatch; empty: not traced [samples]
    """

    update: TensorFit
    clip: TensorFit
    load: Mapping[int, Cost]
    state_bytes_per_byte: float = 0.0
    accumulate: TensorFit | None = None
    samples: SampleCosts | None = None
    updates: Mapping[int, TensorFit] = field(default_factory=dict)
    needs: Mapping[int, StepNeeds] = field(default_factory=dict)

    def update_at(self, samples: int) -> TensorFit:
        """The update of a step, by the samples of its microbatches."""
        return self.updates.get(samples, self.update)

    def needs_at(self, samples: int) -> StepNeeds | None:
        """Memory of a step, by the samples of its microbatches: of the next size that was traced."""
        size = min((known for known in self.needs if known >= samples), default=None)
        return None if size is None else self.needs[size]


class CurveKey(NamedTuple):
    """Which transfer a size curve belongs to.

    Attributes:
        kind: "SEND" for a message, or the token of a collective, such as "AR", perhaps with its numbers behind it, as
            in "AR bf16"; with " host" at the end, the time that a rank's own thread spends: on one of these, or on
            encoding and decoding a bucket, as in "ENC bf16 host"
        ranks: size of the group; 2 for a message, 1 for work of one rank alone
    """

    kind: str
    ranks: int


Curve = tuple[tuple[int, Cost], ...]
"""Sizes [bytes] and durations, ascending in size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTable:
    """Measured costs of one device and its links.

    Attributes:
        fingerprint: where they were measured
        operations: by operation, then by batch size [samples]
        wholes: models in one piece, then by batch size [samples]
        steps: update, clipping and data, by digest of the job
        curves: messages and collectives by size
        interference: compute and communication side by side, by the kind of transfer, "SEND" or "AR"
        between: what a step has besides its instructions; None: not known, or the host runs ahead
        software: for which the costs are estimated, on a machine of the catalog; None: they are measured
    """

    fingerprint: Fingerprint
    operations: Mapping[OperationKey, Mapping[int, OpCost]] = field(default_factory=dict)
    wholes: Mapping[WholeKey, Mapping[int, WholeCost]] = field(default_factory=dict)
    steps: Mapping[str, StepCosts] = field(default_factory=dict)
    curves: Mapping[CurveKey, Curve] = field(default_factory=dict)
    interference: Mapping[str, Interference] = field(default_factory=dict)
    between: Between | None = None
    software: Software | None = None

    def operation(self, content: str, batch: int, execution: str) -> OpCost | None:
        """Cost of an operation, interpolated in the batch size; None where it was never measured.

        Args:
            content: `Op.content`
            batch: samples
            execution: "eager" or "compiled"; an operation is rarely measured compiled, alone: its eager cost then
                stands in
        """
        for kind in dict.fromkeys((execution, "eager")):
            points = self.operations.get(OperationKey(content, kind))
            if points:
                nearest = points[min(points, key=lambda size: abs(size - batch))]
                return OpCost(
                    forward=at_batch({size: cost.forward for size, cost in points.items()}, batch),
                    backward=at_batch({size: cost.backward for size, cost in points.items()}, batch),
                    launches=nearest.launches,
                    complete=nearest.complete,
                )
        return None

    def whole(self, key: WholeKey, batch: int) -> WholeCost | None:
        """Cost of a model in one piece, interpolated in the batch size; None where it was never measured."""
        points = self.wholes.get(key)
        if not points:
            return None
        return WholeCost(
            forward=at_batch({size: cost.forward for size, cost in points.items()}, batch),
            backward=at_batch({size: cost.backward for size, cost in points.items()}, batch),
            evaluation=at_batch({size: cost.evaluation for size, cost in points.items()}, batch),
        )


def merge(tables: Iterable[CostTable]) -> CostTable:
    """One table with the costs of several; where two have the same cost, the later one counts.

    Raises:
        InputError: no table, or tables of different fingerprints
    """
    merged: CostTable | None = None
    for table in tables:
        merged = table if merged is None else _merge_two(merged, table)
    if merged is None:
        raise InputError("there is no cost table to merge", code="cost-table.nothing-to-merge")
    return merged


def _merge_two(earlier: CostTable, later: CostTable) -> CostTable:
    if earlier.fingerprint != later.fingerprint:
        differ = [
            f"{name}: {getattr(earlier.fingerprint, name)!r} and {getattr(later.fingerprint, name)!r}"
            for name in (item.name for item in fields(Fingerprint))
            if getattr(earlier.fingerprint, name) != getattr(later.fingerprint, name)
        ]
        raise InputError(
            f"cost tables of different machines cannot be merged ({'; '.join(differ)})", code="cost-table.other-machine"
        )
    return replace(
        earlier,
        operations=_merge_points(earlier.operations, later.operations),
        wholes=_merge_points(earlier.wholes, later.wholes),
        steps={**earlier.steps, **later.steps},
        curves={**earlier.curves, **later.curves},
        interference={**earlier.interference, **later.interference},
        between=later.between or earlier.between,
    )


def _merge_points(
    earlier: Mapping[_Key, Mapping[int, _Value]], later: Mapping[_Key, Mapping[int, _Value]]
) -> dict[_Key, dict[int, _Value]]:
    keys = dict.fromkeys([*earlier, *later])
    return {key: {**earlier.get(key, {}), **later.get(key, {})} for key in keys}
