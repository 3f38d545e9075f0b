"""A search that offloads and recomputes where nothing fits otherwise.

A strategy with a memory budget needs the step of its microbatch, traced without weights, and what operations and copies
cost on the device. Traces and memory plans take far longer than a search, so they are made only where they decide:
where no strategy fits, or where memory policies are asked for by name.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from trimaran.cluster.catalog import CatalogDevice
from trimaran.costs.roofline import memory_costs
from trimaran.costs.traced import TracedStep
from trimaran.errors import InfeasibleError
from trimaran.planner import Search, search
from trimaran.planner.problem import Problem
from trimaran.planner.virtualized import may_be_virtualized
from trimaran.session.choosing import microbatch_sizes
from trimaran.session.cluster_planning.request import ClusterRequest

if TYPE_CHECKING:
    from trimaran.session.memory.tracing import JobTracer


def search_within_memory(reference: str, problem: Problem, request: ClusterRequest) -> tuple[Problem, Search]:
    """Search; where memory alone stands against everything, trace whole networks and search again.

    Args:
        reference: of the job
        problem: what is searched
        request: what was asked

    Returns:
        The problem with the traces that were made, and what was found.

    Raises:
        InfeasibleError: nothing fits
    """
    if "memory" in problem.pins.forbid:
        return problem, search(problem)
    try:
        found = search(problem)
    except InfeasibleError:
        sizes = set(
            microbatch_sizes(problem.graph, devices=problem.devices, batch=problem.batch, pins=problem.pins, stages=1)
        )
        if not sizes:
            raise
    else:
        lacking = [rejection.strategy for rejection in found.rejected if may_be_virtualized(rejection)]
        sizes = {problem.batch // (strategy.dp * strategy.microbatches) for strategy in lacking}
        if "memory" not in problem.pins.allow or not sizes:
            return problem, found
    traced = dataclasses.replace(problem, traces=traces_of(reference, sizes, problem, request))
    return traced, search(traced)


def traces_of(
    reference: str, sizes: Collection[int], problem: Problem, request: ClusterRequest
) -> Mapping[int, TracedStep]:
    """Steps of microbatches as they would run on the device, by samples.

    Args:
        reference: of the job
        sizes: of the microbatches [samples]
        problem: has the machine
        request: says the precision
    """
    import torch

    from trimaran.session.jobs import resolve
    from trimaran.session.memory.tracing import JobTracer

    machine = problem.cluster.machine
    if machine is None:
        return {}
    lower = {"bfloat16": torch.bfloat16, "float16": torch.float16}
    tracer = JobTracer(resolve(reference), autocast=lower.get(request.precision), layers=True)
    return {size: _traced(tracer, size, machine.node.device) for size in sorted(sizes)}


def _traced(tracer: "JobTracer", samples: int, device: CatalogDevice) -> TracedStep:
    trace = tracer.trace(samples)
    return TracedStep(trace=trace, costs=memory_costs(trace, device))
