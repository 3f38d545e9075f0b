"""A law over many examples: some of them in `make test`, which represent all, and the others in `make test-all`."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def some_and_rest(name: str, some: Sequence[Any], every: Sequence[Any], *before: Any) -> list[Any]:
    """Parameters of a test that gets a list of examples: once the chosen ones, and in long sweeps those left.

    Args:
        name: of the parameters
        some: what represents all
        every: all of them
        before: parameters before the list
    """
    rest = [one for one in every if one not in some]
    return [
        pytest.param(*before, list(some), id=name),
        pytest.param(*before, rest, id=f"{name}, the rest", marks=pytest.mark.sweep),
    ]


def few_and_many(
    name: str, some: Sequence[Any], every: Sequence[Any], steps: tuple[int, int], *before: Any
) -> list[Any]:
    """Parameters of a test that trains examples for some steps: the chosen ones for few, in long sweeps all for many.

    Args:
        name: of the parameters
        some: what represents all
        every: all of them
        steps: few, and many
        before: parameters before the list
    """
    few, many = steps
    return [
        pytest.param(*before, list(some), few, id=name),
        pytest.param(*before, list(every), many, id=f"{name}, all", marks=pytest.mark.sweep),
    ]


def dealt(examples: Sequence[Any], number: int, hands: int) -> list[Any]:
    """Every so manieth example, from one of them on: so many hands have all."""
    return list(examples[number % hands :: hands])


def each(examples: Iterable[str], *some: str) -> list[Any]:
    """Parameters of a test that gets one example by its name: those that represent all, and the rest in long sweeps."""
    names = list(examples)
    assert set(some) <= set(names), sorted(set(some) - set(names))
    return [pytest.param(name, id=name, marks=[] if name in some else [pytest.mark.sweep]) for name in names]
