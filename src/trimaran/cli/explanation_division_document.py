"""The explanation of a division as a JSON document: the keys of any explanation, as far as closed forms answer them."""

from typing import Any

from trimaran.planner.divisions.contrast import PARTS, binding_part, parts_of
from trimaran.planner.divisions.document import degrees, division_name
from trimaran.planner.divisions.types import PricedDivision
from trimaran.session.explaining_divisions import DivisionPrice, ExplainedDivision


def division_explanation_document(explained: ExplainedDivision) -> dict[str, Any]:
    """An explanation, for programs."""
    plan, found = explained.plan, explained.plan.search
    base_s = found.chosen.seconds
    return {
        "job": plan.reference,
        "cluster": plan.request.cluster,
        "global_batch_size": found.task.batch,
        "devices": found.task.devices,
        "objective": "throughput" if plan.outlook is None else plan.outlook.goal,
        "plan": _priced(found.chosen) | {"binding": binding_part(found.chosen)},
        "rivals": [_priced(rival) | {"slower": rival.seconds / base_s - 1.0} for rival in found.runners_up],
        "references": [
            {"role": one.name, "reason": one.reason} | ({} if one.priced is None else _priced(one.priced))
            for one in found.baselines
        ],
        "rejected_counts": dict(found.rejected),
        "pins": [_price(entry) for entry in explained.prices],
        "search": {
            "seconds": found.seconds,
            "gap": found.gap,
            "bound_s": found.bound_s,
            "is_complete": found.complete,
        },
        "why_not": [
            {
                "asked": answer.asked,
                "best": None if answer.other is None else _priced(answer.other),
                "conclusion": answer.conclusion,
            }
            for answer in explained.contrasts
        ],
        "notes": list(plan.notes),
    }


def _priced(priced: PricedDivision) -> dict[str, Any]:
    return {
        "strategy": division_name(priced.division),
        "degrees": dict(degrees(priced.division)),
        "step_time_s": priced.seconds,
        "interval_s": [priced.low, priced.high],
        "parts_s": {PARTS[part]: seconds for part, seconds in parts_of(priced).items()},
        "mfu": priced.utilization,
        "peak_bytes": [priced.memory.peak],
    }


def _price(entry: DivisionPrice) -> dict[str, Any]:
    return {
        "pin": entry.pin,
        "without": None if entry.without is None else division_name(entry.without.division),
        "without_step_time_s": None if entry.without is None else entry.without.seconds,
        "price": entry.price,
    }
