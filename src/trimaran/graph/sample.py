"""The model of a job, and a small batch of its own data, with which the model can be looked at."""

from typing import Any

import torch
from torch import nn
from torch.utils.data import default_collate

from trimaran.errors import InputError
from trimaran.graph.batches import cast_batch, count_samples, move_batch
from trimaran.graph.data_faults import batching_fault
from trimaran.graph.datasets import first_samples
from trimaran.graph.untouched import preserved_randomness
from trimaran.job import Job

SAMPLES = 3  # torch.export takes the sizes 0 and 1 for constants, and what is shown must also hold for one sample less


def make_model(job: Job) -> nn.Module:
    """The model of a job as every rank makes it: under the job's seed, in the job's precision.

    Random states are put back, so that making a model does not change what follows.

    Raises:
        InputError: the factory failed, or made something else
    """
    with preserved_randomness():
        torch.manual_seed(job.seed)
        model = _call(job, "model")
    if not isinstance(model, nn.Module):
        raise InputError(f"Job.model must make a torch.nn.Module; it made a {type(model).__name__}")
    return cast_model(job, model)


def cast_model(job: Job, model: nn.Module) -> nn.Module:
    """The model in the job's precision: fp64 converts it in place; bf16 is autocast, which keeps fp32 weights."""
    return model.double() if job.precision == "fp64" else model


def sample_batch(job: Job, device: torch.device | str = "cpu") -> Any:
    """A batch of the first samples of the training data, in the job's precision.

    Raises:
        InputError: the data cannot be made, indexed or collated, or has too few samples
    """
    with preserved_randomness():
        dataset = _call(job, "dataset")
        samples = first_samples(dataset, SAMPLES)
        if len(samples) < SAMPLES:
            raise InputError(
                f"the training data has {len(samples)} samples; at least {SAMPLES} are needed", samples=len(samples)
            )
        batch = _collated(job, samples)
    if count_samples(batch) != SAMPLES:
        raise InputError(
            f"from {SAMPLES} samples collate made a batch of {count_samples(batch)}: "
            "the first dim counts samples, as the data is shared out by it",
            samples=count_samples(batch),
        )
    return move_batch(cast_batch(batch, torch.float64) if job.precision == "fp64" else batch, device)


def _collated(job: Job, samples: list[Any]) -> Any:
    try:
        return (job.collate or default_collate)(samples)
    except Exception as error:
        fault = batching_fault(error, samples, range(SAMPLES), own=job.collate is not None)
        raise InputError(fault.text, samples=fault.samples) from error


def _call(job: Job, name: str) -> Any:
    try:
        return getattr(job, name)()
    except Exception as error:
        raise InputError(f"Job.{name} failed: {type(error).__name__}: {error}") from error
