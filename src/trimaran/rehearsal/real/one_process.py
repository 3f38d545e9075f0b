"""The script as one process that knows of no other rank, with what all ranks had, compared with them.

    batch k of a loader, or random numbers k     those of all ranks that had others, one behind the other
    weights before each round                    those of the ranks, put together
    gradients at each step of an optimizer       compared; then those of the ranks take their place
    weights after it                             compared

A tensor is put together from what ranks have of it: it is whole on all of them; a `DTensor` says where each has its
part; else the parts are those of which the weight that one process makes consists.

**Tolerance.** A gradient may differ by the root of eps times its norm, half of its digits, and by 30 eps of the largest
one, as `trial.compare` has it: a gradient that is nothing but rounding comes of terms as large as those of others. A
change of weights may differ by a thousandth, and by the rounding of the weights.

**What a comparison tells.** It counts where another gradient would have been told: the norm is more than may differ, or
both sides agree to far less than the norm. Zeros on both sides, and two roundings, prove nothing and are named as such.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import torch
from torch.optim import Optimizer

from trimaran.base.errors import InputError
from trimaran.rehearsal.real.watch import (
    OptimizerStep,
    ProcessWatch,
    TensorShare,
    Unmatched,
    WatchedRank,
    WatchedRound,
    copied,
    digest_of,
    local_of,
    settings_of,
    tensors_of,
)
from trimaran.user_code.batches import count_samples, join_batches

NO_PART = "what ranks have of it is no part of what one process makes"
"""Why a parameter is not compared: ranks may have equal values of different parts."""

ZERO = "its gradient is zero on ranks and in one process, where nothing else could be told (--steps takes more)"
NOISE = "its gradient is nothing but rounding, on ranks and in one process"
STILL = "it does not change, on ranks and in one process"

_ROUNDING = 30
_CHANGE = 1e-3
_SIGNIFICANT = 5e-3
"""Of a gradient that is a multiple of another one: what may be left of it."""


class ProcessDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Something in which ranks and one process, or ranks and each other, differ.

    Attributes:
        kind: of what
        name: of the parameter
        step: of the optimizer, from 0
        text: what differs, in words that follow the name
        factor: by which it is larger than that of one process; None: it is no multiple
        ranks: that differ from each other; empty: all differ from one process
        lines: of the script, innermost first
    """

    kind: Literal["weight", "gradient", "norm", "update", "apart", "settings", "skipped", "samples"]
    name: str
    step: int
    text: str
    factor: float | None = None
    ranks: tuple[int, ...] = ()
    lines: tuple[str, ...] = ()


class ProcessComparison(msgspec.Struct, kw_only=True):
    """What a comparison found.

    Attributes:
        findings: in the order of the script
        missed: parameters that could not be compared, and why
        void: parameters of which no comparison could have told another gradient, and why
        gradients: that were compared, over all steps
        changes: of weights that were compared
        steps: of optimizers that were compared
        rounds: that one process has begun
        largest: difference of a gradient that agrees, relative to its norm
        reason: why the comparison could not go on; empty: it could
        one_by_one: one process takes the batches of the ranks one after another
        takes_more: it takes more of them in a step than joined ones make
        replaced: what the stand-in has replaced
    """

    findings: list[ProcessDifference] = []
    missed: dict[str, str] = {}
    void: dict[str, str] = {}
    gradients: int = 0
    changes: int = 0
    steps: int = 0
    rounds: int = 0
    largest: float = 0.0
    reason: str = ""
    one_by_one: bool = False
    takes_more: bool = False
    replaced: list[str] = []


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """How a tensor is put together.

    Attributes:
        parts: rank, name there, and the first place in the whole
        flat: parts are stretches of the elements in one row
    """

    parts: tuple[tuple[int, str, tuple[int, ...]], ...]
    flat: bool = False


