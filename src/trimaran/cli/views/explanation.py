"""How an explanation looks to people: sentences, and tables readable at 80 columns."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from trimaran.base.units import format_bytes, format_seconds
from trimaran.cli.views.plans import over_links, print_notes, print_prices, rejection_line
from trimaran.measure.costs import name_link
from trimaran.planner.candidates import Candidate
from trimaran.planner.contrast import Anatomy, Contrast, binding, groups
from trimaran.planner.critical_path import Part
from trimaran.planner.explain import Explanation, Rival
from trimaran.planner.remedies import Outcome
from trimaran.planner.space import Cause, Rejection
from trimaran.planning.documents import search_document
from trimaran.planning.explanation import Explained
from trimaran.program.json_files import to_plain
from trimaran.report.plans import training_line
from trimaran.report.remedies import remedies_document, remedy_table
from trimaran.report.tables import frame_table

# Rivals that a table shows; the JSON document has them all.
MOST_RIVALS = 8

# Gains below this are not shown as a line of their own.
NO_DIFFERENCE = 0.001


def print_explanation(out: Console, explained: Explained) -> None:
    """Print why a plan is what it is."""
    explanation, run = explained.explanation, explained.planned.simulated
    chosen = explanation.chosen.candidate
    print_notes(out, explained.notes)
    low, high = chosen.interval_s
    epoch = "" if chosen.epoch_s is None else f"{format_seconds(chosen.epoch_s)} an epoch, "
    out.print(
        f"[bold]{chosen.strategy.name}[/] for {escape(run.job.name)}, global batch "
        f"{run.job.global_batch_size}{over_links(run)}: "
        f"{epoch}{format_seconds(chosen.step_time_s)} a step "
        f"(90 %: {format_seconds(low)} to {format_seconds(high)})."
    )
    sentence = binding(explanation.chosen)
    out.print(escape(sentence[:1].upper() + sentence[1:]) + "\n")
    if explained.planned.outlook is not None:
        rivals = explained.planned.outlook.rivals
        out.print(escape(f"Over all batches: {rivals.reason}."), soft_wrap=True)
    if run.plan.training is not None:
        out.print(escape(f"{training_line(to_plain(run.plan.training))}.\n"), soft_wrap=True)
    out.print(parts_table(explanation.chosen))
    print_prices(out, run.prices)
    _print_rivals(out, explanation)
    for answer in explanation.contrasts:
        out.print(f"\n[bold]Why not {escape(answer.asked)}?[/] {escape(answer.conclusion)}")
        if answer.other is not None and answer.other is not explanation.chosen:
            out.print()
            out.print(contrast_table(explanation.chosen, answer.other))
    out.print()
    telling = [outcome for outcome in explanation.outcomes if not _is_nothing(outcome)]
    if telling:
        out.print(outcome_table(telling))
    nothing = [outcome.change.name for outcome in explanation.outcomes if _is_nothing(outcome)]
    if nothing:
        out.print(f"[dim]No difference: {', '.join(nothing)}[/]")
    for outcome in explanation.outcomes:
        if outcome.obstacle:
            out.print(f"[dim]{outcome.change.name}: {escape(outcome.obstacle)}[/]")
    _print_remedies(out, explained)


def parts_table(anatomy: Anatomy) -> Table:
    """The critical path of a step by class."""
    table = frame_table(
        "What the step is made of",
        "the critical path of the simulated step, which its classes sum to",
    )
    table.add_column("class")
    table.add_column("time", justify="right")
    table.add_column("share", justify="right")
    table.add_column("what it is")
    step_s = anatomy.candidate.step_time_s
    for part, seconds in sorted(anatomy.parts.items(), key=lambda entry: -entry[1]):
        if seconds > 0.0:
            table.add_row(str(part), format_seconds(seconds), f"{100 * seconds / step_s:.1f} %", _MEANINGS[part])
    return table


_MEANINGS = {
    Part.LOAD: "fetching and collating batches",
    Part.FORWARD: "with nothing beside it",
    Part.BACKWARD: "with nothing beside it",
    Part.SLOWED: "what compute loses to transfers beside it",
    Part.EXCHANGE: "of gradients, that nothing hides",
    Part.MESSAGES: "between stages, that nothing hides",
    Part.BUBBLE: "other stages, while the one that binds waits",
    Part.UPDATE: "optimizer and clipping",
    Part.WAIT: "nothing runs",
}


def contrast_table(chosen: Anatomy, other: Anatomy) -> Table:
    """Two plans class by class."""
    table = frame_table("Class by class", "the differences of the classes sum to that of the steps")
    table.add_column("class")
    for title in (chosen.candidate.strategy.name, other.candidate.strategy.name, "difference"):
        table.add_column(title, justify="right")
    for part in Part:
        mine, theirs = chosen.parts[part], other.parts[part]
        if mine or theirs:
            table.add_row(str(part), format_seconds(mine), format_seconds(theirs), _signed(theirs - mine))
    step = (chosen.candidate.step_time_s, other.candidate.step_time_s)
    table.add_section()
    epochs = (chosen.candidate.epoch_s, other.candidate.epoch_s)
    if epochs[0] is not None and epochs[1] is not None:
        table.add_row("epoch", format_seconds(epochs[0]), format_seconds(epochs[1]), _signed(epochs[1] - epochs[0]))
    table.add_row("step", format_seconds(step[0]), format_seconds(step[1]), _signed(step[1] - step[0]), style="bold")
    table.add_row(
        "devices idle",
        f"{100 * chosen.idle:.0f} %",
        f"{100 * other.idle:.0f} %",
        f"{100 * (other.idle - chosen.idle):+.0f} points",
    )
    more = other.peak_bytes - chosen.peak_bytes
    table.add_row(
        "peak memory",
        format_bytes(chosen.peak_bytes),
        format_bytes(other.peak_bytes),
        ("+" if more >= 0 else "−") + format_bytes(abs(more)),
    )
    return table


def rival_table(rivals: tuple[Rival, ...], chosen: Candidate) -> Table:
    """The other candidates, fastest first."""
    caption = "slower: than the plan\ninterval: over low, median and high costs"
    if any(rival.candidate.samples_factor != chosen.samples_factor for rival in rivals):
        caption = caption.replace("than the plan", "than the plan, to the target: PowerSGD may need more samples")
    table = frame_table("Runners-up", caption)
    table.add_column("strategy")
    table.add_column(_measure(rival.candidate for rival in rivals), justify="right", no_wrap=True)
    table.add_column("slower", justify="right", no_wrap=True)
    table.add_column("interval", justify="right", no_wrap=True)
    table.add_column("so it is")
    for rival in rivals:
        low, high = rival.interval
        table.add_row(
            rival.candidate.strategy.name,
            format_seconds(rival.candidate.time_s),
            f"{100 * rival.slower:+.0f} %",
            f"{100 * low:+.0f} to {100 * high:+.0f} %",
            _verdict(rival),
        )
    return table


def _verdict(rival: Rival) -> str:
    if not rival.is_certain:
        return "within the uncertainty"
    return "slower" if rival.slower > 0.0 else "faster: plan again"


def _measure(candidates: Iterable[Candidate]) -> str:
    """What is compared: steps or epochs."""
    return "epoch" if any(candidate.objective == "epoch" for candidate in candidates) else "step"


def outcome_table(outcomes: Sequence[Outcome]) -> Table:
    """What each change would give."""
    caption = "gain: share of the time saved; n×: n times as long\nthen chosen: by a new search; =: this plan"
    if any(outcome.change.what == "devices" for outcome in outcomes):
        caption += "\ndevices: each like those there are, with a core of its own"
    pairs = [(one.kept, one.best) for one in outcomes if one.kept is not None and one.best is not None]
    if any(kept.samples_factor != best.samples_factor for kept, best in pairs):
        caption = caption.replace("by a new search", "by a new search, the soonest to the target")
    table = frame_table("What a change would give", caption)
    table.add_column("change")
    table.add_column("this plan", justify="right", no_wrap=True)
    table.add_column("gain", justify="right", no_wrap=True)
    table.add_column("interval", justify="right", no_wrap=True)
    table.add_column("then chosen", min_width=len("then chosen"))
    compared = (one for outcome in outcomes for one in (outcome.kept, outcome.best) if one is not None)
    table.add_column(f"its {_measure(compared)}", justify="right", no_wrap=True)
    for outcome in outcomes:
        best = outcome.best
        table.add_row(
            outcome.change.name,
            "–" if outcome.kept is None else format_seconds(outcome.kept.time_s),
            _share(outcome.gain),
            "" if outcome.gain_interval is None else _range(outcome.gain_interval),
            "–" if best is None else best.strategy.name if outcome.switches else "=",
            format_seconds(best.time_s) if best is not None and outcome.switches else "",
        )
    return table


def _print_rivals(out: Console, explanation: Explanation) -> None:
    if explanation.rivals:
        out.print()
        out.print(rival_table(explanation.rivals[:MOST_RIVALS], explanation.chosen.candidate))
        more = len(explanation.rivals) - MOST_RIVALS
        if more > 0:
            out.print(f"[dim]and {more} more[/]")
    by_cause: dict[Cause, list[Rejection]] = {}
    for rejection in explanation.rejected:
        by_cause.setdefault(rejection.cause, []).append(rejection)
    for cause, rejections in by_cause.items():
        out.print(f"[dim]{escape(_rejected(cause, rejections))}[/]")


def _rejected(cause: Cause, rejections: Sequence[Rejection]) -> str:
    """What was rejected for one cause, in one line."""
    names = ", ".join(rejection.strategy.name for rejection in rejections)
    if cause == "bound" and len(rejections) > 1:
        return f"rejected by the bound of their time, without a simulation: {names}"
    if cause == "batch":
        return f"rejected, as the batch does not divide: {names}"
    return rejection_line(rejections)


def _print_remedies(out: Console, explained: Explained) -> None:
    out.print()
    if explained.remedies:
        out.print(remedy_table(explained.remedies))
    else:
        out.print("No known remedy would save more than the simulation leaves out.")
    if explained.not_worth_it:
        names = ", ".join(f"{remedy.name} ({_share(remedy.predicted_gain)})" for remedy in explained.not_worth_it)
        out.print(f"[dim]Not worth it here: {names}[/]")


def _signed(seconds: float) -> str:
    if not seconds:
        return "0"
    return ("+" if seconds > 0 else "−") + format_seconds(abs(seconds))


def _share(share: float | None) -> str:
    """A share of the time that is saved; where more than as much again is lost, how many times as long it takes."""
    if share is None:
        return "–"
    return f"{1 - share:.3g}×" if share < -1 else f"{100 * share:.0f} %"


def _is_nothing(outcome: Outcome) -> bool:
    """Whether a change makes no difference that the table would show."""
    return outcome.gain is not None and abs(outcome.gain) < NO_DIFFERENCE and not outcome.switches


def _range(ends: tuple[float, float]) -> str:
    low, high = ends
    return f"{100 * low:.0f} to {100 * high:.0f} %" if low >= -1 else f"{_share(low)} to {_share(high)}"


# ---------------------------------------------------------------------------------------------------------------------
# An explanation as a JSON document, for programs


def explanation_document(explained: Explained) -> dict[str, Any]:
    """An explanation, for programs."""
    explanation, run = explained.explanation, explained.planned.simulated
    link, training = run.cluster.link, run.plan.training
    return {
        "job": explained.planned.reference,
        "global_batch_size": run.job.global_batch_size,
        "devices": run.cluster.size,
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
        **search_document(explained.found, prices=run.prices),
        "why_not": [_contrast(answer) for answer in explanation.contrasts],
        "what_if": [_outcome(outcome) for outcome in explanation.outcomes],
        "remedies": remedies_document(explained.remedies),
        "not_worth_it": remedies_document(explained.not_worth_it),
        "training": None if training is None else to_plain(training),
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
