"""Which modules run in parts of the batch: as people write it, and as it is found for a model that is not a job's.

Found are the modules that let a step fit a budget below the floor of every plan; how, is in the search beside this.
Without a device there are no times, so what a split costs is counted in FLOP.
"""

import re
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from trimaran.errors import InputError
from trimaran.graph.trace.meta import Loss, trace_on_meta
from trimaran.graph.trace.types import StepTrace
from trimaran.runtime.split import Split, splitting
from trimaran.session.memory.split_search import LIMIT_S, FoundSplit, search_split

_WRITTEN = re.compile(r"(?P<parent>[^:]*):(?P<first>\d+)-(?P<last>\d+):(?P<parts>\d+)")


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
            'a split is written as MODULE:FIRST-LAST:PARTS, such as "features:0-4:2", or "auto", or "none"; '
            f'got "{text}"',
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
