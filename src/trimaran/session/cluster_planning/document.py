"""A plan for a machine that is not here, as a document for programs and for tables."""

from typing import Any

from trimaran.planner import Candidate
from trimaran.planner.divisions.document import degrees as division_degrees
from trimaran.planner.divisions.document import division_document, division_name
from trimaran.planner.divisions.types import PricedDivision
from trimaran.session.accuracy.document import with_outlook
from trimaran.session.cluster_planning.divided import DividedPlan
from trimaran.session.cluster_planning.types import MachinePlan
from trimaran.session.searches import chosen_document, degrees, search_document

SHOWN_REJECTIONS = 40
"""Rejected strategies that are listed one by one; the others are counted."""


def machine_plan_document(plan: MachinePlan | DividedPlan) -> dict[str, Any]:
    """A plan, its rivals and what was rejected.

    Args:
        plan: as it was found

    Returns:
        Times in seconds, sizes in bytes, intervals as `[low, high]`, a figure for each rank as a list.
    """
    document = _divided(plan) if isinstance(plan, DividedPlan) else _simulated(plan)
    return document if plan.outlook is None else with_outlook(document, plan.outlook)


def _simulated(plan: MachinePlan) -> dict[str, Any]:
    problem, found = plan.problem, plan.search
    machine = problem.cluster.machine
    chosen = found.chosen
    return {
        "job": plan.reference,
        "cluster": plan.request.cluster,
        "machine": machine.node.title if machine else problem.cluster.name,
        "device": problem.cluster.devices[0].name,
        "devices": problem.devices,
        "global_batch_size": problem.batch,
        "precision": plan.request.precision,
        "software": problem.table.fingerprint.torch,
        "one_device_s": plan.one_device_s,
        "one_device_fits": plan.one_device_fits,
        "chosen": _entry(chosen, plan)
        | chosen_document(problem.graph, found, one_device_s=plan.one_device_s)
        | {"device_order": list(chosen.strategy.device_order)},
        "candidates": [_entry(candidate, plan) for candidate in found.candidates],
        "rejected": [
            {"strategy": one.strategy.name, "cause": one.cause, "reason": one.reason}
            for one in found.rejected[:SHOWN_REJECTIONS]
        ],
        "notes": list(plan.notes),
    } | search_document(found, one_device_s=plan.one_device_s)


def _entry(candidate: Candidate, plan: MachinePlan) -> dict[str, Any]:
    return {
        "strategy": candidate.strategy.name,
        "degrees": degrees(candidate.strategy),
        "step_time_s": candidate.step_time_s,
        "interval_s": list(candidate.interval_s),
        "samples_per_s": plan.problem.batch / candidate.step_time_s,
        "speedup": plan.one_device_s / candidate.step_time_s,
        "peak_bytes": list(candidate.peak_bytes),
        "limiter": candidate.limiter,
    }


def _divided(plan: DividedPlan) -> dict[str, Any]:
    found, task = plan.search, plan.search.task
    document = division_document(found)
    tokens = task.batch * plan.shape.sequence
    details: Any = document.pop("chosen")
    chosen = _division_entry(found.chosen, tokens) | {"gap": found.gap, "bound_s": found.bound_s}
    return {
        "job": plan.reference,
        "cluster": plan.request.cluster,
        "machine": task.machine.node.title,
        "device": task.machine.node.device.title,
        "devices": task.devices,
        "global_batch_size": task.batch,
        "precision": task.program.precision,
        "software": f"closed forms, {task.program.year:g}",
        "chosen": chosen | {"layout": {key: details[key] for key in ("stages", "device_order") if key in details}},
        "candidates": [
            chosen,
            *(_division_entry(one, tokens) for one in found.runners_up),
            *(_division_entry(one.priced, tokens) for one in found.baselines if one.priced is not None),
        ],
        "notes": list(plan.notes),
    } | {name: value for name, value in document.items() if name not in ("devices", "global_batch_size", "precision")}


def _division_entry(priced: PricedDivision, tokens: int) -> dict[str, Any]:
    return {
        "strategy": division_name(priced.division),
        "degrees": dict(division_degrees(priced.division)),
        "step_time_s": priced.seconds,
        "interval_s": [priced.low, priced.high],
        "tokens_per_s": tokens / priced.seconds,
        "mfu": priced.utilization,
        "peak_bytes": [priced.memory.peak],
        "limiter": "",
    }
