"""What a training to a target takes, for programs: the choice, its rivals, the front, what was compared."""

import math
from collections.abc import Iterable
from typing import Any

from trimaran.planner.accuracy.stopping import Stop
from trimaran.planner.accuracy.types import Estimate
from trimaran.program.files import to_plain
from trimaran.session.accuracy.types import Outlook


def outlook_document(outlook: Outlook) -> dict[str, Any]:
    """A choice of strategy, batch and devices.

    Args:
        outlook: the choice

    Returns:
        The figures of the chosen one at the top and in `chosen`; `candidates` by batch and number of devices, the best
        data parallelism and the best hybrid of each; `pareto` of time and cost; `rivals`; `stop`; `curve`. Times in
        seconds, intervals of 90 % as `[low, high]`, null where there is no curve.
    """
    figures = _figures(outlook.chosen)
    named = {"strategy", "step_time_s", "interval_s", "limiter", "peak_bytes", "samples_per_s"}
    return {
        "objective": outlook.goal,
        "asked": outlook.asked,
        **{name: value for name, value in figures.items() if name not in named},
        "devices": outlook.chosen.devices,
        "batches": list(outlook.batches),
        "left_out": [{"global_batch_size": batch, "reason": reason} for batch, reason in outlook.left_out],
        "curve": _curve(outlook),
        "learning_rate_rule": _rule(outlook),
        "price": None if outlook.price is None else str(outlook.price),
        "candidates": [_figures(one) for one in best_of_each(outlook.estimates)],
        "pareto": [_figures(one) for one in outlook.front],
        "rivals": {
            "data_parallel": None if outlook.rivals.data_parallel is None else _figures(outlook.rivals.data_parallel),
            "hybrid": None if outlook.rivals.hybrid is None else _figures(outlook.rivals.hybrid),
            "reason": outlook.rivals.reason,
        },
        "stop": None if outlook.stop is None else _stop(outlook.stop),
        "uncertainty": "90 %; the step's and the curve's distances from the median in quadrature, in logarithms",
    }


def with_outlook(document: dict[str, Any], outlook: Outlook) -> dict[str, Any]:
    """The document of a plan with what a training to the target takes.

    Args:
        document: of the strategy at the chosen batch; its candidates and front go under `at_batch`
        outlook: the choice
    """
    moved = {name: document[name] for name in ("candidates", "pareto", "devices") if name in document}
    figures = _figures(outlook.chosen)
    whole = outlook_document(outlook)
    figures |= {"objective": whole["objective"], "asked": whole["asked"]}
    chosen = document["chosen"] | {name: value for name, value in figures.items() if name not in document["chosen"]}
    return document | whole | {"chosen": chosen, "at_batch": moved}


def best_of_each(estimates: Iterable[Estimate]) -> list[Estimate]:
    """Of each batch and number of devices the fastest data parallelism and the fastest of the others."""
    best: dict[tuple[int, int, bool], Estimate] = {}
    for one in estimates:
        key = (one.global_batch, one.devices, one.contender.is_hybrid)
        kept = best.get(key)
        rank = (one.contender.step_time_s, one.contender.simplicity)
        if kept is None or rank < (kept.contender.step_time_s, kept.contender.simplicity):
            best[key] = one
    return [best[key] for key in sorted(best)]


def _figures(one: Estimate) -> dict[str, Any]:
    contender, training = one.contender, one.training
    epochs = None if training is None else training.epochs
    updates = None if training is None else training.updates
    return {
        "strategy": contender.name,
        "devices": contender.devices,
        "global_batch_size": contender.global_batch,
        "local_batch_size": contender.local_batch,
        "microbatch_size": contender.microbatch,
        "hybrid": contender.is_hybrid,
        "step_time_s": contender.step_time_s,
        "interval_s": [contender.cases[0], contender.cases[2]],
        "samples_per_s": contender.samples_per_s,
        "peak_bytes": contender.peak_bytes,
        "limiter": contender.limiter,
        "epochs_to_converge": None if epochs is None else epochs.amount,
        "epochs_to_converge_interval": None if epochs is None else _ends(epochs.low, epochs.high),
        "steps_per_epoch": None if training is None else training.steps_per_epoch,
        "steps_per_epoch_interval": None
        if training is None or training.steps_per_epoch is None
        else [training.steps_per_epoch, training.steps_per_epoch],
        "updates_to_converge": None if updates is None else updates.amount,
        "updates_to_converge_interval": None if updates is None else _ends(updates.low, updates.high),
        "convergence_source": None if updates is None else updates.source,
        "time_to_accuracy_s": one.time_s,
        "time_to_accuracy_interval_s": None if one.time_interval_s is None else _ends(*one.time_interval_s),
        "cost": one.cost,
        "cost_interval": None if one.cost_interval is None else _ends(*one.cost_interval),
        "cost_unit": one.cost_unit,
    }


def _ends(low: float, high: float) -> list[float | None]:
    """An interval; an end that is not finite is null."""
    return [value if math.isfinite(value) else None for value in (low, high)]


def _curve(outlook: Outlook) -> dict[str, Any] | None:
    curve = outlook.curve
    if curve is None:
        return None
    return {
        "name": outlook.curve_name,
        "task": curve.table.task,
        "source": curve.table.source,
        "target": curve.table.target,
        "projection": curve.table.projection,
        "known_batches": list(curve.range),
        "e0": curve.fit.e0,
        "b_crit": curve.fit.b_crit if math.isfinite(curve.fit.b_crit) else None,
        "unit": curve.table.unit,
    }


def _rule(outlook: Outlook) -> dict[str, Any] | None:
    recipe = None if outlook.curve is None else outlook.curve.table.recipe
    return None if recipe is None else to_plain(recipe)


def _stop(stop: Stop) -> dict[str, Any]:
    return {
        "devices": stop.devices,
        "interval": list(stop.interval),
        "least_saved_per_doubling": stop.share,
        "saved_per_doubling": {str(count): saved for count, saved in stop.saved.items()},
        "counts": list(stop.counts),
    }
