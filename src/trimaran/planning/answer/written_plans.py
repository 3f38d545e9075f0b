"""Result of a search as the content of a plan file."""

import hashlib
from collections.abc import Iterator
from typing import Any

from trimaran.base.precision import product_dtype
from trimaran.planner.analytical.candidates import AnalyticalCandidate, AnalyticalProblem
from trimaran.planner.candidates import Candidate
from trimaran.planner.choice import Option
from trimaran.planner.problem import Problem
from trimaran.planner.result import Search
from trimaran.planning.requests import PlanRequest, cost_options
from trimaran.program.plan_file import CandidateRow, Objective, Plan, PlannedLink, Prediction, Premises, Verdict


def predict(candidate: Option) -> Prediction:
    """Predicted costs of a candidate."""
    return Prediction(
        step_time_s=candidate.step_time_s,
        interval_s=candidate.interval_s,
        peak_bytes=candidate.peak_bytes,
        epoch_s=candidate.epoch_s,
        epoch_interval_s=candidate.epoch_interval_s,
    )


def candidate_rows(found: Search[Any]) -> Iterator[CandidateRow]:
    """The alternatives of a plan: priced ones, best first, then rejected ones.

    Args:
        found: the search
    """
    front, references = ({id(one) for one in some} for some in (found.pareto, found.references))
    known = {id(one) for one in found.candidates}
    for candidate in (*found.candidates, *(one for one in found.references if id(one) not in known)):
        verdict: Verdict = "runner-up"
        if candidate is found.chosen:
            verdict = "chosen"
        elif id(candidate) in references:
            verdict = "baseline"
        yield CandidateRow(
            strategy=candidate.strategy,
            verdict=verdict,
            prediction=predict(candidate),
            limiter=candidate.limiter,
            pareto=id(candidate) in front,
        )
    for rejection in found.rejected:
        yield CandidateRow(strategy=rejection.strategy, verdict="rejected", reason=rejection.reason)


def plan_of_degrees(
    reference: str, request: PlanRequest, problem: AnalyticalProblem, found: Search[AnalyticalCandidate]
) -> Plan:
    """Plan file of a search by the analytical model.

    Args:
        reference: of the job
        request: of the user, for a machine of the catalog
        problem: of the search
        found: result of the search
    """
    return Plan(
        job=reference,
        strategy=found.chosen.strategy,
        premises=Premises(
            graph_digest="",
            global_batch_size=problem.batch,
            devices=(problem.machine.node.device.title,) * problem.devices,
            memory_bytes=(problem.device_bytes,) * problem.devices,
            cluster=request.cluster,
            precision=problem.program.precision,
            layers=problem.shape.layers,
            sequence_length=problem.shape.sequence,
            framework=problem.program.framework,
            gradients=found.chosen.fits_as.gradients or "",
            optimizer_state=found.chosen.fits_as.optimizer_state or "",
            options=cost_options(request),
            decided=request.pins.options,
        ),
        prediction=predict(found.chosen),
        candidates=tuple(candidate_rows(found)),
    )


def plan_of(
    reference: str,
    problem: Problem,
    found: Search[Candidate],
    *,
    costs_digest: str,
    objective: Objective,
    link: PlannedLink | None = None,
    cluster: str = "",
    precision: str = "",
    options: tuple[str, ...] = (),
) -> Plan:
    """Plan file of a search, without its candidates and the lines of its program: `Simulated.whole_plan` adds both.

    Args:
        reference: of the job
        problem: of the search
        found: result of the search
        costs_digest: of the costs by which
        objective: of the search
        link: rate limit of the links between local ranks; None: not limited
        cluster: machine of the catalog; empty: this one
        precision: of products on it; empty: that of the job
        options: others that the costs there depend on
    """
    return Plan(
        job=reference,
        strategy=found.chosen.strategy,
        premises=Premises(
            graph_digest=problem.graph.digest,
            global_batch_size=problem.batch,
            devices=tuple(device.title for device in problem.cluster.devices),
            memory_bytes=problem.cluster.memory_bytes,
            costs_digest=costs_digest,
            link=link,
            cluster=cluster,
            precision=precision,
            options=options,
            decided=problem.pins.options,
        ),
        prediction=predict(found.chosen),
        objective=objective,
    )


def costs_digest(problem: Problem, request: PlanRequest) -> str:
    """Digest of the costs that a plan for a machine of the catalog is scored by: machine, software and precision.

    Args:
        problem: has the costs
        request: of the user
    """
    # As files written before have it, so that their costs are still known to be these.
    precision = request.precision and (
        request.precision if request.precision in ("tf32", "ieee") else product_dtype(request.precision)
    )
    costs = f"{request.cluster} {problem.table.fingerprint.torch} {precision}"
    if request.loading.is_given:
        costs += f" {request.loading}"
    return hashlib.sha256(costs.encode()).hexdigest()[:16]
