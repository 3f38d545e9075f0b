"""What a job was seen to do: the evidence by which kinds of plans are kept or refused.

`examine` gathers it at capture, on real batches of the training data; `program.refusals` says what follows from it.
Plain data, so that a rank, a planner and a table for people read the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from trimaran.base.job import Job

if TYPE_CHECKING:
    from torch import Tensor

Measure = Literal["count", "sum", "size", "table", "samples"]
"""What is taken of a tensor: how many elements are not the ignored one, their sum, how many there are, the sum of a
table's entries at them, its first dim."""

Reduction = Literal["mean", "weight", "sum", "pair", "given", "batch", "gathers", "unknown"]
"""A mean over the samples; over what a `Weight` says; a sum over the samples; `(sum, weight)` as the loss returns it;
over what `Job.loss_weight` says; nothing that adds up over parts of a batch; the same, but it gathers across ranks;
not looked at."""


Metric = Literal["", "gathered", "mean"]
"""How `Job.metric` is computed: not looked at, or there is none; over the outputs of all evaluation data; as the mean
over samples of the metrics of parts of batches, since outputs cannot be put together, or are too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """What the loss of a batch is a mean over, where that is not its samples.

    Attributes:
        tensor: name of a tensor of the batch
        measure: what is taken of it
        shifted: without the first element of the last dim, which no position predicts
        ignored: value of elements that do not count; None: all count
        table: for "table", the weight of each value
        typical: weight of a sample, as seen; where all have it, gradients need not be divided
    """

    tensor: str
    measure: Measure
    shifted: bool = False
    ignored: int | None = None
    table: tuple[float, ...] = ()
    typical: float = 1.0

    def __call__(self, batch: Any) -> "Tensor":
        """The weight of a batch, a scalar in fp64.

        Example:
            >>> import torch
            >>> float(Weight(tensor="target", measure="count", ignored=-100)((None, torch.tensor([3, -100, 5]))))
            2.0
        """
        # A planner reads this module without torch.
        import torch

        from trimaran.user_code.batches import name_tensors

        tensor = name_tensors(batch)[self.tensor]
        if self.shifted:
            tensor = tensor[..., 1:]
        if self.measure in ("size", "samples"):
            size = tensor.numel() if self.measure == "size" else len(tensor)
            return torch.tensor(float(size), dtype=torch.float64, device=tensor.device)
        if self.measure == "sum":
            return tensor.sum(dtype=torch.float64)
        counted = torch.ones_like(tensor, dtype=torch.bool) if self.ignored is None else tensor != self.ignored
        if self.measure == "count":
            return counted.sum(dtype=torch.float64)
        table = torch.tensor(self.table, dtype=torch.float64, device=tensor.device)
        return table[tensor.clamp(0, len(self.table) - 1)].mul(counted).sum()

    @property
    def text(self) -> str:
        """In words.

        Example:
            >>> Weight(tensor="labels", measure="count", shifted=True, ignored=-100).text
            'elements of "labels" after the first that are not -100'
        """
        after = " after the first" if self.shifted else ""
        but = "" if self.ignored is None else f" that are not {self.ignored}"
        if self.measure == "samples":
            return f'the samples that Job.collate leaves in "{self.tensor}"'
        if self.measure == "sum":
            return f'the sum of "{self.tensor}"'
        if self.measure == "table":
            return f'the class weights of "{self.tensor}"{after}{but}'
        return f'elements of "{self.tensor}"{after}{but}'


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerTraits:
    """What a job's optimizer does with its parameters.

    Attributes:
        class_name: of the optimizer; empty where nothing is trained
        separable: every parameter is updated as it would be alone
        elementwise: so is every element of it
        needs_closure: its step computes the loss again, or comes in two halves
        draws: its step draws random numbers
        keeps_gradients: its `zero_grad` leaves gradients that are not zero
        hooked: hooks were registered on its step
        needs_metric: the schedule's step needs a metric
        schedule_draws: the schedule sets other options each time: it draws them, or reads a clock
        schedule_reads: it sets them by what is given to the optimizer: how much, its values, its gradients or its state
        extra: parameters that it holds and was not given, by name where the model has them
        foreign: those of them that the model has not
        missing: names of parameters that it was given and does not hold: they are not updated
        reason: what it does otherwise, where it is not elementwise
        options: for each name, the options of its group: at first, and after each of a few steps of the schedule
        kept: what it keeps of small tensors in the place of some parameters, by name, and their shape: tensors without
            values, of fp64 where they are of the dtype of the parameter
        forgets: what it or the schedule does otherwise when it is put back from its own state_dict(); empty: nothing
    """

    class_name: str = ""
    separable: bool = True
    elementwise: bool = True
    needs_closure: bool = False
    draws: bool = False
    keeps_gradients: bool = False
    hooked: bool = False
    needs_metric: bool = False
    schedule_draws: bool = False
    schedule_reads: bool = False
    extra: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    reason: str = ""
    forgets: str = ""
    options: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict, repr=False, compare=False)
    kept: Mapping[str, tuple[Sequence[int], Mapping[Any, Any]]] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What a job was seen to do.

    Attributes:
        not_looked: why the job was not run on parts of batches; empty: it was
        returned_in_evaluation: its factory returned the model in evaluation mode
        kept_in_evaluation: modules that stay in evaluation mode while the model is trained
        reduction: how the loss is reduced over a batch
        logs_over_ranks: the forward or the loss communicates, and nothing that is trained hears of it
        follows_ranks: the forward or the loss does something else among several ranks, and does not communicate
        weight: for "weight", over what it is a mean
        microbatches: largest difference between the gradients of a batch in microbatches and as a whole, of the
            largest gradient of the same tensor; batch norm and random draws apart. None: not known
        replicas: the same for replicas that have a part each
        tolerance: such a difference that is rounding
        padded: the difference is there because each part was padded on its own
        stream: the training data is an `IterableDataset`
        data_carries: it, or its batch, differs also under the same seeds: the data set or the collate keeps something
        moved: what gives another value for the same samples under the same seeds, by what no look can put back, such
            as an iterator; empty: nothing
        read_together: a sample depends on those that are read with it (`__getitems__`)
        collate_draws: a batch that is made twice of the same samples differs
        sliceable: the first dim of every tensor of a batch counts its samples
        others: names of what a batch holds besides tensors
        sizes: tensors of a batch that differ from batch to batch in more than their first dim
        unused: parameters that never had a gradient
        varying: parameters that had a gradient in some batches
        draws: the forward or the loss draws random numbers
        own_generator: they draw from a generator that they hold, and other numbers for other samples
        restarts: they draw other numbers for other samples, and from the same state in each call
        holds_generator: they draw from a generator that they hold, of torch, Python or NumPy
        host_draws: they draw from a generator of Python or NumPy
        branches: what the forward does differs with the data
        mixed_at: where the losses of parts do not add up, the first line of the user's code that gives a batch, or
            reads of it, what is not made of what it gives its parts; empty: not known
        synced: batch norms that wait for other ranks (SyncBatchNorm)
        failing: sizes of parts that fail in training, each with how [samples]: batch norm may need two
        batches: samples of a global batch, and of the last of each epoch where that is smaller and trained on
        last_unknown: the last batch of an epoch may be of any size: a stream does not say how long it is
        left_out: samples that Job.collate leaves out of a batch, of those that were read
        buffers: others that a forward changes
        written: parameters that a forward changes
        scripted: modules of torch.jit, which take no hooks
        overlapping: a trained parameter, and another tensor of the model that lies in the same memory, by name
        renamed: entries of its `state_dict` that are its tensors under other names, or made of them
        readers: parts of the job that hold parts of the model, each with what it holds
        hollow: trained parameters without elements
        gradient_hooks: parameters with hooks of the user's on their gradients
        carried: values in Python, outside of buffers, that each step changes
        carried_of_samples: those of them that it changes otherwise for other samples
        dtypes: dtypes of parameters that are not that of the first trained one, each with the parameter
        part_failed: how a part of a batch failed that as a whole did not; empty: none did
        metric: how that of an evaluation is computed; empty: there is none, or that is not known
        optimizer: what the optimizer does with its parameters
        precision: of the job
        accepted: the user has asked for plans that train something else, too
        seconds: what it took to look [s]
    """

    not_looked: str = ""
    returned_in_evaluation: bool = False
    kept_in_evaluation: tuple[str, ...] = ()
    reduction: Reduction = "unknown"
    logs_over_ranks: bool = False
    follows_ranks: bool = False
    weight: Weight | None = None
    microbatches: float | None = None
    replicas: float | None = None
    tolerance: float = 0.0
    padded: bool = False
    stream: bool = False
    data_carries: bool = False
    moved: str = ""
    read_together: bool = False
    collate_draws: bool = False
    sliceable: bool = True
    others: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    varying: tuple[str, ...] = ()
    draws: bool = False
    own_generator: bool = False
    restarts: bool = False
    holds_generator: bool = False
    host_draws: bool = False
    branches: bool = False
    mixed_at: str = ""
    synced: tuple[str, ...] = ()
    failing: tuple[tuple[int, str], ...] = ()
    batches: tuple[int, ...] = ()
    last_unknown: bool = False
    left_out: int = 0
    buffers: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    scripted: tuple[str, ...] = ()
    overlapping: tuple[str, ...] = ()
    renamed: tuple[str, ...] = ()
    readers: tuple[tuple[str, str], ...] = ()
    hollow: tuple[str, ...] = ()
    gradient_hooks: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()
    carried_of_samples: tuple[str, ...] = ()
    dtypes: tuple[tuple[str, str], ...] = ()
    part_failed: str = ""
    metric: Metric = ""
    optimizer: OptimizerTraits = field(default_factory=OptimizerTraits)
    precision: str = "fp32"
    accepted: bool = False
    seconds: float = 0.0

    @property
    def leaves_out(self) -> bool:
        """`Job.collate` may leave out samples."""
        return bool(self.left_out) or (self.weight is not None and self.weight.measure == "samples")

    @property
    def is_random(self) -> bool:
        """Something of a step is drawn."""
        drawn = self.draws or self.host_draws or self.own_generator or self.holds_generator
        return drawn or self.collate_draws or self.restarts

    @property
    def splits(self) -> bool:
        """Microbatches give the gradients and buffers of the whole batch."""
        return self.microbatches is None or self.microbatches <= self.tolerance

    @property
    def replicates(self) -> bool:
        """Replicas with a part each give the gradients and buffers of the whole batch."""
        return self.replicas is None or self.replicas <= self.tolerance


