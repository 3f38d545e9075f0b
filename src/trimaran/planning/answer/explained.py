"""A plan with its explanation: for people sentences and tables readable at 80 columns, for programs a document."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from trimaran.base.units import format_bytes, format_seconds, format_span
from trimaran.planner.analytical.candidates import PARTS, AnalyticalCandidate
from trimaran.planner.choice import Option
from trimaran.planner.explanation.contrast import Anatomy, Contrast, binding
from trimaran.planner.explanation.critical_path import TimeClass
from trimaran.planner.explanation.explain import Alternative, Explanation, alternative
from trimaran.planner.explanation.remedies import Outcome
from trimaran.planner.result import Search
from trimaran.planning.answer.documents import (
    goal_of_plan,
    head_document,
    option_document,
    rates_document,
    rejections_document,
    search_document,
    shown_document,
)
from trimaran.planning.answer.pages import (
    print_counts,
    print_notes,
    print_prices,
    print_rejections,
    print_rule,
    print_verdict,
)
from trimaran.planning.answer.results import Planned
from trimaran.program.json_files import to_plain
from trimaran.program.strategy import strategy_legend
from trimaran.report.plans import training_line
from trimaran.report.remedies import remedies_view, share_saved
from trimaran.report.tables import add_figures, add_words, frame_table, page_text, shows_all

# Alternatives that a table shows; the JSON document has them all.
MOST_ALTERNATIVES = 8

# Gains below this are not shown in a separate line.
NO_DIFFERENCE = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A plan with its explanation.

    Attributes:
        planned: the plan and its evidence; of a machine of the catalog, without a measured table
        found: the search, by present costs
        explanation: why
        notes: for the user
    """

    planned: Planned
    found: Search[Any]
    explanation: Explanation
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return page_text(lambda out: print_explanation(out, self))


def print_explanation(out: Console, explained: Explained) -> None:
    """Print why a plan is what it is."""
    explanation, outlook = explained.explanation, explained.planned.outlook
    print_verdict(out, explained.planned, shown_document(explained.planned))
    peak = format_bytes(explanation.chosen.peak_bytes)
    who = "The device" if explained.planned.chosen.strategy.devices == 1 else "The fullest rank"
    out.print(f"{who} needs {peak}, of {format_bytes(int(explained.planned.memory_bytes))}.\n")
    if outlook is not None:
        out.print(escape(f"Over all batches: {outlook.hybrid_comparison.reason}."))
    training = explained.planned.evidence.plan.training
    if training is not None:
        out.print(escape(f"{training_line(to_plain(training))}.\n"))
    out.print(parts_table(explanation.chosen))
    print_prices(out, explanation.prices)
    for answer in explanation.contrasts:
        out.print(f"\n[bold]Why not {escape(answer.asked)}?[/] {escape(answer.conclusion)}")
        if answer.other is not None and answer.other.candidate.name != explanation.chosen.candidate.name:
            out.print()
            out.print(contrast_table(explanation.chosen, answer.other))
    if explanation.chosen.legs:
        # Remedies are simulated, which takes a program.
        out.print()
        out.print(remedies_view(explanation.remedies, not_worth=explanation.not_worth_it))
    out.print()
    _print_outcomes(out, explanation.outcomes, is_here=explained.planned.request.is_here)
    _print_alternatives(out, explained)
    print_notes(out, explained.notes)


def parts_table(anatomy: Anatomy) -> Table:
    """A step by class."""
    table = frame_table(
        "What the step is made of",
        "class: of the critical path of the simulated step, which they sum to"
        if anatomy.legs
        else "class: of the analytical model of a step, which they sum to",
    )
    add_words(table, "class")
    add_figures(table, "time", "share")
    add_words(table, "what it is")
    step_s = anatomy.candidate.step_time_s
    for part, seconds in sorted(anatomy.parts.items(), key=lambda entry: -entry[1]):
        if seconds > 0.0:
            table.add_row(str(part), format_seconds(seconds), f"{100 * seconds / step_s:.1f} %", _MEANINGS[part])
    return table


