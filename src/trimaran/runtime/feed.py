"""The training data: in which order, and who loads what.

The order of the samples of an epoch is a permutation drawn from the job's seed and the number of the epoch. Global
batch k is the k-th run of `global_batch_size` of them. Which of its samples go to which replica and microbatch is in
`shares`. So every plan trains on the same global batches, and a run can go on at any batch of any epoch.

Only ranks whose stage reads the data load it: the first stage of a pipeline, the last one, and what lies between
where it reads a part of the batch.
"""

from collections.abc import Iterator

import torch

from trimaran.errors import InputError
from trimaran.job import Job
from trimaran.runtime.loading import Share, Shares, dataset_length
from trimaran.runtime.seeds import derive_seed


def sample_order(samples: int, *, seed: int, epoch: int) -> torch.Tensor:
    """The order in which an epoch visits its samples.

    Args:
        samples: of the data set
        seed: of the job
        epoch: number of the epoch, from 0

    Returns:
        Each of the numbers 0 to `samples - 1` once, int64.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "order", epoch))
    return torch.randperm(samples, generator=generator)


def check_length(samples: int, job: Job) -> None:
    """Refuse training data that do not fill one global batch.

    Args:
        samples: of the data set
        job: says how many a global batch has

    Raises:
        InputError: fewer samples than that
    """
    if samples < job.global_batch_size:
        raise InputError(
            f"the data set has {samples} samples, fewer than one global batch of {job.global_batch_size}: "
            "choose a smaller global_batch_size",
            samples=samples,
            batch=job.global_batch_size,
        )


class Feed:
    """The training data of one rank.

    Args:
        job: makes the data set and the batches
        replicas: data-parallel replicas
        microbatches: of each replica
        replica: this rank's
        reads: this rank's stage reads the data
        samples: of the data set; None: look
        workers: processes that load beside the training
        pin_memory: copy batches to memory from which a GPU can fetch them

    Attributes:
        samples: of the data set
        epoch: number of the epoch that is under way, or comes next
        index: number of the global batch in it that comes next

    Raises:
        InputError: the data set is smaller than a batch, or has no length
    """

    def __init__(
        self,
        job: Job,
        *,
        replicas: int,
        microbatches: int,
        replica: int,
        reads: bool,
        samples: int | None = None,
        workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        self._job = job
        self._replicas, self._microbatches, self._replica = replicas, microbatches, replica
        self._workers, self._pin_memory = workers, pin_memory
        dataset = job.dataset() if reads or samples is None else None
        self._dataset = dataset if reads else None
        self.samples = dataset_length(dataset) if samples is None else samples
        check_length(self.samples, job)
        self.epoch = 0
        self.index = 0

    @property
    def batches(self) -> int:
        """Global batches of an epoch."""
        full, left = divmod(self.samples, self._job.global_batch_size)
        return full + (0 if self._job.drop_last or left < self._replicas else 1)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know of samples that are left out."""
        left = self.samples % self._job.global_batch_size
        if self._job.drop_last or not 0 < left < self._replicas:
            return ()
        return (
            f"the last {left} samples of each epoch are left out: they are fewer than the {self._replicas} replicas",
        )

    def go_to(self, epoch: int, index: int = 0) -> None:
        """Go on at a batch.

        Args:
            epoch: number of the epoch, from 0
            index: number of the global batch in it, from 0
        """
        self.epoch, self.index = epoch, index

    def shares(self) -> Iterator[Share]:
        """This rank's shares of the global batches that are left of the epoch; then the epoch is over."""
        shares = Shares(
            sample_order(self.samples, seed=self._job.seed, epoch=self.epoch),
            batch=self._job.global_batch_size,
            replicas=self._replicas,
            microbatches=self._microbatches,
            replica=self._replica,
        )
        numbers = range(self.index, self.batches)
        loaded = shares.load(
            numbers,
            self._dataset,
            self._job,
            seed=derive_seed(self._job.seed, "samples", self.epoch),
            workers=self._workers,
            pin_memory=self._pin_memory,
        )
        for number, share in zip(numbers, loaded, strict=True):
            # The batch that is under way counts as done, should somebody ask in the middle of its step.
            self.index = number + 1
            yield share
        self.epoch, self.index = self.epoch + 1, 0