def typical_weight(job: Job) -> float:
    """What `Job.loss_weight` gives for a sample, where it was found out; else 1.

    Args:
        job: the job
    """
    return job.loss_weight.typical if isinstance(job.loss_weight, Weight) else 1.0


def weighed(job: Job, behaviour: Behaviour | None, *, splits: bool = True) -> Job:
    """The job with the weight of its loss, as it was found out, and its metric over all evaluation data.

    Args:
        job: the job
        behaviour: what was seen of it; None: nobody has looked
        splits: parts of a batch are added up; the mean over a whole batch is what the loss says
    """
    if behaviour is not None and behaviour.metric == "gathered" and job.metric is not None:
        job = replace(job, metric=WholeMetric(job.metric))
    if not splits:
        return replace(job, loss_weight=None)
    if behaviour is None or job.loss_weight is not None:
        return job
    if behaviour.reduction == "mean" and behaviour.sliceable and job.collate is not None:
        from trimaran.user_code.batches import WholeBatches

        job = replace(job, collate=WholeBatches(job.collate))
    if behaviour.reduction == "weight":
        return replace(job, loss_weight=behaviour.weight)
    if behaviour.reduction == "sum":
        from trimaran.user_code.batches import SUMMED

        return replace(job, loss_weight=SUMMED)
    return job


