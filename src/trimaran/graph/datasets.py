"""What a data set must be able to do: samples with numbers (map-style), or samples one after the other (a stream)."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from trimaran.errors import InputError
from trimaran.graph.data_faults import describe, reading_fault, streaming_fault


def is_stream(dataset: Any) -> bool:
    """Whether samples come one after the other, without numbers, as those of torch's `IterableDataset`.

    Args:
        dataset: what `Job.dataset` made
    """
    if isinstance(dataset, IterableDataset | DataLoader):
        return True
    return hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")


def stream_length(dataset: Any) -> int | None:
    """How many samples a stream says that it has; None: it does not say.

    Args:
        dataset: a stream

    Raises:
        InputError: it can be gone through only once, or is a loader of batches; or its `__len__` failed
    """
    name = type(dataset).__name__
    if isinstance(dataset, DataLoader):
        raise InputError(
            f"Job.dataset made a {name}, which gives batches: give its data set, and what groups them as "
            "Job.global_batch_size, Job.collate and Job.sampler",
            code="dataset.is-data-loader",
            type=name,
        )
    if isinstance(dataset, Iterator) and not isinstance(dataset, IterableDataset):
        raise InputError(
            f"Job.dataset must make data that can be gone through more than once; a {name} is an iterator, which is "
            "used up by one epoch, or by a look at its first samples. Make an IterableDataset whose __iter__ begins "
            "anew, or keep the samples, as in Job(dataset=lambda: list(make_stream()))",
            code="dataset.is-iterator",
            type=name,
        )
    if not hasattr(type(dataset), "__len__"):
        return None
    try:
        return len(dataset)
    except (NotImplementedError, TypeError):
        # What torch's own streams raise that do not know.
        return None
    except Exception as error:
        raise InputError(f"{name}.__len__ of the stream failed: {describe(error)}", type=name) from error


def first_samples(dataset: Any, most: int) -> list[Any]:
    """The first samples of a data set, of either kind.

    Args:
        dataset: map-style, or a stream
        most: so many, or as many as there are

    Raises:
        InputError: it is neither, or reading raised
    """
    samples: list[Any] = []
    if is_stream(dataset):
        stream_length(dataset)
        try:
            samples.extend(islice(iter(dataset), most))
        except Exception as error:
            raise InputError(streaming_fault(error, len(samples)).text, samples=(len(samples),)) from error
        return samples
    check_map_style(dataset)
    for number in range(min(most, len(dataset))):
        try:
            samples.append(dataset[number])
        except Exception as error:
            raise InputError(reading_fault(error, [number]).text, samples=(number,)) from error
    return samples


def check_map_style(dataset: Any) -> None:
    """Refuse what has no length or no index, where samples are wanted by their numbers.

    Args:
        dataset: what `Job.dataset` made

    Raises:
        InputError: it is a stream, or has no length or no index
    """
    name = type(dataset).__name__
    if is_stream(dataset):
        stream_length(dataset)
        raise InputError(
            f"a map-style data set is needed here, with a length and an index; {name} is a stream, whose samples have "
            "no numbers. Write the stream once to files or arrays with an index, or keep it in memory, as in "
            "Job(dataset=lambda: list(make_stream()))",
            type=name,
        )
    if not hasattr(dataset, "__getitem__"):
        raise InputError(
            "Job.dataset must make a map-style data set, with a length and an index, or an IterableDataset; "
            f"{name} has no index",
            code="dataset.no-index",
            type=name,
        )
    try:
        len(dataset)
    except Exception as error:
        if hasattr(type(dataset), "__len__") and not isinstance(error, NotImplementedError):
            raise InputError(
                f"{name}.__len__ of the data set failed: {describe(error)}", code="dataset.length-fails", type=name
            ) from error
        raise InputError(
            f"Job.dataset must make a map-style data set, with a length and an index; {name} has no length: give it "
            "__len__, the number of its samples",
            code="dataset.no-length",
            type=name,
        ) from None
