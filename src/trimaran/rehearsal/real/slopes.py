"""What ranks show by themselves, where one process cannot run the script: gradients against the loss's own slope.

Write L for the sum of the losses of all ranks, and g for a gradient as an optimizer gets it. If ranks train one model,
g = c dL/dw with one c for all weights w: 1 over the number of replicas where losses are means, 1 where they are shares
of a sum. So some weights are moved along their gradients, the first step is run again, and c is (g · direction) over
the slope of L. Moved together are weights of one kind, which is told by how many ranks have them: experts and stages
have their own, all else is on all ranks. If kinds have different c, wrong are those whose c is neither 1 nor 1 over the
losses; if both are there, those on fewer ranks. A loss that is scaled changes all alike: then the first that two share
is right. If none is, all are wrong.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from trimaran.rehearsal.real.one_process import ProcessDifference, differ
from trimaran.rehearsal.real.watch import OptimizerStep, WatchedRank, digest_of

Direction = Mapping[int, Mapping[str, torch.Tensor]]
"""Of each rank by name: what is added to its weights."""

_SHARE_OF_LOSS, _SHARE_OF_WEIGHT = 5e-4, 0.02
"""Most that the loss, and the norm of the weights, is to change."""

_RUNS = 4
"""Of the first step with weights that are moved."""

_ALIKE = 0.05
"""By which factors may differ: a slope is that of a chord."""


def apart(
    seen: Sequence[WatchedRank], *, of_one_value: bool = False, without: Collection[str] = ()
) -> list[ProcessDifference]:
    """Weights that several ranks have alike in the first round, and whose gradients are not.

    Args:
        seen: of each rank
        without: weights that ranks may have different parts of
        of_one_value: weights of one value alone, as zeros: they may be other parts of a larger one
    """
    updates = _first_updates(seen)
    alike: dict[tuple[str, tuple[int, ...] | None, str], list[int]] = {}
    for rank, one in enumerate(seen if updates else ()):
        for name, share in one.rounds[0].weights.items():
            is_one_value = bool((share.values == share.values.flatten()[:1]).all())
            if name not in without and share.values.numel() > 1 and of_one_value is is_one_value:
                alike.setdefault((name, share.offset, digest_of(share.values)), []).append(rank)
    found: list[ProcessDifference] = []
    for (name, _, _), ranks in alike.items():
        known = [(rank, updates[rank].gradients.get(name)) for rank in ranks]
        gradients = [(rank, gradient.values) for rank, gradient in known if gradient is not None]
        if len(gradients) < 2:
            continue
        (first, values), *others = gradients
        limit = torch.finfo(values.dtype).eps ** 0.5
        unlike = next((rank for rank, other in others if differ(values, other, limit)), -1)
        if unlike >= 0 and all(one.name != name for one in found):
            found.append(_finding(name, "is another one on each rank", updates[0], None, (first, unlike)))
    return found


def skipped(seen: Sequence[WatchedRank]) -> list[ProcessDifference]:
    """The first step of an optimizer that ranks take after different numbers of batches: some have left one out."""
    for number, rounds in enumerate(zip(*(one.rounds for one in seen), strict=False)):
        for loader in rounds[0].pulls:
            counts = [(rank, one.pulls[loader]) for rank, one in enumerate(rounds) if loader in one.pulls]
            other = next((rank for rank, count in counts if count != counts[0][1]), None)
            if other is not None:
                update = rounds[0].updates[0]
                (first, count), least = counts[0], dict(counts)[other]
                text = f"a step is taken after {count} batches on rank {first} and after {least} on rank {other}"
                return [
                    ProcessDifference(kind="skipped", name="", step=number, text=text, lines=tuple(update.lines[:1]))
                ]
    return []


def factors(
    seen: Sequence[WatchedRank], run: Callable[[Direction], Sequence[WatchedRank] | None]
) -> list[ProcessDifference]:
    """Compare kinds of weights.

    Args:
        seen: ranks as they are
        run: runs the first step again, with weights that are moved; None where that fails
    """
    updates = _first_updates(seen)
    kinds = _kinds(seen, updates)
    if not kinds:
        return []
    total = sum(abs(one.rounds[0].loss) for one in seen)
    told: list[tuple[float, list[str]]] = []
    multiple = 1.0 / len(seen)

    def gradient(rank: int, name: str) -> torch.Tensor:
        share: Any = updates[rank].gradients[name]  # `_kinds` has left out those without
        values: torch.Tensor = share.values
        return values

    for members in _groups(kinds):
        squares = sum(float(gradient(rank, name).double().square().sum()) for rank, name in members)
        norm = sum(float(seen[rank].rounds[0].weights[name].values.double().square().sum()) for rank, name in members)
        if not squares or not total:
            return []
        slope = 0.0
        for _ in range(2):
            size = abs(_SHARE_OF_LOSS * total * multiple / squares)
            if norm:
                size = min(size, _SHARE_OF_WEIGHT * (norm / squares) ** 0.5)
            direction: dict[int, dict[str, torch.Tensor]] = {}
            for rank, name, first in _holders(members, seen):
                direction.setdefault(rank, {})[name] = size * gradient(first, name)
            moved = run(direction)
            if moved is None:
                return []
            pairs = zip(moved, seen, strict=True)
            slope = sum(ahead.rounds[0].loss - one.rounds[0].loss for ahead, one in pairs) / size
            if not slope:
                return []
            multiple = squares / slope
            if abs(slope * size) < 10 * _SHARE_OF_LOSS * total:
                break  # else the loss was scaled, and its change is that of a long way
        told.append((multiple, [name for _, name in members]))
    if all(_are_alike(factor, told[0][0]) for factor, _ in told):
        return []
    usual = (1.0, 1 / sum(one.rounds[0].loss != 0 for one in seen))
    shared = [factor for factor, _ in told if sum(_are_alike(factor, other) for other, _ in told) > 1]
    right = next((factor for factor, _ in told if any(_are_alike(factor, one) for one in usual)), (*shared, None)[0])
    unlike = [(factor, name) for factor, names in told for name in names if not right or not _are_alike(factor, right)]
    return [
        _finding(
            name,
            f"is {factor / right:.3g} × what it is to the others, measured by how the loss changes"
            if right
            else "is not what the loss changes by where its weight is moved",
            updates[0],
            factor / right if right else None,
            (),
        )
        for factor, name in unlike
    ]


def _are_alike(factor: float, usual: float) -> bool:
    return bool(usual) and abs(factor / usual - 1) <= _ALIKE


def _first_updates(seen: Sequence[WatchedRank]) -> list[OptimizerStep]:
    if any(not one.rounds or not one.rounds[0].updates for one in seen):
        return []
    return [one.rounds[0].updates[0] for one in seen]


def _kinds(seen: Sequence[WatchedRank], updates: Sequence[OptimizerStep]) -> dict[int, list[tuple[int, str]]]:
    """By the number of ranks that have it: weights, each with one rank of those."""
    holders: dict[tuple[str, str], list[int]] = {}
    for rank, (one, update) in enumerate(zip(seen, updates, strict=True)):
        for name, gradient in update.gradients.items():
            share = one.rounds[0].weights.get(name)
            if gradient is None or share is None or share.offset is not None:
                continue
            holders.setdefault((name, digest_of(share.values)), []).append(rank)
    kinds: dict[int, list[tuple[int, str]]] = {}
    for (name, _), ranks in holders.items():
        kinds.setdefault(len(ranks), []).append((ranks[0], name))
    return kinds


def _groups(kinds: Mapping[int, list[tuple[int, str]]]) -> list[list[tuple[int, str]]]:
    """Weights that are moved together: those on most ranks first, each kind in parts of about as many weights."""
    parts = max(1, _RUNS // len(kinds))
    groups = []
    for _, members in sorted(kinds.items(), reverse=True):
        size = -(-len(members) // parts)
        groups += [members[start : start + size] for start in range(0, len(members), size)]
    return groups


def _holders(members: Sequence[tuple[int, str]], seen: Sequence[WatchedRank]) -> list[tuple[int, str, int]]:
    """All ranks that have these weights, each with the first of them."""
    return [
        (rank, name, first)
        for first, name in members
        for rank, one in enumerate(seen)
        if (share := one.rounds[0].weights.get(name)) is not None
        and torch.equal(share.values, seen[first].rounds[0].weights[name].values)
    ]


def _finding(
    name: str, text: str, update: OptimizerStep, factor: float | None, ranks: tuple[int, ...]
) -> ProcessDifference:
    return ProcessDifference(
        kind="gradient", name=name, step=0, text=text, factor=factor, ranks=ranks, lines=update.where
    )
