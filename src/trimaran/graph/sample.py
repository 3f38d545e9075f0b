"""The model of a job, and a small batch of its own data, with which the model can be looked at."""

import copy
import random
from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.data import default_collate

from trimaran.errors import InputError
from trimaran.graph.batches import cast_batch, move_batch, name_tensors
from trimaran.graph.data_faults import batching_fault, reading_fault
from trimaran.graph.datasets import check_map_style, first_samples, is_stream
from trimaran.graph.training_mode import begin_training
from trimaran.graph.untouched import preserved_randomness
from trimaran.job import Job
from trimaran.user_errors import users

SAMPLES = 3  # torch.export takes the sizes 0 and 1 for constants, and what is shown must also hold for one sample less

MOST_LOOKED_AT = 24
"""Samples of a batch that is looked at, where fewer fail."""


def make_model(job: Job) -> nn.Module:
    """The model of a job as every rank makes it: under the job's seed, in the job's precision, in training mode.

    Random states are put back, so that making a model does not change what follows.

    Raises:
        InputError: the factory failed, or made something else
    """
    with preserved_randomness():
        torch.manual_seed(job.seed)
        model = _call(job, "model")
    if not isinstance(model, nn.Module):
        raise InputError(
            f"Job.model must make a torch.nn.Module; it made a {type(model).__name__}", code="model.not-a-module"
        )
    return cast_model(job, begin_training(model))


def cast_model(job: Job, model: nn.Module) -> nn.Module:
    """The model in the job's precision: fp64 converts it in place; bf16 is autocast, which keeps fp32 weights."""
    return model.double() if job.precision == "fp64" else model


class Samples:
    """Samples of the training data of a job, of which batches are made.

    Args:
        job: the job
        device: where batches are wanted
        most: of a stream, so many samples are read
        keep: a sample is read once, so that it is the same in every batch although reading draws

    Attributes:
        count: number of samples that can be asked for
        stream: the training data is a stream
        total: number of samples of an epoch; None: the data is a stream

    Raises:
        InputError: the data cannot be made, or has too few samples
    """

    def __init__(
        self, job: Job, device: torch.device | str = "cpu", *, most: int = 2 * SAMPLES, keep: bool = False
    ) -> None:
        self._job, self._device, self._keep = job, device, keep
        self._kept: dict[int, Any] = {}
        with preserved_randomness():
            dataset = _call(job, "dataset")
            self.stream = is_stream(dataset)
            self.total: int | None = None
            if self.stream:
                dataset = first_samples(dataset, most)
            else:
                check_map_style(dataset)
                self.total = len(dataset)
        self._dataset = dataset
        self.count = len(dataset)
        if self.count < SAMPLES:
            raise InputError(
                f"the training data has {self.count} samples; at least {SAMPLES} are needed",
                code="dataset.too-few-samples",
                samples=self.count,
            )

    def batch(self, numbers: Sequence[int], *, keep: bool | None = None) -> Any:
        """A batch as `Job.collate` makes it, in the job's precision; no random state moves.

        Args:
            numbers: of the samples
            keep: in place of that of all batches

        Raises:
            InputError: a sample cannot be read, or they cannot be collated
        """
        keep = self._keep if keep is None else keep
        with preserved_randomness():
            samples = [self._sample(number) if keep else self._drawn(number) for number in numbers]
            batch = _collated(self._job, samples, numbers)
        batch = cast_batch(batch, torch.float64) if self._job.precision == "fp64" else batch
        return move_batch(batch, self._device)

    def draws(self) -> bool:
        """Whether a sample that is read twice differs."""
        if self.stream:
            return False
        with preserved_randomness():
            return not _alike(_read(self._dataset, 0), _read(self._dataset, 0))

    def collate_draws(self, numbers: Sequence[int]) -> bool:
        """Whether a batch that is made twice of the same samples differs.

        Args:
            numbers: of samples that are kept
        """
        with preserved_randomness():
            first, second = (
                name_tensors(_collated(self._job, [self._sample(number) for number in numbers], numbers))
                for _ in range(2)
            )
        return not _alike(first, second)

    def _sample(self, number: int) -> Any:
        if number not in self._kept:
            self._kept[number] = self._drawn(number)
        try:
            # Its tensors may get into a batch as they are, and be written to.
            return copy.deepcopy(self._kept[number])
        except Exception:  # noqa: BLE001 - whatever it is, the samples of most data sets can be copied
            return self._kept[number]

    def _drawn(self, number: int) -> Any:
        """A sample that is the same in every batch, and on every rank, although reading it may draw."""
        seed = hash((self._job.seed, number)) % 2**32
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        numpy.random.seed(seed)  # noqa: NPY002 - data sets draw from this one
        return _read(self._dataset, number)


def _alike(one: Any, other: Any) -> bool:
    """Whether the tensors, arrays and numbers of two samples are the same."""
    return all(map(_equal, pytree.tree_leaves(one), pytree.tree_leaves(other)))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        # What is no number is not equal to itself.
        return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())
    if isinstance(one, numpy.ndarray) and isinstance(other, numpy.ndarray):
        return one.shape == other.shape and bool(numpy.all((one == other) | ((one != one) & (other != other))))
    return not isinstance(one, int | float) or one == other or one != one


def differing_sizes(samples: Samples) -> tuple[str, ...]:
    """The tensors that differ in more than their first dim between batches of equally many samples.

    Args:
        samples: of which batches are made

    Raises:
        InputError: a sample cannot be read, or they cannot be collated
    """
    starts = sorted({0, max(0, samples.count // 2 - SAMPLES), samples.count - SAMPLES})
    batches = [samples.batch(range(start, start + SAMPLES)) for start in starts]
    shapes = [{name: tensor.shape[1:] for name, tensor in name_tensors(batch).items()} for batch in batches]
    names = dict.fromkeys(name for one in shapes for name in one)
    return tuple(name for name in names if len({one.get(name) for one in shapes}) > 1)


def largest_look(job: Job, samples: Samples) -> int:
    """Samples of the largest batch that a job is looked at with: where fewer fail, twice as many are tried."""
    return min(samples.count, job.global_batch_size, MOST_LOOKED_AT)


def sample_batch(job: Job, device: torch.device | str = "cpu") -> Any:
    """A batch of the first samples of the training data, in the job's precision.

    Raises:
        InputError: the data cannot be made, indexed or collated, or has too few samples
    """
    return Samples(job, device).batch(range(SAMPLES))


def _read(dataset: Any, number: int) -> Any:
    try:
        return dataset[number]
    except Exception as error:
        raise InputError(reading_fault(error, [number]).text, samples=(number,)) from error


def _collated(job: Job, samples: list[Any], numbers: Sequence[int]) -> Any:
    try:
        return (job.collate or default_collate)(samples)
    except Exception as error:
        fault = batching_fault(error, samples, numbers, own=job.collate is not None)
        raise InputError(fault.text, code="dataset.collate-fails", samples=fault.samples) from error


def _call(job: Job, name: str) -> Any:
    with users(f"Job.{name}"):
        return getattr(job, name)()
