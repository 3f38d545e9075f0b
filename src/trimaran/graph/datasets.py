"""What a data set must be able to do."""

from typing import Any

from torch.utils.data import IterableDataset

from trimaran.errors import InputError
from trimaran.graph.data_faults import describe


def check_map_style(dataset: Any) -> None:
    """Refuse what has no length or no index.

    A stream has no order of its own that an epoch could shuffle, and no place to go on from. Shared by N ranks, each of
    them would read all of it and use one Nth.

    Args:
        dataset: what `Job.dataset` made

    Raises:
        InputError: it is a stream, or has no length or no index
    """
    name = type(dataset).__name__
    if isinstance(dataset, IterableDataset) or (hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")):
        raise InputError(
            f"Job.dataset must make a map-style data set, with a length and an index; {name} is a stream, and a stream "
            "has no length and no index. N ranks would each have to read all of it to keep one Nth, it could not be "
            "shuffled, and a run could not go on in the middle of it. Give each sample a number: write the "
            "stream once to files or arrays with an index, or keep it in memory, as in "
            "Job(dataset=lambda: list(make_stream()))",
            type=name,
        )
    if not hasattr(dataset, "__getitem__"):
        raise InputError(
            f"Job.dataset must make a map-style data set, with a length and an index; {name} has no index", type=name
        )
    try:
        len(dataset)
    except Exception as error:
        if hasattr(type(dataset), "__len__") and not isinstance(error, NotImplementedError):
            raise InputError(f"{name}.__len__ of the data set failed: {describe(error)}", type=name) from error
        raise InputError(
            f"Job.dataset must make a map-style data set, with a length and an index; {name} has no length: give it "
            "__len__, the number of its samples",
            type=name,
        ) from None
