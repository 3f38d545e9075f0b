"""The plans that stand side by side for one step: the paper's policies, and ours."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trimaran.cluster.catalog import CatalogDevice
from trimaran.costs.memory_costs import MemoryCosts
from trimaran.costs.roofline import memory_costs
from trimaran.errors import InfeasibleError
from trimaran.graph.trace.types import StepTrace
from trimaran.planner.memory import MemoryOutcome, floor, plan_memory
from trimaran.planner.memory.vdnn import vdnn_all, vdnn_conv
from trimaran.planner.memory.vdnn_dynamic import vdnn_dyn
from trimaran.program.memory import KEEP_ALL
from trimaran.report.memory_split import SplitFigures
from trimaran.runtime.split import Split
from trimaran.session.memory_batches import most_samples
from trimaran.session.memory_figures import Simulated, simulated
from trimaran.session.memory_line import at_any_batch
from trimaran.session.memory_split import LIMIT_S, FoundSplit, parse_split, search_split, written
from trimaran.session.memory_tracing import JobTracer
from trimaran.simulator.memory import live_bytes
from trimaran.units import format_bytes

AUTO = "auto"
"""Asks for the first split that helps."""

ASKED_LIMIT_S = 60.0
"""How long one looks for a split that was asked for [s]."""

_NEAR = 4  # samples from which to look for the largest batch below a floor


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedSteps:
    """Steps of a job at any batch, and what they cost on a device.

    Attributes:
        tracer: traces them
        device: prices them
        precision: in which products are computed
    """

    tracer: JobTracer
    device: CatalogDevice
    precision: str

    def costs(self, trace: StepTrace) -> MemoryCosts:
        """What a step costs."""
        return memory_costs(trace, self.device, precision=self.precision)


def our_plan(
    priced: PricedSteps, trace: StepTrace, costs: MemoryCosts, budget_bytes: int, samples: int
) -> MemoryOutcome:
    """Trimaran's plan.

    Args:
        priced: of the job, for what would help below the floor
        trace: the step
        costs: of the step
        budget_bytes: that it must stay within [bytes]
        samples: of the step

    Raises:
        InfeasibleError: the budget is below the floor
    """
    if budget_bytes < floor(trace).nbytes:
        raise _below_floor(priced, trace, budget_bytes, samples)
    return plan_memory(trace, costs, budget_bytes=budget_bytes)


def choose_split(
    priced: PricedSteps, trace: StepTrace, asked: str, budget_bytes: int, samples: int
) -> SplitFigures | None:
    """The split that was asked for, or the first that brings the floor below the budget.

    Args:
        priced: of the job
        trace: the step without a split
        asked: such as "features:0-4:2", or "auto"
        budget_bytes: that the floor must stay within [bytes]
        samples: of the step

    Returns:
        The split and the step without it; None where none is needed, or none was found.

    Raises:
        InputError: it is not written as a split is
    """
    if asked == AUTO:
        found = _find_split(priced, trace, budget_bytes, samples, ASKED_LIMIT_S)
        split = None if found is None else found.split
    else:
        split = parse_split(asked)
    if split is None:
        return None
    return SplitFigures(
        name=split.name,
        written=written(split),
        keep_peak_bytes=live_bytes(trace, KEEP_ALL).peak,
        floor_bytes=floor(trace).nbytes,
        kept_s=priced.costs(trace).compute_s,
    )


def policies(
    trace: StepTrace, costs: MemoryCosts, outcome: MemoryOutcome, budget_bytes: int
) -> Mapping[str, Simulated]:
    """The paper's policies and ours, in the order in which they are shown.

    Args:
        trace: the step
        costs: of the step
        outcome: our plan
        budget_bytes: for the dynamic policy [bytes]
    """
    found = {
        "none": simulated(trace, KEEP_ALL, costs),
        "all": simulated(trace, vdnn_all(trace), costs),
        "conv": simulated(trace, vdnn_conv(trace), costs),
    }
    try:
        found["dyn"] = simulated(trace, vdnn_dyn(trace, budget_bytes=budget_bytes), costs)
    except InfeasibleError:
        found["dyn"] = replace(found["all"], note="nothing that it tries fits; its first trial, all, is shown")
    found["ours"] = Simulated(plan=outcome.plan, live=outcome.live, run=outcome.run)
    return found


def _below_floor(priced: PricedSteps, trace: StepTrace, budget_bytes: int, samples: int) -> InfeasibleError:
    found = None if priced.tracer.splits else _find_split(priced, trace, budget_bytes, samples, LIMIT_S)
    least = floor(trace)
    trace_of = at_any_batch(priced.tracer.trace, _NEAR)
    fewer = most_samples(lambda some: floor(trace_of(some)).nbytes, budget_bytes, near=_NEAR)
    card = least.nbytes + priced.device.memory.context_bytes
    ways = [f"a card of {format_bytes(card)} or more"]
    if found is not None:
        least_split = format_bytes(found.floor.nbytes)
        ways.insert(0, f"--split {written(found.split)}, with which the floor is {least_split}")
    if fewer:
        ways.insert(0, f"a batch of at most {fewer}, and several of them before each update")
    return InfeasibleError(
        f"no plan fits {format_bytes(budget_bytes)}: one operation alone needs {least.describe()}. "
        f"What would help: {'; '.join(ways)}",
        budget_bytes=budget_bytes,
        floor_bytes=least.nbytes,
        largest_batch=fewer,
        split=None if found is None else written(found.split),
    )


def _find_split(
    priced: PricedSteps, trace: StepTrace, budget_bytes: int, samples: int, limit_s: float
) -> FoundSplit | None:
    tracer = priced.tracer

    def trace_split(split: Split) -> StepTrace:
        return tracer.split(split).trace(samples)

    return search_split(tracer.model, trace, trace_split, budget_bytes=budget_bytes, limit_s=limit_s)