def kept_outside(behaviour: Behaviour | None) -> tuple[str, ...]:
    """What a step takes over from the one before it, and is neither a parameter nor a buffer of the model.

    Args:
        behaviour: what was seen of the job; None: nobody has looked

    Example:
        >>> kept_outside(Behaviour(data_carries=True, buffers=("mean", "loss.centers")))
        ('what the data set or Job.collate keeps of each read', 'loss.centers')
    """
    if behaviour is None:
        return ()
    generator = ("the state of a generator that the job holds",) if behaviour.holds_generator else ()
    data = ("what the data set or Job.collate keeps of each read",) if behaviour.data_carries else ()
    return (*generator, *data, *(name for name in behaviour.buffers if name.startswith(OF_LOSS)))


TOO_LARGE = "the model is too large to run here"
"""Why a job was not looked at, where that is no fault of it."""

OF_LOSS = "loss."
"""How the names of buffers begin that are of the loss, not of the model."""


def for_evaluation(job: Job) -> Job:
    """The job with its own collate where the metric is over all outputs: samples that it leaves out count nowhere.

    Args:
        job: as it is trained
    """
    from trimaran.user_code.batches import WholeBatches

    if isinstance(job.metric, WholeMetric) and isinstance(job.collate, WholeBatches):
        return replace(job, collate=job.collate.collate)
    return job


class WholeMetric:
    """A `Job.metric` that is computed over all evaluation data at once.

    Args:
        metric: the job's
    """

    def __init__(self, metric: Callable[[Any, Any], float]) -> None:
        self.metric = metric

    def __call__(self, output: Any, target: Any) -> float:
        """The metric of some samples."""
        return self.metric(output, target)
