"""Seeds: one for the initial weights, another on every rank afterwards.

The model is made under the job's seed on each rank, so that every rank starts from the same weights. Then each rank
gets a seed of its own, from the job's seed, its replica and its stage: dropout draws differently on different
samples, and on different layers, as it would in one process.
"""

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy
import torch


def derive_seed(seed: int, *parts: int | str) -> int:
    """A seed that depends on every part, and is the same on every machine.

    Args:
        seed: of the job
        parts: what the seed is for

    Returns:
        A number of 63 bits, which every generator accepts.

    Example:
        >>> derive_seed(0, "rank", 0, 1) == derive_seed(0, "rank", 0, 1) != derive_seed(0, "rank", 1, 0)
        True
    """
    text = "/".join(str(part) for part in (seed, *parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def seed_generators(seed: int) -> None:
    """Seed torch, on all devices, and the global generators of `random` and numpy, which data sets draw from."""
    torch.manual_seed(seed)
    seed_host(seed)


class HostGenerator(NamedTuple):
    """A generator of the host that data sets draw from.

    Attributes:
        seed: begins anew
        state: where it is, all of it
        restore: puts it there
        mark: where it is, as far as is seen quickly
        back: puts it at a mark
    """

    seed: Callable[[int], Any]
    state: Callable[[], Any]
    restore: Callable[[Any], None]
    mark: Callable[[], Any]
    back: Callable[[Any], None]


def _seed_numpy(seed: int) -> None:
    # It takes 32 bits.
    numpy.random.seed(seed % 2**32)  # noqa: NPY002


def _mark_numpy() -> tuple[Any, ...]:
    # With bytes in the place of the array, so that marks can be compared.
    name, key, *rest = numpy.random.get_state()  # noqa: NPY002
    return (name, numpy.asarray(key).tobytes(), *rest)


def _back_numpy(mark: tuple[Any, ...]) -> None:
    name, key, *rest = mark
    numpy.random.set_state((name, numpy.frombuffer(key, dtype=numpy.uint32), *rest))  # noqa: NPY002


def _mark_torch() -> bytes:
    # As bytes: a comparison of tensors would be an operation of the step for those who record its operations.
    return torch.get_rng_state().numpy().tobytes()


def _back_torch(mark: bytes) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(mark), dtype=torch.uint8))


HOST_GENERATORS = (
    # Not torch.manual_seed: where no GPU is in use it keeps a stack trace of every call, half a millisecond each.
    HostGenerator(
        torch.default_generator.manual_seed, torch.get_rng_state, torch.set_rng_state, _mark_torch, _back_torch
    ),
    HostGenerator(random.seed, random.getstate, random.setstate, random.getstate, random.setstate),
    # numpy's global generator, because that is what a data set of the user draws from.
    HostGenerator(_seed_numpy, numpy.random.get_state, numpy.random.set_state, _mark_numpy, _back_numpy),
)
"""torch's on the CPU, and the global ones of `random` and numpy."""

ALL_GENERATORS = frozenset(range(len(HOST_GENERATORS)))

Places = dict[int, Any]
"""Where generators of the host are, by their numbers in `HOST_GENERATORS`: states, or marks."""


def seed_host(seed: int, which: Iterable[int] = ALL_GENERATORS) -> None:
    """Seed generators of the host.

    Args:
        seed: for each of them
        which: numbers in `HOST_GENERATORS`
    """
    for number in which:
        HOST_GENERATORS[number].seed(seed)


def host_states(which: Iterable[int] = ALL_GENERATORS) -> Places:
    """Where generators of the host are.

    Args:
        which: numbers in `HOST_GENERATORS`
    """
    return {number: HOST_GENERATORS[number].state() for number in which}


def restore_host(states: Places) -> None:
    """Put generators of the host back where they were.

    Args:
        states: from `host_states`
    """
    for number, state in states.items():
        HOST_GENERATORS[number].restore(state)


def mark_host(which: Iterable[int] = ALL_GENERATORS) -> Places:
    """Where generators of the host are, so that it is quickly seen whether they have moved.

    Args:
        which: numbers in `HOST_GENERATORS`
    """
    return {number: HOST_GENERATORS[number].mark() for number in which}


def find_moved(marks: Places) -> frozenset[int]:
    """Which generators of the host have been drawn from, or seeded.

    Args:
        marks: from `mark_host`

    Returns:
        Numbers in `HOST_GENERATORS`.

    Example:
        >>> marks = mark_host()
        >>> sorted(find_moved(marks)), random.random() < 1, sorted(find_moved(marks))
        ([], True, [1])
    """
    return frozenset(number for number, mark in marks.items() if HOST_GENERATORS[number].mark() != mark)


def turn_back(marks: Places, which: Iterable[int]) -> None:
    """Put generators of the host back to their marks.

    Args:
        marks: from `mark_host`
        which: numbers in `HOST_GENERATORS`
    """
    for number in which:
        HOST_GENERATORS[number].back(marks[number])


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw on the host from a seed, then go on as if nothing had been drawn."""
    states = host_states()
    seed_host(seed)
    try:
        yield
    finally:
        restore_host(states)
