"""Seeds and random states: one seed for the initial weights, another on every rank afterwards.

The model is made under the job's seed on each rank, so that every rank starts from the same weights. Then each rank
gets another seed, from the job's seed, its replica and its stage: dropout draws differently on different samples, and
on different layers, as it would in one process. What a look at a model draws is put back.
"""

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy
import torch
from torch import nn


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
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    seed_host(seed)


class HostGenerator(NamedTuple):
    """A generator of the host that data sets draw from.

    Attributes:
        seed: starts it from a seed
        state: its whole state; states can be compared
        restore: sets its state
    """

    seed: Callable[[int], Any]
    state: Callable[[], Any]
    restore: Callable[[Any], None]


def _seed_numpy(seed: int) -> None:
    # It takes 32 bits.
    numpy.random.seed(seed % 2**32)  # noqa: NPY002


def _numpy_state() -> tuple[Any, ...]:
    # With bytes in the place of the array, so that states can be compared.
    name, key, *rest = numpy.random.get_state()  # noqa: NPY002
    return (name, numpy.asarray(key).tobytes(), *rest)


def _restore_numpy(state: tuple[Any, ...]) -> None:
    name, key, *rest = state
    numpy.random.set_state((name, numpy.frombuffer(key, dtype=numpy.uint32), *rest))  # noqa: NPY002


def _torch_state() -> bytes:
    # As bytes: a comparison of tensors would be an operation of the step for those who record its operations.
    return torch.get_rng_state().numpy().tobytes()


def _restore_torch(state: bytes) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


HOST_GENERATORS = (
    # Not torch.manual_seed: where no accelerator is in use it makes a stack trace in every call, half a millisecond.
    HostGenerator(torch.default_generator.manual_seed, _torch_state, _restore_torch),
    HostGenerator(random.seed, random.getstate, random.setstate),
    # numpy's global generator, because data sets of users draw from it.
    HostGenerator(_seed_numpy, _numpy_state, _restore_numpy),
)
"""torch's on the CPU, and the global ones of `random` and numpy."""

ALL_GENERATORS = frozenset(range(len(HOST_GENERATORS)))
PYTHON_AND_NUMPY = ALL_GENERATORS - {0}

States = dict[int, Any]
"""States of generators of the host, by their numbers in `HOST_GENERATORS`."""


def seed_host(seed: int, which: Iterable[int] = ALL_GENERATORS) -> None:
    """Seed generators of the host.

    Args:
        seed: for each of them
        which: numbers in `HOST_GENERATORS`
    """
    for number in which:
        HOST_GENERATORS[number].seed(seed)


def host_states(which: Iterable[int] = ALL_GENERATORS) -> States:
    """The states of generators of the host.

    Args:
        which: numbers in `HOST_GENERATORS`
    """
    return {number: HOST_GENERATORS[number].state() for number in which}


def restore_host(states: States, which: Iterable[int] = ALL_GENERATORS) -> None:
    """Set generators of the host back to earlier states.

    Args:
        states: from `host_states`
        which: numbers in `HOST_GENERATORS`
    """
    for number in which:
        HOST_GENERATORS[number].restore(states[number])


def find_moved(states: States) -> frozenset[int]:
    """Which generators of the host have been drawn from, or seeded, since a moment.

    Args:
        states: at that moment, from `host_states`

    Returns:
        Numbers in `HOST_GENERATORS`.

    Example:
        >>> before = host_states()
        >>> sorted(find_moved(before)), random.random() < 1, sorted(find_moved(before))
        ([], True, [1])
    """
    return frozenset(number for number, state in states.items() if HOST_GENERATORS[number].state() != state)


@dataclass(frozen=True, slots=True)
class RandomState:
    """States of the generators of one rank.

    Attributes:
        host: of the host's generators, from `host_states`
        device: of its GPU's generator; None: it has no GPU
    """

    host: States
    device: torch.Tensor | None

    @classmethod
    def of(cls, device: str) -> "RandomState":
        """The states now."""
        return cls(host_states(), torch.cuda.get_rng_state(device) if device.startswith("cuda") else None)

    def on(self, device: str) -> "tuple[RandomState, Literal['', 'seed', 'drop']]":
        """What of them a process on a device can have.

        Args:
            device: "cpu" or "cuda:<n>"

        Returns:
            The states; and what becomes of a GPU's generator: "seed", there is one here and no state for it; "drop",
            there is a state and no GPU here; "", neither.

        Example:
            >>> RandomState({}, None).on("cuda:0")[1], RandomState({}, torch.zeros(16)).on("cpu")[1]
            ('seed', 'drop')
        """
        if device.startswith("cuda"):
            return self, "seed" if self.device is None else ""
        return RandomState(self.host, None), "" if self.device is None else "drop"

    def restore(self, device: str) -> None:
        """Set the generators of this process to them."""
        restore_host(self.host)
        if self.device is not None:
            torch.cuda.set_rng_state(self.device, device)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw on the host from a seed, then go on as if nothing had been drawn."""
    states = host_states()
    seed_host(seed)
    try:
        yield
    finally:
        restore_host(states)


@contextmanager
def preserved_randomness(model: nn.Module | None = None) -> Iterator[None]:
    """Put back the random states of torch, Python and NumPy.

    Args:
        model: whose GPUs count too; None: only the host
    """
    tensors = () if model is None else (*model.parameters(), *model.buffers())
    gpus = {tensor.device.index or 0 for tensor in tensors if tensor.is_cuda}
    states = host_states(PYTHON_AND_NUMPY)
    # Of torch by its function, which also holds while operations are recorded.
    with torch.random.fork_rng(devices=sorted(gpus)):
        try:
            yield
        finally:
            restore_host(states, PYTHON_AND_NUMPY)