_MEANINGS: Mapping[str, str] = {
    TimeClass.LOAD: "fetching and collating batches",
    TimeClass.FORWARD: "with nothing at the same time",
    TimeClass.BACKWARD: "with nothing at the same time",
    TimeClass.SLOWED: "what compute loses to transfers at the same time",
    TimeClass.EXCHANGE: "of gradients, not overlapped",
    TimeClass.MESSAGES: "between stages, not overlapped",
    TimeClass.BUBBLE: "other stages, while the one that binds waits",
    TimeClass.UPDATE: "optimizer and clipping",
    TimeClass.AFTER: "into buffers and out of them, and waiting for the slowest rank",
    TimeClass.LOOP: "what Python does between instructions",
    TimeClass.WAIT: "nothing runs",
    PARTS["compute_s"]: "matrix products, attention and the rest, on the slowest stage",
    PARTS["tensor_s"]: "in groups that share layers or sequences",
    PARTS["bubble_s"]: "the pipeline fills and drains",
    PARTS["send_s"]: "of activations and their gradients, not overlapped",
    PARTS["data_s"]: "of gradients and parameters, not overlapped",
    PARTS["slowest_s"]: "ranks wait for the slowest of them",
    PARTS["unequal_s"]: "replicas wait for the one whose documents take longest",
}


def contrast_table(chosen: Anatomy, other: Anatomy) -> Table:
    """Two plans class by class."""
    mine, theirs = chosen.candidate, other.candidate
    table = frame_table("Class by class", "difference: of the other plan; those of the classes sum to that of the step")
    add_words(table, "class")
    add_figures(table, mine.name, theirs.name, "difference", no_wrap=False)
    for part in dict.fromkeys((*chosen.parts, *other.parts)):
        ours, others = chosen.parts.get(part, 0.0), other.parts.get(part, 0.0)
        if ours or others:
            table.add_row(str(part), *_compared(ours, others))
    table.add_section()
    if mine.epoch_s is not None and theirs.epoch_s is not None:
        table.add_row("epoch", *_compared(mine.epoch_s, theirs.epoch_s))
    table.add_row("step", *_compared(mine.step_time_s, theirs.step_time_s), style="bold")
    if chosen.idle is not None and other.idle is not None:
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


def alternative_table(
    alternatives: Sequence[Alternative],
    chosen: Option,
    *,
    references: Sequence[tuple[str, Alternative]] = (),
    is_fresh: bool = False,
) -> Table:
    """The other candidates, fastest first, and what others would run.

    Args:
        alternatives: of the plan
        chosen: the plan
        references: what others would run, by its role
        is_fresh: the search that found the alternatives chose it, by a rule that is said below
    """
    caption = "slower: than the plan; interval: over low, median and high costs"
    if any(not one.is_certain for one in (*alternatives, *(one for _, one in references))):
        caption += "\n≈ within the uncertainty: it may be as fast as the plan"
    if any(one.candidate.samples_factor != chosen.samples_factor for one in alternatives):
        caption = caption.replace("than the plan", "than the plan, to the target: PowerSGD may need more samples")
    table = frame_table("Runners-up, and what others would run" if references else "Runners-up", caption)
    add_words(table, "strategy")
    table.add_column(_measure(one.candidate for one in alternatives), justify="right", no_wrap=True)
    add_figures(table, "slower", "interval", "memory")
    add_words(table, "verdict")
    for role, one in [*(("", one) for one in alternatives), *references]:
        low, high = one.interval
        table.add_row(
            f"{role}: {one.candidate.name}" if role not in ("", one.candidate.name) else one.candidate.name,
            format_seconds(one.candidate.time_s),
            f"{_percent(one.slower)} %",
            f"{format_span(_percent(low), _percent(high))} %",
            format_bytes(max(one.candidate.peak_bytes, default=0)),
            _verdict(one, is_fresh=is_fresh),
        )
    return table


