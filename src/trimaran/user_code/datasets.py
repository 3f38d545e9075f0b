"""What a data set must be able to do: samples with numbers (map-style), or samples one after the other (a stream).

What is wrong with the user's samples: which of them, what, and where in the user's code.

A fault is plain data. A worker that loads can send it as it is, where an exception would arrive with a traceback as
its text.
"""

import errno
import pickle
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, IterableDataset

from trimaran.base.errors import InputError
from trimaran.base.units import format_some
from trimaran.base.user_errors import place_of, summary, user_lines, users

_NAMED = 8


class ReadFault(NamedTuple):
    """What went wrong with a microbatch.

    Attributes:
        text: which samples, what, and what to do
        samples: their numbers in the data set
    """

    text: str
    samples: tuple[int, ...]

    def error(self, code: str | None = None) -> InputError:
        """The same as an error."""
        return InputError(self.text, code=code, samples=self.samples)


class Faulty(Exception):
    """Raised where a fault is found, up to where it is put into the answer."""

    def __init__(self, fault: ReadFault) -> None:
        super().__init__(fault.text)
        self.fault = fault


def reading_fault(error: Exception, samples: Sequence[int]) -> ReadFault:
    """The data set raised.

    Args:
        error: what it raised
        samples: which were asked for
    """
    named = name_samples(samples)
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        import resource  # not on Windows, where this error has another number

        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return ReadFault(
            f"{named} of the data set could not be read: {describe(error)}. Each process that reads may have {limit} "
            "files open: let the data set close those that it opens, or raise that (ulimit -n)",
            tuple(samples),
        )
    return ReadFault(
        f"{named} of the data set could not be read: {describe(error)}. "
        f"Job.dataset()[{samples[0]}] should show the same; mend it, or leave {'it' if len(samples) == 1 else 'them'} "
        f"out of the data set{_lines(error)}",
        tuple(samples),
    )


def streaming_fault(error: Exception, position: int) -> ReadFault:
    """A stream raised.

    Args:
        error: what it raised
        position: of the sample that was asked for, from 0
    """
    return ReadFault(
        f"sample {position} of the stream could not be read: {describe(error)}. Going through Job.dataset() up to it "
        "should show the same; mend it, or let the stream leave it out",
        (position,),
    )


def batching_fault(error: Exception, samples: Sequence[Any], numbers: Sequence[int], *, own: bool) -> ReadFault:
    """Samples could not be made a batch.

    Args:
        error: what the collate function raised
        samples: that were read
        numbers: theirs in the data set
        own: the function is the job's own
    """
    by = "Job.collate" if own else "torch's default collate function"
    unlike = _difference(samples, numbers)
    if unlike is None:
        return ReadFault(
            f"{by} could not make a batch of {name_samples(numbers)}: {describe(error)}{_lines(error)}",
            tuple(numbers[:_NAMED]),
        )
    difference, pair = unlike
    todo = "let it pad them" if own else "give Job.collate one that pads"
    return ReadFault(
        f"{by} could not make a batch of {name_samples(numbers)}: {difference}: {todo}, or let the data set give "
        f"samples of one shape ({type(error).__name__})",
        pair,
    )


def arriving_fault(error: Exception, numbers: Sequence[int]) -> ReadFault:
    """A worker that is a new interpreter could not make of the data set what was sent to it.

    Args:
        error: what unpickling it raised
        numbers: samples that were asked for
    """
    return ReadFault(
        f"the data set did not arrive, so that {name_samples(numbers)} cannot be read: {describe(error)}. Let "
        "Job.dataset and Job.collate be of modules that a new interpreter can import; or use "
        'multiprocessing.set_start_method("fork"), or workers=0',
        tuple(numbers[:_NAMED]),
    )


