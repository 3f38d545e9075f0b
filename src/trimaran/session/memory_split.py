"""Finds which modules to run in parts of the batch, where a budget is below the floor of every plan.

The floor is one operation's own tensors. Of what runs around it, a range of neighbouring children of an `nn.Sequential`
can take the batch in parts; the price is one more forward of that range. So the shortest range is wanted, and of that
the fewest parts. Sought among the ranges that hold every child whose operations need more than the budget:

    needed     ▁▃███▇▅▃▂▁ ...           budget  ─────────
    children   0 1 2 3 4 5 6                      children 1 to 4 need more: ranges 1-4, 0-4, 1-5, 0-5, ...

What a candidate needs is not estimated. Its step is traced on meta tensors, the modules really run in parts, and the
floor of that trace decides.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from trimaran.errors import InputError
from trimaran.graph.trace.meta import Loss, trace_on_meta
from trimaran.graph.trace.types import StepTrace
from trimaran.graph.types import Phase
from trimaran.planner.memory.floor import Floor, floor, needed_bytes
from trimaran.runtime.split import Split, splitting

PARTS = (2, 4, 8, 16)
"""Numbers of parts that are tried, fewest first."""

LIMIT_S = 5.0
"""How long one looks where nobody has asked for a split [s]."""

# More parts that bring the floor down by less than this are not worth trying still more.
_LEAST_GAIN = 0.01
_WRITTEN = re.compile(r"(?P<parent>[^:]*):(?P<first>\d+)-(?P<last>\d+):(?P<parts>\d+)")

TraceSplit = Callable[[Split], StepTrace]
"""Traces the step with some modules in parts."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FoundSplit:
    """A split with which a step fits.

    Attributes:
        split: which modules, in how many parts
        trace: of the step that is split
        floor: of that step
    """

    split: Split
    trace: StepTrace
    floor: Floor


def parse_split(text: str) -> Split:
    """A split as people write it: the sequential module, its first and last child, the parts.

    Raises:
        InputError: it is not written so

    Example:
        >>> parse_split("features:0-4:2").name
        'features[0:4] in 2 parts'
    """
    found = _WRITTEN.fullmatch(text.strip())
    if found is None:
        raise InputError(
            f'a split is written as MODULE:FIRST-LAST:PARTS, such as "features:0-4:2", or "auto"; got "{text}"',
            split=text,
        )
    return Split(parent=found["parent"], first=int(found["first"]), last=int(found["last"]), parts=int(found["parts"]))


def written(split: Split) -> str:
    """A split as `parse_split` reads it.

    Example:
        >>> written(Split(parent="features", first=0, last=4, parts=2))
        'features:0-4:2'
    """
    return f"{split.parent}:{split.first}-{split.last}:{split.parts}"


def split_maker(make_model: Callable[[], nn.Module], splits: Iterable[Split], stack: ExitStack) -> Any:
    """Makes a model and splits it, until the stack is closed.

    Args:
        make_model: makes the model
        splits: of it
        stack: undoes them
    """

    def make() -> nn.Module:
        model = make_model()
        stack.enter_context(splitting(model, list(splits)))
        return model

    return make


def find_split(
    make_model: Callable[[], nn.Module],
    make_batch: Callable[[], Any],
    loss: Loss,
    *,
    budget_bytes: int,
    make_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None,
    autocast: torch.dtype | None = None,
    limit_s: float = LIMIT_S,
) -> FoundSplit | None:
    """Find which modules to run in parts so that a step can fit a budget.

    Args:
        make_model: makes the model, in training mode
        make_batch: makes a batch
        loss: `(model, batch)` to the scalar loss
        budget_bytes: that the floor must not exceed [bytes]
        make_optimizer: makes the optimizer from parameters; None: no update, and no state
        autocast: lower precision; None: none
        limit_s: no other candidate is tried after this time [s]

    Returns:
        The split, its trace and its floor; None where the budget is not below the floor, or nothing was found.

    Raises:
        InputError: the step cannot be traced on meta tensors
    """
    made: list[nn.Module] = []

    def model() -> nn.Module:
        made[:] = made or [make_model()]
        return made[0]

    def trace_of(*splits: Split) -> StepTrace:
        with ExitStack() as stack:
            maker = split_maker(model, splits, stack)
            return trace_on_meta(maker, make_batch, loss, make_optimizer=make_optimizer, autocast=autocast)

    trace = trace_of()
    return search_split(model(), trace, trace_of, budget_bytes=budget_bytes, limit_s=limit_s)


def search_split(
    model: nn.Module, trace: StepTrace, trace_split: TraceSplit, *, budget_bytes: int, limit_s: float = LIMIT_S
) -> FoundSplit | None:
    """The same, for who has the model and its trace already.

    Args:
        model: for its sequential modules
        trace: of the step without a split
        trace_split: traces it with one
        budget_bytes: that the floor must not exceed [bytes]
        limit_s: no other candidate is tried after this time [s]
    """
    if floor(trace).nbytes <= budget_bytes:
        return None
    deadline_s = time.monotonic() + limit_s
    for parent, first, last in _ranges(model, trace, budget_bytes):
        least_bytes = None
        for parts in PARTS:
            if time.monotonic() > deadline_s:
                return None
            split = Split(parent=parent, first=first, last=last, parts=parts)
            try:
                found = trace_split(split)
            except InputError:  # modules that mix the samples of a batch
                break
            least = floor(found)
            if least.nbytes <= budget_bytes:
                return FoundSplit(split=split, trace=found, floor=least)
            if least_bytes is not None and least.nbytes > (1 - _LEAST_GAIN) * least_bytes:
                break
            least_bytes = least.nbytes
    return None


def _ranges(model: nn.Module, trace: StepTrace, budget_bytes: int) -> Iterator[tuple[str, int, int]]:
    """(sequential module, first child, last child), the shortest range first."""
    needed = needed_bytes(trace)
    over = {op.module for op in trace.ops if needed[op.moment] > budget_bytes}
    drawn = {op.module for op in trace.ops if op.phase == Phase.FORWARD and not op.repeatable}
    found = []
    for parent, module in model.named_modules():
        if type(module).forward is not nn.Sequential.forward:
            continue
        children = [f"{parent}.{name}" if parent else name for name, _ in module.named_children()]
        # What needs too much must lie in the range; what was called outside of all modules cannot.
        places = [_child(children, path) for path in over]
        if not places or None in places:
            continue
        low, high = (choose(place for place in places if place is not None) for choose in (min, max))
        barred = [place for path in drawn if (place := _child(children, path)) is not None]
        found += [
            (last - first, -len(parent), first, last, parent)
            for first in range(low + 1)
            for last in range(high, len(children))
            if not any(first <= place <= last for place in barred)
        ]
    # Of the same range seen from two modules, one inside the other, the inner.
    for _, _, first, last, parent in sorted(found):
        yield parent, first, last


def _child(children: list[str], path: str) -> int | None:
    """The child in which a module lies."""
    return next((n for n, child in enumerate(children) if path == child or path.startswith(f"{child}.")), None)
