"""An explanation as a JSON document, for programs."""

from typing import Any

from trimaran.measure.costs import name_link
from trimaran.planner.binding import binding, groups
from trimaran.planner.contrast import Anatomy, Contrast
from trimaran.planner.explain import Rival
from trimaran.planner.outcomes import Outcome
from trimaran.program.files import to_plain
from trimaran.report.remedies import remedies_document
from trimaran.session.explaining import Explained
from trimaran.session.searches import search_document


def explanation_document(explained: Explained) -> dict[str, Any]:
    """An explanation, for programs."""
    explanation, link = explained.explanation, explained.planned.cluster.link
    return {
        "job": explained.planned.source.reference,
        "global_batch_size": explained.planned.job.global_batch_size,
        "devices": explained.planned.cluster.size,
        "link": None if link is None else name_link(link),
        "objective": explanation.chosen.candidate.objective,
        "plan": _anatomy(explanation.chosen) | {"binding": binding(explanation.chosen)},
        "critical_path": [
            {
                "instruction": None if leg.instruction is None else leg.instruction.id,
                "start_s": leg.start_s,
                "end_s": leg.end_s,
                "alone_s": leg.alone_s,
            }
            for leg in explanation.chosen.legs
        ],
        "rivals": [_rival(rival) for rival in explanation.rivals],
        "rejected": [
            {"strategy": entry.strategy.name, "cause": entry.cause, "reason": entry.reason}
            for entry in explanation.rejected
        ],
        **search_document(explained.found, prices=explained.planned.prices),
        "why_not": [_contrast(answer) for answer in explanation.contrasts],
        "what_if": [_outcome(outcome) for outcome in explanation.outcomes],
        "remedies": remedies_document(explained.remedies),
        "not_worth_it": remedies_document(explained.not_worth_it),
        "training": None if explained.planned.plan.training is None else to_plain(explained.planned.plan.training),
        "notes": list(explained.notes),
    }


def _anatomy(anatomy: Anatomy) -> dict[str, Any]:
    candidate = anatomy.candidate
    return {
        "strategy": candidate.strategy.name,
        "step_time_s": candidate.step_time_s,
        "interval_s": list(candidate.interval_s),
        "epoch_s": candidate.epoch_s,
        "parts_s": {str(part): seconds for part, seconds in anatomy.parts.items()},
        "groups_s": groups(anatomy),
        "idle": anatomy.idle,
        "peak_bytes": list(candidate.peak_bytes),
    }


def _rival(rival: Rival) -> dict[str, Any]:
    return {
        "strategy": rival.candidate.strategy.name,
        "step_time_s": rival.candidate.step_time_s,
        "interval_s": list(rival.candidate.interval_s),
        "epoch_s": rival.candidate.epoch_s,
        "slower": rival.slower,
        "slower_interval": list(rival.interval),
        "within_uncertainty": not rival.is_certain,
    }


def _contrast(answer: Contrast) -> dict[str, Any]:
    return {
        "asked": answer.asked,
        "best": None if answer.other is None else _anatomy(answer.other),
        "obstacle": answer.obstacle,
        "conclusion": answer.conclusion,
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "change": outcome.change.text,
        "step_time_s": None if outcome.kept is None else outcome.kept.step_time_s,
        "epoch_s": None if outcome.kept is None else outcome.kept.epoch_s,
        "gain": outcome.gain,
        "gain_interval": None if outcome.gain_interval is None else list(outcome.gain_interval),
        "then_chosen": None if outcome.best is None else outcome.best.strategy.name,
        "then_step_time_s": None if outcome.best is None else outcome.best.step_time_s,
        "then_epoch_s": None if outcome.best is None else outcome.best.epoch_s,
        "then_gain": outcome.best_gain,
        "another_plan_wins": outcome.switches,
        "obstacle": outcome.obstacle,
    }