class OneProcess(ProcessWatch):
    """Watches one process, gives it what the ranks had, and compares.

    Args:
        folder: of the script
        most_rounds: that are compared
        ended: called when they are
        ranks: what each rank did
        one_by_one: batches of ranks come one after another: one process takes more of them in a step
    """

    def __init__(
        self,
        folder: str,
        most_rounds: int,
        ended: Callable[[], None],
        ranks: Sequence[WatchedRank],
        *,
        one_by_one: bool,
    ) -> None:
        super().__init__(folder, most_rounds, ended)
        self.result = ProcessComparison(one_by_one=one_by_one)
        self._ranks = ranks
        self._layouts: dict[str, TensorLayout] = {}
        self._known_shares: dict[int | str, list[int]] = {}
        self._places: dict[tuple[int, int], int] = {}  # of a rank and a number of parts: which part it has
        self._before: dict[str, torch.Tensor] = {}
        self._unlike: set[str] = set()
        self._told: set[str] = set()
        self._loose: set[str] = set()  # whose gradients are those of this process: only the change of weights tells

    # -----------------------------------------------------------------------------------------------------------------
    # Data

    def pulled(self, loader: int, batch: Any) -> Any:
        """What all ranks had."""
        if any(loader not in seen.batches for seen in self._ranks):
            return batch  # some ranks have no such loader, as of an evaluation
        return joined(self._taken(loader, self.seen.batches))

    def drawn(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """What all ranks drew."""
        place = self._place_of(name)
        of_ranks = [seen.draws.get(place, []) for seen in self._ranks]
        if not place or self.is_over or not all(of_ranks):
            return values
        if len(self._shares(place)) == 1 and len(self.seen.draws.get(place, [])) >= len(of_ranks[0]):
            return values
        taken = self._taken(place, self.seen.draws)
        if len(taken) == 1:
            return taken[0].clone() if taken[0].shape == values.shape or self.result.one_by_one else values
        # A batch that is divided among ranks is drawn whole by one process, which says where its samples are.
        part, samples = taken[0], 0
        if part.dim() == values.dim():
            samples = next((dim for dim in range(part.dim()) if part.shape[dim] != values.shape[dim]), 0)
        together: torch.Tensor = joined([one.movedim(samples, 0) for one in taken] if samples else taken)
        return together.movedim(0, samples) if samples else together

    def _taken(self, place: Any, own: dict[Any, list[Any]]) -> list[Any]:
        """What ranks took from a loader, or drew on a line, that one process takes now."""
        kept = own.setdefault(place, [])
        number = len(kept)
        kept.append(None)
        shares = self._shares(place)
        if one_by_one := self.result.one_by_one and len(shares) > 1:
            rank, number = shares[number % len(shares)], number // len(shares)
        of_ranks = [self._all_of(seen, place) for seen in self._ranks]
        if any(number >= len(taken) for taken in of_ranks):
            self._needs_more()
        return [of_ranks[rank][number] for rank in ([rank] if one_by_one else shares)]

    @staticmethod
    def _all_of(seen: WatchedRank, place: int | str) -> list[Any]:
        return seen.batches.get(place, []) if isinstance(place, int) else seen.draws.get(place, [])

    def _shares(self, place: int | str) -> list[int]:
        """Ranks that take from a loader, or draw on a line, what none before takes."""
        if place not in self._known_shares:
            of_ranks = [self._all_of(seen, place) for seen in self._ranks]
            count = min(map(len, of_ranks))
            self._known_shares[place] = _distinct([taken[:count] for taken in of_ranks])
        return self._known_shares[place]

    def _needs_more(self) -> None:
        self.result.takes_more = not self.result.one_by_one
        raise Unmatched("one process reads more batches in a step than each rank")

    # -----------------------------------------------------------------------------------------------------------------
    # Weights

    def take_weights(self, named: list[tuple[str, torch.Tensor]]) -> None:
        """Compare the weights after a round, and take those of the ranks."""
        number = len(self.seen.rounds) - 1
        rounds = [seen.rounds[number] if number < len(seen.rounds) else None for seen in self._ranks]
        if any(one is None or not one.weights for one in rounds):
            self._end()
            return
        known = [one.weights for one in rounds if one is not None]
        if not number:
            self._find_layouts(named, known)
        elif number == 1:
            self._check_updated()
        for name, parameter in named:
            layout = self._layouts.get(name)
            if layout is None:
                continue
            whole, unlike = put_together(layout, known, tuple(parameter.shape), limit=0.0)
            if unlike and name not in self._unlike:
                self._unlike.add(name)
                self._find("apart", name, number - 1, "ranks no longer have the same", ranks=unlike)
            if whole is None:
                continue
            if number and name in self._before and name not in self._unlike:
                self._compare_change(name, local_of(parameter), whole, number - 1)
            self._before[name] = whole
            with torch.no_grad():
                local_of(parameter).copy_(whole.reshape(local_of(parameter).shape))

    def _find_layouts(
        self, named: Sequence[tuple[str, torch.Tensor]], known: Sequence[Mapping[str, TensorShare]]
    ) -> None:
        by_value: dict[str, list[tuple[int, str]]] = {}
        for rank, weights in enumerate(known):
            for name, share in weights.items():
                by_value.setdefault(digest_of(share.values), []).append((rank, name))
        unsure = []
        for name, parameter in named:
            own = local_of(parameter).detach()
            layout = self._layout_of(name, own, known, by_value)
            if layout is None:
                unsure.append((name, own))
            else:
                self._layouts[name] = layout
        for name, own in unsure:
            layout = self._by_place(name, own, known)
            if layout is not None:
                self._layouts[name] = layout
        names = {name for name, _ in named}
        if all(set(weights) == names for weights in known):
            self._find_unlike(named, known)
        for name, _ in named:
            if name not in self._layouts and name not in self._unlike:
                self.result.missed.setdefault(name, NO_PART)

    def _find_unlike(
        self, named: Sequence[tuple[str, torch.Tensor]], known: Sequence[Mapping[str, TensorShare]]
    ) -> None:
        """Weights with which ranks begin otherwise, though each has all that one process has."""
        shares_drawn = False  # whether a weight that is drawn is the same on all ranks
        unlike: dict[str, tuple[int, ...]] = {}
        for name, parameter in named:
            shares = [(rank, weights[name]) for rank, weights in enumerate(known)]
            if any(one.offset is not None or one.shape != tuple(parameter.shape) for _, one in shares):
                continue
            ranks = _unlike_ranks([(rank, one.values) for rank, one in shares], 0.0)
            if ranks:
                unlike[name] = ranks
            elif parameter.numel() > 1 and bool((shares[0][1].values != shares[0][1].values.flatten()[0]).any()):
                shares_drawn = True
        gradients = [seen.rounds[0].updates[0].gradients if seen.rounds[0].updates else {} for seen in self._ranks]
        for name, ranks in unlike.items():
            each = [(rank, share.values) for rank, one in enumerate(gradients) if (share := one.get(name)) is not None]
            self._layouts.pop(name, None)
            if shares_drawn and each and _unlike_ranks(each, 1e-3):
                self.result.missed[name] = "each rank has its own, as of experts, and one process has one"
                continue
            self._unlike.add(name)
            self._find("weight", name, 0, "each rank begins with another value", ranks=ranks)

    def _layout_of(
        self,
        name: str,
        own: torch.Tensor,
        known: Sequence[Mapping[str, TensorShare]],
        by_value: Mapping[str, Sequence[tuple[int, str]]],
    ) -> TensorLayout | None:
        shares = [(rank, weights[name]) for rank, weights in enumerate(known) if name in weights]
        zero = (0,) * own.dim()
        if shares and all(share.shape == tuple(own.shape) for _, share in shares):
            if shares[0][1].offset is not None:
                return TensorLayout(tuple((rank, name, share.offset or zero) for rank, share in shares))
            if not _unlike_ranks([(rank, share.values) for rank, share in shares], 0.0):
                return TensorLayout(tuple((rank, name, zero) for rank, _ in shares))
        if found := by_value.get(digest_of(own)):
            return TensorLayout(tuple((rank, other, zero) for rank, other in found))
        if not shares:
            return None
        parts = []
        for rank, share in shares:
            places = list(_places_in(share.values, own))
            if len(places) != 1:
                break
            parts.append((rank, name, places[0]))
            dim, count = _split(share.values, own)
            self._places[rank, count] = places[0][dim] // share.values.shape[dim]
        else:
            return TensorLayout(tuple(parts)) if _cover(parts, known, own) else None
        flat = torch.cat([share.values.flatten() for _, share in shares])
        if flat.numel() == own.numel() and torch.equal(flat, own.flatten()):
            begins, at = [], 0
            for rank, share in shares:
                begins.append((rank, name, (at,)))
                at += share.values.numel()
            return TensorLayout(tuple(begins), flat=True)
        return None

    def _by_place(
        self, name: str, own: torch.Tensor, known: Sequence[Mapping[str, TensorShare]]
    ) -> TensorLayout | None:
        """Parts of equal values, as of zeros: ranks have those that they have of other weights."""
        parts = []
        for rank, weights in enumerate(known):
            share = weights.get(name)
            if share is None or not (places := list(_places_in(share.values, own))):
                continue
            dim, count = _split(share.values, own)
            place = self._places.get((rank, count), rank % count)
            wanted = tuple(place * share.values.shape[dim] if axis == dim else 0 for axis in range(own.dim()))
            if wanted not in places:
                return None
            parts.append((rank, name, wanted))
        return TensorLayout(tuple(parts)) if parts and _cover(parts, known, own) else None

    def _compare_change(self, name: str, mine: torch.Tensor, whole: torch.Tensor, number: int) -> None:
        before = self._before[name].reshape(mine.shape)
        ours, theirs = (mine.detach() - before).double(), (whole.reshape(mine.shape) - before).double()
        rounding = _ROUNDING * torch.finfo(mine.dtype).eps * float(before.double().norm())
        limit = (20 if name in self._loose else 1) * _CHANGE * float(ours.norm()) + rounding
        differs = not float((ours - theirs).norm()) <= limit
        if differs:
            text, factor = told(theirs, ours)
            self._find("update", name, number, f"the change {text}", factor=factor)
        tells = float(ours.norm()) > limit
        self.result.changes += differs or tells
        if name in self._loose:
            self._note(name, "" if tells else STILL)

    def _note(self, name: str, void: str) -> None:
        """Whether a comparison would have told another gradient."""
        if not void:
            self._told.add(name)
            self.result.void.pop(name, None)
        elif name not in self._told:
            self.result.void[name] = void

    # -----------------------------------------------------------------------------------------------------------------
    # Gradients

    def updated(self, optimizer: Optimizer, update: OptimizerStep) -> None:
        """Compare gradients, and take those of the ranks."""
        number, place = len(self.seen.rounds) - 1, len(self.seen.rounds[-1].updates) - 1
        rounds = [seen.rounds[number] for seen in self._ranks if number < len(seen.rounds)]
        took = [place < len(one.updates) for one in rounds]
        if not any(took):
            return
        if not all(took):
            without = tuple(rank for rank, took_it in enumerate(took) if not took_it)
            self._find("skipped", "", number, "an optimizer's step is taken by some ranks alone", ranks=without)
            return
        if any(ahead != mine for ahead, mine in self._counts(rounds)):
            self._needs_more()
        of_ranks = [one.updates[place] for one in rounds]
        if not number and not place:
            self._check_complete(rounds)
            for name, reason in self.result.missed.items():  # with other weights, all gradients are others
                raise Unmatched(f"{name}: {reason}")
        self._compare_norms(rounds, number)
        self._take_settings(optimizer, of_ranks, number)
        theirs = [one.gradients for one in of_ranks]
        scale = max(
            (float(one.values.double().norm()) for one in update.gradients.values() if one is not None), default=0.0
        )
        for name, share in update.gradients.items():
            layout = self._layouts.get(name)
            parameter = self._parameters.get(name)
            if parameter is None or layout is None:
                self._loose |= set(self._parameters)
                continue
            if name in self._unlike:
                continue
            whole, unlike = self._gradient(self._kept(layout, number), theirs, tuple(parameter.shape), scale)
            if unlike:
                self._unlike.add(name)
                self._find("gradient", name, number, "is another one on each rank", ranks=unlike, lines=of_ranks[0])
            elif whole is not None or share is not None:
                self._compare_gradient(name, whole, share, scale, number, of_ranks[0])
            if whole is not None and not unlike and parameter.grad is not None:
                local_of(parameter.grad).copy_(whole.reshape(local_of(parameter.grad).shape))
        self.result.steps = max(self.result.steps, number + 1)

    def _check_complete(self, rounds: Sequence[WatchedRound]) -> None:
        known = {(rank, name) for layout in self._layouts.values() for rank, name, _ in layout.parts}
        named = {*self._unlike, *self.result.missed}
        for rank, one in enumerate(rounds):
            for name in one.weights:
                if (rank, name) not in known and name not in named:
                    raise Unmatched(f"one process has no {name}, which rank {rank} has")

    def _check_updated(self) -> None:
        mine = {name for update in self.seen.rounds[0].updates for name in update.gradients}
        by_place = {part[:2]: name for name, layout in self._layouts.items() for part in layout.parts}
        for rank, seen in enumerate(self._ranks):
            for update in seen.rounds[0].updates:
                for name in update.gradients:
                    if by_place.get((rank, name), name) not in mine and (rank, name) in by_place:
                        raise Unmatched(f"one process does not update {name}, which rank {rank} does")

    def _counts(self, rounds: Sequence[WatchedRound]) -> list[tuple[int, int]]:
        """Batches that a rank has taken in the last round, and this process, by loader or line."""
        number = len(self.seen.rounds) - 1
        if not number:
            return []
        before = self._ranks[0].rounds[number - 1].pulls
        own, own_before = self.seen.rounds[-1].pulls, self.seen.rounds[-2].pulls
        counts = []
        for place, count in rounds[0].pulls.items():
            shares = len(self._shares(place))
            if isinstance(place, int) or shares > 1:
                more = shares if self.result.one_by_one else 1
                counts.append(((count - before.get(place, 0)) * more, own.get(place, 0) - own_before.get(place, 0)))
        return counts

    def _kept(self, layout: TensorLayout, number: int) -> TensorLayout:
        """Without replicas that take the weight of another one after the step, as of a rank that steps for all."""
        kept = []
        for rank, name, _ in layout.parts:
            rounds = self._ranks[rank].rounds
            after = rounds[number + 1].weights.get(name) if number + 1 < len(rounds) else None
            kept.append(after is None or digest_of(after.values) == rounds[number].left.get(name))
        places = {part[2] for part, stays in zip(layout.parts, kept, strict=True) if stays}
        parts = zip(layout.parts, kept, strict=True)
        return TensorLayout(tuple(part for part, stays in parts if stays or part[2] not in places), layout.flat)

    def _gradient(
        self,
        layout: TensorLayout,
        theirs: Sequence[Mapping[str, TensorShare | None]],
        shape: tuple[int, ...],
        scale: float,
    ) -> tuple[torch.Tensor | None, tuple[int, ...]]:
        # Optimizers of ranks may have different parameters.
        layout = TensorLayout(tuple(part for part in layout.parts if part[1] in theirs[part[0]]), layout.flat)
        there = [(rank, name, place) for rank, name, place in layout.parts if theirs[rank].get(name) is not None]
        if not there:
            return None, ()
        if len(there) < len(layout.parts):
            lacking = {rank for rank, _, _ in layout.parts} - {rank for rank, _, _ in there}
            return None, (there[0][0], min(lacking))
        known = [{name: share for name, share in one.items() if share is not None} for one in theirs]
        first = known[there[0][0]][there[0][1]].values
        limit = math.sqrt(torch.finfo(first.dtype).eps)
        return put_together(layout, known, shape, limit=limit, floor=_ROUNDING * torch.finfo(first.dtype).eps * scale)

    def _compare_gradient(
        self,
        name: str,
        whole: torch.Tensor | None,
        share: TensorShare | None,
        scale: float,
        number: int,
        update: OptimizerStep,
    ) -> None:
        if share is None or whole is None:
            self.result.gradients += 1
            who = "one process" if share is None else "ranks"
            self._find("gradient", name, number, f"has none on {who}", lines=update)
            return
        theirs, mine = whole.double(), share.values.double().reshape(whole.shape)
        eps = torch.finfo(share.values.dtype).eps
        difference, norm = float((theirs - mine).norm()), float(mine.norm())
        if math.isnan(norm) and bool(theirs.isnan().any()):
            self.result.missed.setdefault(name, "its gradient is no number on ranks and in one process")
            return
        limit = math.sqrt(eps) * norm + _ROUNDING * eps * scale
        tells = norm > limit or difference < _SIGNIFICANT * norm
        self.result.gradients += tells or difference > limit
        self._note(name, "" if tells else NOISE if norm + difference else ZERO)
        if difference <= limit:
            self.result.largest = max(self.result.largest, difference / norm if tells else 0.0)
            return
        text, factor = told(theirs, mine)
        losses, own = sum(seen.rounds[number].loss for seen in self._ranks), self.seen.rounds[-1].loss
        if factor and factor * len(self._ranks) < 1 + _SIGNIFICANT and abs(losses - own) < _SIGNIFICANT * abs(own):
            text += ", while the losses of the ranks add up to its loss: gradients are averaged"
        self._find("gradient", name, number, text, factor=factor, lines=update)

    def _compare_norms(self, rounds: Sequence[WatchedRound], number: int) -> None:
        mine = self.seen.rounds[-1].norms
        for rank, one in enumerate(rounds):
            for ours, theirs in zip(mine, one.norms, strict=False):
                if abs(theirs - ours) > _SIGNIFICANT * max(ours, 1e-12):
                    what = f"by which gradients are clipped is {theirs / ours:.3g} × that of one process on rank {rank}"
                    lines = one.updates[0] if one.updates else None
                    self._find("norm", "", number, what, factor=theirs / ours if ours else None, lines=lines)
                    return

    def _take_settings(self, optimizer: Optimizer, of_ranks: Sequence[OptimizerStep], number: int) -> None:
        first = of_ranks[0]
        if not any(one.kind == "settings" for one in self.result.findings):
            self.result.findings += _of_settings(of_ranks, number)
        for group, settings in zip(optimizer.param_groups, first.settings, strict=False):
            for key, value in settings.items():
                if key in settings_of(group) and not isinstance(group[key], torch.Tensor):
                    group[key] = value

    def _find(
        self,
        kind: Any,
        name: str,
        step: int,
        text: str,
        *,
        factor: float | None = None,
        ranks: tuple[int, ...] = (),
        lines: OptimizerStep | None = None,
    ) -> None:
        if lines is None and self.seen.rounds[max(step, 0)].updates:
            lines = self.seen.rounds[max(step, 0)].updates[-1]
        where = () if lines is None else lines.where
        self.result.findings.append(
            ProcessDifference(kind=kind, name=name, step=step, text=text, factor=factor, ranks=ranks, lines=where)
        )


# ---------------------------------------------------------------------------------------------------------------------
# Settings


def unlike_settings(seen: Sequence[WatchedRank]) -> list[ProcessDifference]:
    """The first step of an optimizer whose settings ranks do not share."""
    for number, rounds in enumerate(zip(*(one.rounds for one in seen), strict=False)):
        for updates in zip(*(one.updates for one in rounds), strict=False):
            if found := _of_settings(updates, number):
                return found
    return []


def _of_settings(updates: Sequence[OptimizerStep], number: int) -> list[ProcessDifference]:
    first = updates[0]
    for rank, other in enumerate(updates):
        for place, (one, two) in enumerate(zip(first.settings, other.settings, strict=False)):
            for key in one.keys() & two.keys():
                if one[key] != two[key]:
                    text = f"{key} of group {place} is {one[key]:g} on rank 0 and {two[key]:g} on rank {rank}"
                    lines = tuple(first.lines[:1])
                    return [
                        ProcessDifference(
                            kind="settings", name="", step=number, text=text, ranks=(0, rank), lines=lines
                        )
                    ]
    return []


# ---------------------------------------------------------------------------------------------------------------------
# Tensors


def told(theirs: torch.Tensor, mine: torch.Tensor) -> tuple[str, float | None]:
    """How a tensor of ranks differs from that of one process, and the factor where it is a multiple.

    Example:
        >>> told(torch.tensor([6.0, 8.0]), torch.tensor([3.0, 4.0]))
        ('is 2 × that of one process', 2.0)
    """
    norm = float(mine.norm())
    if not norm:
        return "is not zero, as that of one process is", None
    factor = float((theirs * mine).sum()) / norm**2
    left = float((theirs - factor * mine).norm())
    if left <= _SIGNIFICANT * max(float(theirs.norm()), 1e-30) and abs(factor) > 1e-6:
        return f"is {factor:.4g} × that of one process", factor
    if not float(theirs.norm()):
        return "is zero, and that of one process is not", 0.0
    return f"differs from that of one process by {float((theirs - mine).norm()) / norm:.1%} of its norm", None


def put_together(
    layout: TensorLayout,
    known: Sequence[Mapping[str, TensorShare]],
    shape: tuple[int, ...],
    *,
    limit: float,
    floor: float = 0.0,
) -> tuple[torch.Tensor | None, tuple[int, ...]]:
    """A tensor of its parts, and two ranks that have one part with other values; none: all agree."""
    whole: torch.Tensor | None = None
    at: dict[tuple[Any, ...], tuple[int, torch.Tensor]] = {}
    for rank, name, place in layout.parts:
        share = known[rank].get(name)
        if share is None:
            return None, ()
        values = share.values
        if whole is None:
            whole = torch.zeros(math.prod(shape) if layout.flat else shape, dtype=values.dtype)
        if values.numel() == 0:
            continue
        first = at.setdefault((place, tuple(values.shape)), (rank, values))
        if differ(first[1], values, limit, floor):
            return None, (first[0], rank)
        whole[tuple(slice(start, start + size) for start, size in zip(place, values.shape, strict=True))] = values
    return (None if whole is None else whole.reshape(shape)), ()


def joined(batches: Sequence[Any]) -> Any:
    """Batches one behind the other, along the first dimension of each tensor.

    Raises:
        Unmatched: they cannot be joined
    """
    if len(batches) == 1:
        return copied(batches[0])
    whole = [{"batch": batch} for batch in batches]  # a form that any batch of a loader fits in
    try:
        together = join_batches(whole, [count_samples(batch) for batch in whole])
    except InputError as error:
        raise Unmatched(f"batches of ranks cannot be joined: {error.message}") from None
    if together is None:
        raise Unmatched("batches of ranks cannot be joined: they have other lengths, or values that are no samples")
    return together["batch"]


def _distinct(batches: Sequence[Any]) -> list[int]:
    """Ranks with batches that no rank before has."""
    seen: dict[str, int] = {}
    for rank, batch in enumerate(batches):
        seen.setdefault(" ".join(map(digest_of, tensors_of(batch))), rank)
    return list(seen.values())


def differ(first: torch.Tensor, second: torch.Tensor, limit: float, floor: float = 0.0) -> bool:
    """Whether two tensors differ by more than a share of the norm of the first, and a number."""
    if first.shape != second.shape:
        return True
    if torch.equal(first, second):
        return False
    if not torch.equal(first.isnan(), second.isnan()):
        return True
    ours, theirs = first.double().nan_to_num(), second.double().nan_to_num()
    return not float((ours - theirs).norm()) <= limit * float(ours.norm()) + floor


def _unlike_ranks(shares: Iterable[tuple[int, torch.Tensor]], limit: float) -> tuple[int, ...]:
    (first, values), *others = shares
    return next(((first, rank) for rank, other in others if differ(values, other, limit)), ())


def _split(part: torch.Tensor, whole: torch.Tensor) -> tuple[int, int]:
    """The dimension along which a part is smaller, and how many make the whole."""
    smaller = [dim for dim in range(whole.dim()) if part.shape[dim] != whole.shape[dim]]
    dim = smaller[0] if smaller else 0
    return dim, whole.shape[dim] // max(part.shape[dim], 1)


def _places_in(part: torch.Tensor, whole: torch.Tensor) -> Iterable[tuple[int, ...]]:
    """Where a part can be in the whole."""
    if part.dim() != whole.dim() or not part.numel():
        return
    smaller = [dim for dim in range(whole.dim()) if part.shape[dim] != whole.shape[dim]]
    if len(smaller) != 1 or whole.shape[smaller[0]] % part.shape[smaller[0]]:
        return
    dim, size = smaller[0], part.shape[smaller[0]]
    for start in range(0, whole.shape[dim], size):
        if torch.equal(whole.narrow(dim, start, size), part):
            yield tuple(start if axis == dim else 0 for axis in range(whole.dim()))


def _cover(
    parts: Sequence[tuple[int, str, tuple[int, ...]]], known: Sequence[Mapping[str, TensorShare]], whole: torch.Tensor
) -> bool:
    """Whether parts make the whole."""
    covered = torch.zeros(whole.shape, dtype=torch.bool)
    for rank, name, place in parts:
        values = known[rank][name].values
        covered[tuple(slice(start, start + size) for start, size in zip(place, values.shape, strict=True))] = True
    return bool(covered.all())
