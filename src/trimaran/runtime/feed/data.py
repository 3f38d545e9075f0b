"""The training data of a job, and whether they will do."""

from typing import Any

from trimaran.errors import InputError
from trimaran.graph.datasets import check_map_style
from trimaran.job import Job
from trimaran.user_errors import users


def make_dataset(job: Job) -> Any:
    """The training data of a job.

    Raises:
        InputError: the job's function failed
    """
    with users("Job.dataset"):
        return job.dataset()


def make_evaluation_dataset(job: Job) -> Any:
    """The evaluation data of a job that has them.

    Raises:
        InputError: the job has none, or its function failed
    """
    if job.evaluation_dataset is None:
        raise InputError(f"the job {job.name!r} has no evaluation_dataset: give it one, or session.evaluate(dataset)")
    with users("Job.evaluation_dataset"):
        return job.evaluation_dataset()


def dataset_length(dataset: Any) -> int:
    """Samples of a data set.

    Raises:
        InputError: it is not map-style, or has no length, or one of 0
    """
    check_map_style(dataset)
    length = len(dataset)
    if length < 1:
        raise InputError("the data set is empty")
    return length


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


def check_replicas(job: Job, replicas: int) -> None:
    """Refuse global batches that leave a replica without a sample.

    Args:
        job: says how many a global batch has
        replicas: data-parallel replicas

    Raises:
        InputError: fewer samples than replicas
    """
    if job.global_batch_size < replicas:
        raise InputError(
            f"a global batch of {job.global_batch_size} samples leaves some of {replicas} replicas without any: take "
            "fewer replicas, or a larger global_batch_size",
            batch=job.global_batch_size,
            replicas=replicas,
        )
