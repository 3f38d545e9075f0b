"""Which modules of a job run in parts of the batch: those that were asked for, or those that make a budget possible.

Where a budget is below the minimum memory of the whole step, the split is sought whose planned step is fastest on the
device. The policies of the vDNN paper know no split, so for them there is none.

The minimum memory is that of one operation's tensors. Around it, a range of neighbouring children of an `nn.Sequential`
can take the batch in parts; the price is one more forward of that range. Candidates are the ranges that hold every
child whose operations need more than the budget, the shortest first:

    needed     ▁▃███▇▅▃▂▁ ...           budget  ─────────
    children   0 1 2 3 4 5 6                      children 1 to 4 need more: ranges 1-4, 0-4, 1-5, 0-5, ...

Ranges that begin with a module that works in place come last: their input has to be copied first, as others hold it.

A candidate's memory is not estimated. Its step is traced on meta tensors, with the modules in parts, and the minimum
memory of that trace counts. Of a range, the fewest parts that fit are a candidate, and the next number: with more room
a plan may be cheaper. The fastest candidate is taken. The search ends after a number of traces.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import nn

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.graph.trace.types import StepTrace
from trimaran.graph.types import Phase
from trimaran.memory.bound import lower_bound
from trimaran.memory.minimum import MinimumMemory, minimum_memory, needed_bytes
from trimaran.memory.search import plan_memory
from trimaran.memory_hooks.splitting import Split
from trimaran.planning.tracing.meta_trace import PricedSteps, parse_split

PARTS = (2, 4, 8, 16)
"""Numbers of parts that are tried, fewest first."""

# Traces after which the best so far is taken; before anything was found, the search goes on up to the second number.
_TRACES, _MOST_TRACES = 8, 64
# Where more parts lower the minimum memory by less than this, still more are not tried.
_LEAST_GAIN = 0.01

TraceSplit = Callable[[Split], StepTrace]
"""Traces the step with some modules in parts."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FoundSplit:
    """A split with which a step fits.

    Attributes:
        split: which modules, in how many parts
        trace: of the step that is split
        minimum_memory: of that step
    """

    split: Split
    trace: StepTrace
    minimum_memory: MinimumMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Costs of a step, in any unit.

    Attributes:
        least: no plan of the step costs less
        planned: what a plan of it costs; infinite where there is none
    """

    least: Callable[[StepTrace], float]
    planned: Callable[[StepTrace], float]


def flops(trace: StepTrace) -> float:
    """FLOP of a step."""
    return sum(op.flops for op in trace.ops)


IN_FLOPS = Prices(least=flops, planned=flops)
"""Where no device is known."""


def search_split(
    model: nn.Module,
    trace: StepTrace,
    trace_split: TraceSplit,
    *,
    budget_bytes: int,
    prices: Prices = IN_FLOPS,
) -> FoundSplit | None:
    """Find a split for who has the model and its trace already.

    Args:
        model: for its sequential modules
        trace: of the step without a split
        trace_split: traces it with one
        budget_bytes: that the minimum memory must not exceed [bytes]
        prices: of steps that fit; the cheapest is taken

    Returns:
        The split; None where the budget is not below the minimum memory, or nothing was found.
    """
    if minimum_memory(trace).nbytes <= budget_bytes:
        return None
    return _cheapest(_candidates(model, trace, trace_split, budget_bytes), prices)


def _cheapest(candidates: list[FoundSplit], prices: Prices) -> FoundSplit | None:
    """Of equals, what was found first. Planned is only what its limit does not rule out; without a plan, nothing is."""
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    ranked = sorted((prices.least(one.trace), place) for place, one in enumerate(candidates))
    best: tuple[float, int] = (math.inf, -1)
    for least, place in ranked:
        if least >= best[0]:
            break
        best = min(best, (prices.planned(candidates[place].trace), place))
    return None if math.isinf(best[0]) else candidates[best[1]]


def _candidates(model: nn.Module, trace: StepTrace, trace_split: TraceSplit, budget_bytes: int) -> list[FoundSplit]:
    """Splits that fit; the traces that were made decide how many."""
    found: list[FoundSplit] = []
    traces = 0
    for parent, first, last in _ranges(model, trace, budget_bytes):
        least_bytes, fitting = None, 0
        for parts in PARTS:
            if traces >= (_TRACES if found else _MOST_TRACES):
                return found
            split = Split(parent=parent, first=first, last=last, parts=parts)
            try:
                one = FoundSplit(
                    split=split, trace=(split_trace := trace_split(split)), minimum_memory=minimum_memory(split_trace)
                )
            except InputError:  # modules that mix the samples of a batch
                break
            traces += 1
            if one.minimum_memory.nbytes <= budget_bytes:
                found.append(one)
                fitting += 1
            gains = least_bytes is None or one.minimum_memory.nbytes <= (1 - _LEAST_GAIN) * least_bytes
            if fitting == 2 or not gains:
                break
            least_bytes = one.minimum_memory.nbytes
    return found


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
        in_place = [bool(getattr(child, "inplace", False)) for child in module.children()]
        found += [
            (in_place[first], last - first, -len(parent), first, last, parent)
            for first in range(low + 1)
            for last in range(high, len(children))
            if not any(first <= place <= last for place in barred)
        ]
    # Of the same range seen from two modules, one inside the other, the inner.
    for *_, first, last, parent in sorted(found):
        yield parent, first, last


def _child(children: list[str], path: str) -> int | None:
    """The child in which a module lies."""
    return next((n for n, child in enumerate(children) if path == child or path.startswith(f"{child}.")), None)


AUTO, NONE = "auto", "none"
"""Ask for what makes the budget possible, and for nothing."""

OURS = "ours"
"""The policy that may have a split."""

# Candidates are planned with so much of the usual effort.
_EFFORT = 0.25


def choose_split(steps: PricedSteps, asked: str, *, policy: str, budget_bytes: int, samples: int) -> Split | None:
    """The split of a step.

    Args:
        steps: of the job, whole
        asked: such as "features:0-4:2"; "auto": what makes the budget possible; "none": none
        policy: whose plan it is for
        budget_bytes: that the minimum memory must stay within [bytes]
        samples: of the step

    Returns:
        The split; None where none is needed, wanted, or found.

    Raises:
        InputError: it is not written as a split is, or the policy has none
    """
    if asked == NONE:
        return None
    if asked != AUTO:
        split = parse_split(asked)
        if policy != OURS:
            raise InputError(
                f'the policy "{policy}" runs whole steps only, got --split {asked}: use --policy ours, or --split none',
                code="memory.policy-takes-no-split",
                policy=policy,
                split=asked,
            )
        return split
    found = find_job_split(steps, budget_bytes=budget_bytes, samples=samples) if policy == OURS else None
    return None if found is None else found.split


def find_job_split(steps: PricedSteps, *, budget_bytes: int, samples: int) -> FoundSplit | None:
    """The split whose planned step is fastest.

    Args:
        steps: of the job, whole
        budget_bytes: that the minimum memory must stay within [bytes]
        samples: of the step
    """
    tracer = steps.tracer

    def least_s(trace: StepTrace) -> float:
        return lower_bound(trace, steps.costs(trace), budget_bytes).step_time_s

    def planned_s(trace: StepTrace) -> float:
        try:
            costs = steps.costs(trace)
            found = plan_memory(trace, costs, budget_bytes=budget_bytes, effort=_EFFORT)
        except InfeasibleError:
            return math.inf
        return found.run.step_time_s

    return search_split(
        tracer.model,
        tracer.trace(samples),
        lambda split: tracer.split(split).trace(samples),
        budget_bytes=budget_bytes,
        prices=Prices(least=least_s, planned=planned_s),
    )
