"""Result of a search as the content of a plan file."""

import hashlib
from collections.abc import Iterator
from typing import Any

from trimaran.base.precision import product_dtype
from trimaran.jobs.huggingface import is_configuration, read_configuration
from trimaran.networks.names import parse_network
from trimaran.networks.sizes import FAMILIES
from trimaran.planner.analytical.candidates import AnalyticalCandidate, AnalyticalProblem
from trimaran.planner.candidates import Candidate
from trimaran.planner.choice import Option
from trimaran.planner.problem import Problem
from trimaran.planner.result import Search
from trimaran.planning.requests import PlanRequest, cost_options
from trimaran.pricing.analytical.fits_device import ROUNDING
from trimaran.program.plan_file import (
    Assumed,
    CandidateRow,
    Objective,
    OtherPlan,
    Plan,
    PlannedLink,
    Prediction,
    Premises,
    Verdict,
)


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


def other_plan(one: Option, found: Search[Any]) -> OtherPlan:
    """A plan by the chosen one of a search."""
    roles = (base.role for base in found.baselines if base.candidate is not None and base.candidate.name == one.name)
    slower = one.objective_s / found.chosen.objective_s - 1.0
    return OtherPlan(strategy=one.name, step_time_s=one.step_time_s, slower=slower, role=next(roles, ""))


def types_taken(problem: AnalyticalProblem, chosen: AnalyticalCandidate) -> Iterator[Assumed]:
    """What is kept in less than fp32 because the strategy fits so, and nobody said it."""
    taken, asked = chosen.fits_as, problem.pins.types
    if taken.gradients not in (None, "fp32") and "gradients" not in asked:
        yield Assumed(what="gradients", value=taken.gradients, rounds=True)
    if taken.optimizer_state not in (None, "fp32") and "optimizer-state" not in asked:
        yield Assumed(what="optimizer-state", value=taken.optimizer_state, rounds=taken.optimizer_state in ROUNDING)


def assumed_sample(
    reference: str, request: PlanRequest, *, batch: int, sequence: int | None = None
) -> Iterator[Assumed]:
    """The batch and the tokens of a sample, where nobody said them.

    Args:
        reference: of the job
        request: of the user
        batch: that was taken [samples]
        sequence: that was taken [tokens]; None: as the job has it
    """
    network = parse_network(reference)
    is_configured = network is None and is_configuration(reference)
    if request.batch is None and not request.asks_for_outlook and (network is not None or is_configured):
        yield Assumed(what="batch", value=batch)
    if sequence is None and network is not None and network.name in FAMILIES:
        sequence = FAMILIES[network.name].sequence
    if sequence is None and is_configured:
        sequence = read_configuration(reference).sequence
    if sequence is not None and "sequence" not in request.options and "sequence=" not in reference:
        yield Assumed(what="sequence", value=sequence)


def plan_of_degrees(
    reference: str,
    request: PlanRequest,
    problem: AnalyticalProblem,
    found: Search[AnalyticalCandidate],
    *,
    in_fp32: AnalyticalCandidate | None = None,
) -> Plan:
    """Plan file of a search by the analytical model.

    Args:
        reference: of the job
        request: of the user, for a machine of the catalog
        problem: of the search
        found: result of the search
        in_fp32: as in `Plan`
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
        assumed=(
            *assumed_sample(reference, request, batch=problem.batch, sequence=problem.shape.sequence),
            *types_taken(problem, found.chosen),
        ),
        in_fp32=None if in_fp32 is None else other_plan(in_fp32, found),
        simplest=other_plan(found.simplest, found),
    )


def plan_of(
    reference: str,
    request: PlanRequest,
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
        request: of the user
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
        assumed=tuple(assumed_sample(reference, request, batch=problem.batch)),
        simplest=other_plan(found.simplest, found),
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
