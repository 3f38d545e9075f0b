"""Parts of an epoch: its steps, the small last one, and the evaluation after them.

    global batch   ████ ████ ████ ██        ▒▒▒▒ ▒
                   └ full steps ┘ └ last    └ evaluation, forwards alone

The runtime spreads a small batch as evenly as it can; here its largest shares are priced.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from trimaran.base.errors import InputError
from trimaran.graph.types import Graph
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.strategy import Strategy
from trimaran.program.types import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochData:
    """The data of an epoch.

    Attributes:
        samples: that an epoch trains on; None: not known, as of a stream without a length
        evaluation_samples: of the data that are evaluated after it; 0: there is no evaluation; None: not known
        drop_last: the last, smaller batch is left out
        numbered: samples have numbers, by which workers and a cache find them; False: a stream
    """

    samples: int | None
    evaluation_samples: int | None = 0
    drop_last: bool = False
    numbered: bool = True

    def check_known(self) -> None:
        """Refuse data of which it is not known how many samples they have.

        Raises:
            InputError: they are such
        """
        _known(self.samples, "an epoch")
        _known(self.evaluation_samples, "an evaluation")

    def full_steps(self, batch: int) -> int:
        """Updates of an epoch on full batches.

        Args:
            batch: samples of one update, over all ranks

        Raises:
            InputError: it is not known how many samples there are
        """
        return _known(self.samples, "an epoch") // batch

    def steps(self, *, batch: int) -> int:
        """Updates of an epoch.

        Args:
            batch: samples of one update, over all ranks

        Raises:
            InputError: it is not known how many samples there are

        Example:
            >>> EpochData(samples=100).steps(batch=32), EpochData(samples=100, drop_last=True).steps(batch=32)
            (4, 3)
        """
        full, left = divmod(_known(self.samples, "an epoch"), batch)
        return full + (0 if self.drop_last or not left else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPart:
    """Batches of an epoch that are alike.

    Attributes:
        count: how many
        strategy: by which they run; a batch of few samples has fewer microbatches
        batch: samples of one, rounded up so that all shares are as large as the largest
        training: a training step; else an evaluation
    """

    count: int
    strategy: Strategy
    batch: int
    training: bool

    def lower(self, graph: Graph, *, clip: bool) -> Program:
        """Instructions of each rank for one of them.

        Args:
            graph: the job's
            clip: the job clips its gradients
        """
        if self.training:
            return lower(graph, self.strategy, batch=self.batch, clip=clip)
        return lower_evaluation(graph, self.strategy, batch=self.batch)


def extra_parts(strategy: Strategy, epoch: EpochData, *, batch: int) -> Iterator[EpochPart]:
    """The parts of an epoch besides its full training steps.

    Args:
        strategy: with boundaries
        epoch: the data
        batch: samples of one update, over all ranks

    Example:
        >>> [(part.count, part.batch, part.training) for part in extra_parts(
        ...     Strategy(dp=2), EpochData(samples=101, evaluation_samples=70), batch=32)]
        [(1, 6, True), (2, 32, False), (1, 6, False)]
    """
    left = _known(epoch.samples, "an epoch") % batch
    if left and not epoch.drop_last:
        yield _small(strategy, left, training=True)
    full, left = divmod(_known(epoch.evaluation_samples, "an evaluation"), batch)
    if full:
        yield EpochPart(count=full, strategy=strategy, batch=batch, training=False)
    if left:
        yield _small(strategy, left, training=False)


def _known(samples: int | None, of: str) -> int:
    if samples is None:
        raise InputError(
            f"it is not known how many samples {of} has, as its stream has no length: give the stream __len__, or plan "
            "for the step (--objective throughput)",
            code="plan.epoch-length-unknown",
        )
    return samples


def _small(strategy: Strategy, samples: int, *, training: bool) -> EpochPart:
    used = max(1, min(strategy.microbatches, samples // strategy.dp))
    share = -(-samples // strategy.dp)
    return EpochPart(
        count=1,
        strategy=replace(strategy, microbatches=used),
        batch=strategy.dp * used * -(-share // used),
        training=training,
    )
