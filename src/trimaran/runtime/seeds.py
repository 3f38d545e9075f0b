"""Seeds: one for the initial weights, another on every rank afterwards.

The model is made under the job's seed on each rank, so that every rank starts from the same weights. Then each rank
gets a seed of its own, from the job's seed, its replica and its stage: dropout draws differently on different
samples, and on different layers, as it would in one process.
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

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
    _seed_host(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw on the host from a seed, then go on as if nothing had been drawn."""
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()  # noqa: NPY002
    _seed_host(seed)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        numpy.random.set_state(states[2])  # noqa: NPY002


def _seed_host(seed: int) -> None:
    # Not torch.manual_seed: where no GPU is in use it keeps a stack trace of every call, half a millisecond each.
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    # numpy's global generator, because that is what a data set of the user draws from; it takes 32 bits.
    numpy.random.seed(seed % 2**32)  # noqa: NPY002
