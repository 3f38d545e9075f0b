"""The plans that stand side by side for one job: the paper's policies for its whole step, and ours."""

from collections.abc import Mapping
from dataclasses import replace

from trimaran.errors import InfeasibleError
from trimaran.planner.memory import MemoryOutcome
from trimaran.planner.memory.vdnn import vdnn_all, vdnn_conv
from trimaran.planner.memory.vdnn_dynamic import vdnn_dyn
from trimaran.program.memory import KEEP_ALL
from trimaran.report.memory.estimate import PolicyFigures
from trimaran.session.memory.figures import Simulated, policy_figures, simulated
from trimaran.session.memory.steps import PricedStep


def papers_policies(whole: PricedStep, budget_bytes: int) -> Mapping[str, Simulated]:
    """No policy and those of the paper, in the order in which they are shown.

    Args:
        whole: the step without a split
        budget_bytes: for the dynamic policy [bytes]
    """
    trace, costs = whole.trace, whole.costs
    found = {
        "none": simulated(trace, KEEP_ALL, costs),
        "all": simulated(trace, vdnn_all(trace), costs),
        "conv": simulated(trace, vdnn_conv(trace), costs),
    }
    try:
        found["dyn"] = simulated(trace, vdnn_dyn(trace, budget_bytes=budget_bytes), costs)
    except InfeasibleError:
        found["dyn"] = replace(found["all"], note="nothing that it tries fits; its first trial, all, is shown")
    return found


def ours(outcome: MemoryOutcome, split: str | None) -> Simulated:
    """Our plan among them.

    Args:
        outcome: the plan
        split: modules that it runs in parts, for people; None: none
    """
    note = "" if split is None else f"{split}; the others have no split, and are of the whole step"
    return Simulated(plan=outcome.plan, live=outcome.live, run=outcome.run, note=note)


def all_figures(
    papers: Mapping[str, Simulated], our: Simulated, *, whole: PricedStep, planned: PricedStep, budget_bytes: int
) -> tuple[PolicyFigures, ...]:
    """Their figures, all against the whole step with memory without end.

    Args:
        papers: none and the paper's policies
        our: plan
        whole: the step that the paper's policies are for
        planned: the step that our plan is for
        budget_bytes: that they should hold [bytes]
    """
    figures = [(name, one, whole) for name, one in papers.items()] + [("ours", our, planned)]
    kept_s = papers["none"].run.step_time_s
    return tuple(
        policy_figures(name, step.trace, one, step.costs, budget_bytes=budget_bytes, kept_s=kept_s)
        for name, one, step in figures
    )