def _verdict(one: Alternative, *, is_fresh: bool) -> str:
    if not one.is_certain:
        return "≈"
    if one.slower > 0.0:
        return "slower"
    return "faster, but not chosen: see below" if is_fresh else "faster: plan again"


def _percent(share: float) -> str:
    """A signed share: what a whole percent would not show has a digit behind the point."""
    percent = 100 * share
    return f"{percent:+z.1f}" if abs(percent) < 9.95 else f"{percent:+.0f}"


def _measure(candidates: Iterable[Option]) -> str:
    """The unit of the comparison: steps or epochs."""
    return "epoch" if any(candidate.objective == "epoch" for candidate in candidates) else "step"


def outcome_table(outcomes: Sequence[Outcome], *, is_here: bool = True) -> Table:
    """The gain of each change, on this machine or on another."""
    caption = "this plan: its time then; gain: share of the time saved; n×: n times as long\n"
    caption += "then chosen: by a new search; =: this plan; its step: of what is then chosen"
    if any(outcome.change.what == "devices" for outcome in outcomes):
        caption += f"\ndevices: each like those there are{', with a core each' if is_here else ''}"
    pairs = [(one.kept, one.best) for one in outcomes if one.kept is not None and one.best is not None]
    if any(kept.samples_factor != best.samples_factor for kept, best in pairs):
        caption = caption.replace("by a new search", "by a new search, the soonest to the target")
    table = frame_table("What a change would give", caption)
    add_words(table, "change")
    add_figures(table, "this plan", "gain", "interval")
    table.add_column("then chosen", min_width=len("then chosen"))
    compared = (one for outcome in outcomes for one in (outcome.kept, outcome.best) if one is not None)
    add_figures(table, f"its {_measure(compared)}")
    for outcome in outcomes:
        best = outcome.best
        table.add_row(
            outcome.change.name,
            "–" if outcome.kept is None else format_seconds(outcome.kept.time_s),
            "–" if outcome.gain is None else share_saved(outcome.gain),
            "" if outcome.gain_interval is None else _range(outcome.gain_interval),
            "–" if best is None else best.strategy.name if outcome.switches else "=",
            format_seconds(best.time_s) if best is not None and outcome.switches else "",
        )
    return table


def _print_alternatives(out: Console, explained: Explained) -> None:
    explanation = explained.explanation
    chosen, alternatives = (
        explanation.chosen.candidate,
        explanation.alternatives[: None if shows_all(out) else MOST_ALTERNATIVES],
    )
    shown = {chosen.name, *(one.candidate.name for one in alternatives)}
    others = explained.found.baselines
    known = [(one.role, one.candidate) for one in others if one.candidate is not None]
    references = [(role, alternative(candidate, chosen)) for role, candidate in known if candidate.name not in shown]
    if alternatives or references:
        out.print()
        out.print(alternative_table(alternatives, chosen, references=references, is_fresh=explanation.is_fresh))
        if words := strategy_legend([*shown, *(one.candidate.name for _, one in references)]):
            out.print(f"[dim]{words}[/]")
        more = len(explanation.alternatives) - len(alternatives)
        if more > 0:
            out.print(f"[dim]and {more} more: --verbose lists all[/]")
    print_rule(out, explanation.rule)
    for one in others:
        if one.candidate is None:
            out.print(f"[dim]no {escape(one.role)}: {escape(one.reason)}[/]")
    if shows_all(out):
        print_rejections(out, explanation.rejected, named=True)
    else:
        print_counts(out, explanation.rejected)
    if explained.found.counts:
        counts = "; ".join(f"{reason} ({number})" for reason, number in explained.found.counts.items())
        out.print(f"[dim]rejected: {escape(counts)}[/]")


