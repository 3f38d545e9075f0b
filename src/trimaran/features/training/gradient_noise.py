"""A plan under which the gradient noise scale can be observed."""

from dataclasses import replace
from pathlib import Path

from trimaran.base.progress import Progress, ignore_progress
from trimaran.jobs.resolve import JobSource
from trimaran.planning.answer.results import Planned
from trimaran.planning.plan import obtain_plan
from trimaran.planning.requests import EVERYTHING, PlanRequest
from trimaran.program.strategy import Strategy
from trimaran.runtime.step.gradient_noise import check_observable, obstacle

PIECES = 2
"""Microbatches of a device that is alone: one piece says nothing of its noise."""


# What is left: plain replicas, with owners of gradient buckets or not, and pipelines whose stages share no weight; then
# replicas alone.
_FORBIDDEN = (("tp", "zero", "sharded", "zero-bubble"), ("tp", "zero", "sharded", "pp", "placement"))


def obtain_observable_plan(
    source: JobSource,
    request: PlanRequest = EVERYTHING,
    *,
    path: Path | None = None,
    progress: Progress = ignore_progress,
) -> Planned:
    """The best plan under which ranks have whole pieces of the gradient, two at least; a note says what was given up.

    Args:
        source: where the job comes from
        request: as for `make_plan`
        path: of a plan; None: one is made
        progress: told what is being done

    Raises:
        InputError: a given plan is another, or none is within the pins of the request
    """
    planned = obtain_plan(source, request, path=path, progress=progress)
    best, kept = planned.simulated.plan.strategy.name, request.pins
    for forbidden in _FORBIDDEN if path is None else ():
        if _needs_other_kind(planned):
            pins = replace(kept, forbid=tuple(dict.fromkeys((*kept.forbid, *forbidden))))
            planned = obtain_plan(source, replace(request, pins=pins), progress=progress)
    if path is None and _is_whole(planned.simulated.plan.strategy):
        pins = replace(kept, dp=1, pp=1, tp=1, microbatches=PIECES)
        planned = obtain_plan(source, replace(request, pins=pins), progress=progress)
    check_observable(planned.simulated.plan.strategy, planned.simulated.graph)
    if planned.simulated.plan.strategy.name == best:
        return planned
    note = f"{planned.simulated.plan.strategy.name} in place of {best}, under which gradient noise cannot be seen"
    return replace(planned, notes=(*planned.notes, note))


def _needs_other_kind(planned: Planned) -> bool:
    strategy = planned.simulated.plan.strategy
    return not _is_whole(strategy) and obstacle(strategy, planned.simulated.graph) is not None


def _is_whole(strategy: Strategy) -> bool:
    return strategy.devices * strategy.microbatches == 1