def sending_fault(error: Exception, batch: Any, numbers: Sequence[int]) -> ReadFault:
    """A worker could not hand a batch over.

    Args:
        error: what pickling it raised
        batch: that was made
        numbers: its samples' in the data set
    """
    named = (f'its part "{name}" is a {kind}' for name, kind in _unsendable(batch))
    part = next(named, f"it is a {type(batch).__name__}")
    return ReadFault(
        f"the batch of {name_samples(numbers)} cannot be handed over by a worker, for it cannot be pickled: {part} "
        f"({describe(error)}). Let Job.collate leave that out, or make tensors of it; or use workers=0",
        tuple(numbers[:_NAMED]),
    )


def name_samples(numbers: Sequence[int]) -> str:
    """Some samples, for people.

    Example:
        >>> name_samples([4]), name_samples([4, 9]), name_samples(range(20))
        ('sample 4', 'samples 4, 9', 'samples 0, 1, 2, 3, 4, 5, 6, 7 and 12 more')
    """
    return f"sample{'s' if len(numbers) > 1 else ''} {format_some(numbers, _NAMED)}"


def describe(error: BaseException) -> str:
    """Type and text of an exception, and the line of the user's code in which it was raised."""
    place = place_of(error)
    return f"{summary(error)}{f' ({place})' if place else ''}"


def _lines(error: BaseException) -> str:
    return "".join(f"\n{line}" for line in user_lines(error))


def _difference(samples: Sequence[Any], numbers: Sequence[int]) -> tuple[str, tuple[int, ...]] | None:
    """The first sample whose parts or shapes are not those of the first one; None: they are alike."""
    if not samples:
        return None
    first = dict(_shapes(samples[0], ""))
    for sample, number in zip(samples[1:], numbers[1:], strict=False):
        other = dict(_shapes(sample, ""))
        if other.keys() != first.keys():
            parts = [", ".join(f'"{name}"' for name in shapes) for shapes in (first, other)]
            return f"sample {numbers[0]} has the parts {parts[0]}, sample {number} has {parts[1]}", (
                numbers[0],
                number,
            )
        for name, shape in other.items():
            if shape != first[name]:
                return (
                    f'"{name}" has the shape {first[name]} in sample {numbers[0]} and {shape} in sample {number}',
                    (numbers[0], number),
                )
    return None


def _shapes(value: Any, name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    for part, leaf in _leaves(value, name):
        yield part or "sample", tuple(getattr(leaf, "shape", ()))


def _unsendable(value: Any) -> Iterator[tuple[str, str]]:
    """Names and types of what cannot be pickled."""
    for part, leaf in _leaves(value, ""):
        try:
            pickle.dumps(leaf)
        except Exception:  # noqa: BLE001 whatever an object of the user's raises
            yield part or "batch", type(leaf).__name__


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """What mappings, tuples and lists hold, by name."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _leaves(part, f"{name}.{key}" if name else str(key))
    elif isinstance(value, tuple | list):
        pair = not name and len(value) == 2
        for number, part in enumerate(value):
            key = ("input", "target")[number] if pair else str(number)
            yield from _leaves(part, f"{name}.{key}" if name else key)
    else:
        yield name, value


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
    failed = f"{name}.__len__ of the stream failed"
    with users(failed, said=lambda error: InputError(f"{failed}: {describe(error)}", type=name)):
        try:
            return len(dataset)
        except (NotImplementedError, TypeError):  # what torch's own streams raise that do not know
            return None


def first_samples(dataset: Any, most: int) -> list[Any]:
    """The first samples of a data set, of either kind.

    Args:
        dataset: map-style, or a stream
        most: this many, or all where there are fewer

    Raises:
        InputError: it is neither, or reading raised
    """
    if is_stream(dataset):
        samples: list[Any] = []
        stream_length(dataset)
        with users("Job.dataset", dataset, said=lambda error: streaming_fault(error, len(samples)).error()):
            samples.extend(islice(iter(dataset), most))
        return samples
    check_map_style(dataset)
    return [read_sample(dataset, number) for number in range(min(most, len(dataset)))]


def read_sample(dataset: Any, number: int) -> Any:
    """A sample of a map-style data set.

    Raises:
        InputError: reading raised
    """
    with users("Job.dataset", dataset, said=lambda error: reading_fault(error, [number]).error()):
        return dataset[number]


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
