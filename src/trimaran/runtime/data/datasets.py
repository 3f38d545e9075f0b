"""The training data of a job, and checks of them.

Every rank makes them anew, so they are made under a seed of the job: data that are drawn from the global generators are
the same on every rank, in the comparison with one process, and in a run that continues.
"""

from typing import Any

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.base.user_errors import users
from trimaran.program.strategy import Feeding
from trimaran.user_code.datasets import check_map_style, is_stream, stream_length
from trimaran.user_code.randomness import derive_seed, seeded


def make_dataset(job: Job) -> Any:
    """The training data of a job. Random states are afterwards what they were.

    Raises:
        InputError: the job's function failed
    """
    with users("Job.dataset"), seeded(derive_seed(job.seed, "dataset")):
        return job.dataset()


def make_evaluation_dataset(job: Job) -> Any:
    """The evaluation data of a job that has them. Random states are afterwards what they were.

    Raises:
        InputError: the job has none, or its function failed
    """
    if job.evaluation_dataset is None:
        raise InputError(f"the job {job.name!r} has no evaluation_dataset: give it one, or session.evaluate(dataset)")
    with users("Job.evaluation_dataset"), seeded(derive_seed(job.seed, "evaluation dataset")):
        return job.evaluation_dataset()


def data_length(dataset: Any) -> int | None:
    """Samples of data of either kind; None: a stream that does not say.

    Args:
        dataset: map-style, or a stream

    Raises:
        InputError: it is neither, or is empty
    """
    return stream_length(dataset) if is_stream(dataset) else dataset_length(dataset)


def dataset_length(dataset: Any) -> int:
    """Samples of a data set that is map-style.

    Raises:
        InputError: it is not map-style, or has no length, or one of 0
    """
    check_map_style(dataset)
    length = len(dataset)
    if length < 1:
        raise InputError("the data set is empty", code="feed.empty-data-set")
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
            code="feed.fewer-than-one-batch",
            samples=samples,
            batch=job.global_batch_size,
        )


def check_streamed(job: Job, feeding: Feeding) -> None:
    """Refuse what needs numbered samples, where there is a stream.

    Args:
        job: with a stream
        feeding: how it is to be read

    Raises:
        InputError: a sampler, or workers
    """
    if job.sampler is not None:
        raise InputError(
            "Job.sampler gives numbers of samples, and Job.dataset makes a stream, whose samples have none: order the "
            "samples in the stream itself, or make a map-style data set"
        )
    if feeding.workers:
        raise InputError(
            f"{feeding.workers} workers a rank cannot read a stream: each would read all of it, and one worker is no "
            "faster than the rank's own thread. Use workers=0; let the stream itself read ahead in threads; or make a "
            "map-style data set",
            code="feed.workers-on-stream",
            workers=feeding.workers,
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
            code="feed.batch-too-small",
            batch=job.global_batch_size,
            replicas=replicas,
        )
