"""Which modules of a job run in parts of the batch: those that were asked for, or those that make a budget possible.

Where a budget is below the floor of the whole step, the split is sought whose planned step is fastest on the device.
The policies of the vDNN paper know no split, so for them there is none.
"""

import math

from trimaran.errors import InfeasibleError, InputError
from trimaran.graph.trace.types import StepTrace
from trimaran.planner.memory import lower_bound, plan_memory
from trimaran.runtime.split import Split
from trimaran.session.memory.split import parse_split
from trimaran.session.memory.split_search import FoundSplit, Prices, search_split
from trimaran.session.memory.steps import PricedSteps

AUTO, NONE = "auto", "none"
"""Ask for what makes the budget possible, and for nothing."""

OURS = "ours"
"""The policy that may have a split."""

# Candidates are planned with so much of the usual effort; most take a tenth of this time [s].
_EFFORT, _TRIAL_S = 0.25, 5.0


def choose_split(steps: PricedSteps, asked: str, *, policy: str, budget_bytes: int, samples: int) -> Split | None:
    """The split of a step.

    Args:
        steps: of the job, whole
        asked: such as "features:0-4:2"; "auto": what makes the budget possible; "none": none
        policy: whose plan it is for
        budget_bytes: that the floor must stay within [bytes]
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
        budget_bytes: that the floor must stay within [bytes]
        samples: of the step
    """
    tracer = steps.tracer

    def least_s(trace: StepTrace) -> float:
        return lower_bound(trace, steps.costs(trace), budget_bytes).step_time_s

    def planned_s(trace: StepTrace) -> float:
        try:
            costs = steps.costs(trace)
            found = plan_memory(trace, costs, budget_bytes=budget_bytes, effort=_EFFORT, limit_s=_TRIAL_S)
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