def _print_outcomes(out: Console, outcomes: Sequence[Outcome], *, is_here: bool) -> None:
    telling = [outcome for outcome in outcomes if not _is_nothing(outcome)]
    if telling:
        out.print(outcome_table(telling, is_here=is_here))
    nothing = [outcome.change.name for outcome in outcomes if _is_nothing(outcome)]
    if nothing:
        out.print(f"[dim]No difference: {', '.join(nothing)}[/]")
    for outcome in outcomes:
        if outcome.obstacle:
            out.print(f"[dim]{outcome.change.name}: {escape(outcome.obstacle)}[/]")


def _compared(mine_s: float, theirs_s: float) -> tuple[str, str, str]:
    return format_seconds(mine_s), format_seconds(theirs_s), _signed(theirs_s - mine_s)


def _signed(seconds: float) -> str:
    if not seconds:
        return "0"
    return ("+" if seconds > 0 else "−") + format_seconds(abs(seconds))


def _is_nothing(outcome: Outcome) -> bool:
    """Whether a change makes no difference that the table would show."""
    return outcome.gain is not None and abs(outcome.gain) < NO_DIFFERENCE and not outcome.switches


def _range(ends: tuple[float, float]) -> str:
    low, high = ends
    if low < -1:
        return format_span(share_saved(low), share_saved(high))
    return f"{format_span(f'{100 * low:.0f}', f'{100 * high:.0f}')} %"


# ---------------------------------------------------------------------------------------------------------------------
# An explanation as a JSON document, for programs


def explanation_document(explained: Explained) -> dict[str, Any]:
    """An explanation, for programs: the same keys for every plan; what needs a program is empty where there is none."""
    explanation, planned = explained.explanation, explained.planned
    training = planned.evidence.plan.training
    found = search_document(explained.found, prices=explanation.prices, goal=goal_of_plan(planned.outlook))
    return {
        **head_document(planned),
        "plan": {
            **_anatomy(explanation.chosen),
            **rates_document(planned, explanation.chosen.candidate, planned.global_batch_size),
            "binding": binding(explanation.chosen.candidate),
            "memory_limit_bytes": planned.memory_bytes,
        },
        "critical_path": [
            {
                "instruction": None if leg.instruction is None else leg.instruction.id,
                "start_s": leg.start_s,
                "end_s": leg.end_s,
                "alone_s": leg.alone_s,
            }
            for leg in explanation.chosen.legs
        ],
        "alternatives": [_alternative(one) for one in explanation.alternatives],
        "rejected": rejections_document(explanation.rejected),
        **found,
        "references": [
            brief | _of_reference(one.candidate, explanation.chosen.candidate)
            for brief, one in zip(found["references"], explained.found.baselines, strict=True)
        ],
        "why_not": [_contrast(answer) for answer in explanation.contrasts],
        "what_if": [_outcome(outcome) for outcome in explanation.outcomes],
        "remedies": to_plain(explanation.remedies),
        "not_worth_it": to_plain(explanation.not_worth_it),
        "training": None if training is None else to_plain(training),
        "notes": list(explained.notes),
    }


def _anatomy(anatomy: Anatomy) -> dict[str, Any]:
    return option_document(anatomy.candidate) | {
        "parts_s": {str(part): seconds for part, seconds in anatomy.parts.items()},
        "idle": anatomy.idle,
    }


def _of_reference(candidate: Option | None, chosen: Option) -> dict[str, Any]:
    """What a reference has in addition; of parallel degrees also their parts: nothing else has them."""
    if candidate is None:
        return {}
    own = option_document(candidate) if isinstance(candidate, AnalyticalCandidate) else {}
    return own | _slower(alternative(candidate, chosen))


def _alternative(one: Alternative) -> dict[str, Any]:
    return option_document(one.candidate) | _slower(one)


def _slower(one: Alternative) -> dict[str, Any]:
    return {
        "slower": one.slower,
        "slower_interval": list(one.interval),
        "within_uncertainty": not one.is_certain,
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
