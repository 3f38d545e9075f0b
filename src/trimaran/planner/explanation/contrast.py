"""Two plans side by side: where one takes longer than the other, class by class, and a conclusion in one sentence.

The classes are those of the critical path (`critical_path.py`), so that their differences sum to the difference of the
two steps. Costs measured on one machine err together: two plans are compared where all costs are low, at their median
and high, and one counts as slower only if it is slower in all three, by more than the model's error.

The bottleneck of a step, in one sentence: the classes of its critical path in four groups, largest first.

Shortening work off the critical path changes nothing, so the groups are the possible gains.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from trimaran.base.timeline import COMMUNICATION
from trimaran.base.units import format_bytes, format_seconds
from trimaran.planner.candidates import Candidate
from trimaran.planner.choice import Option, compared, may_be_as_fast, why_chosen
from trimaran.planner.explanation.critical_path import INPUT_PIPELINE, Leg, TimeClass, covered, critical_path, parts_of
from trimaran.planner.problem import Problem, costs_of

# A difference below this share of the step is not worth a word.
_NEGLIGIBLE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """Parts of a candidate's step.

    Attributes:
        candidate: the candidate
        parts: time of each class of the step, by its name for people [s]; they sum to the step
        legs: its critical path, where a program was simulated
        idle: share of the step in which a device neither computes nor loads, mean over the devices [0..1]; None where
            no program was simulated
    """

    candidate: Option
    parts: Mapping[str, float]
    legs: tuple[Leg, ...] = ()
    idle: float | None = None

    @property
    def peak_bytes(self) -> int:
        """Largest memory of a rank [bytes]."""
        return int(max(self.candidate.peak_bytes, default=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """A plan compared with the chosen one.

    Attributes:
        asked: subject of the question
        other: the best of that kind; None: there is none that can be simulated
        obstacle: why it cannot be run; empty where it can
        conclusion: one sentence
    """

    asked: str
    other: Anatomy | None
    obstacle: str
    conclusion: str


def dissect(candidate: Candidate, problem: Problem) -> Anatomy:
    """Parts of a candidate's step, by the costs of a problem."""
    program, timeline = candidate.program, candidate.timeline
    legs = critical_path(program, costs_of(candidate, problem))
    busy = [
        covered(span for span in timeline.select(rank=rank) if span.stream != COMMUNICATION) for rank in timeline.ranks
    ]
    step_s = timeline.makespan_s
    parts = parts_of(program, legs, placed=bool(candidate.strategy.parts))
    return Anatomy(
        candidate=candidate,
        legs=legs,
        parts={str(part): seconds for part, seconds in parts.items()},
        idle=1.0 - fmean(busy) / step_s if busy and step_s else 0.0,
    )


def ratios(candidate: Option, reference: Option) -> tuple[float, float, float]:
    """The objective over the reference's, where all costs are low, at their median, and high."""
    pairs = zip(candidate.cases, reference.cases, strict=True)
    low, median, high = (mine / other if other else 1.0 for mine, other in pairs)
    return low, median, high


def is_believed_slower(candidate: Option, reference: Option) -> bool:
    """Whether a candidate is slower than a reference beyond the uncertainty."""
    return not may_be_as_fast(candidate.cases, reference.cases)


def conclude(
    chosen: Anatomy,
    other: Anatomy,
    *,
    obstacle: str = "",
    candidates: Sequence[Option] = (),
    against: str = "",
    goal: str = "",
) -> str:
    """Why one plan was preferred to another, in one sentence.

    Args:
        chosen: the plan
        other: the plan that was not chosen
        obstacle: the reason why the other one cannot be used
        candidates: of the search that chose the plan; none: the plan was given
        against: objection to the other one where it is faster, such as a pin; empty: none
        goal: objective over all batches; empty: the step
    """
    mine, theirs = chosen.candidate, other.candidate
    name, than = theirs.name, mine.name
    ratio = ratios(theirs, mine)[1]
    (figures, where), reasons = compared(theirs, mine), _reasons(chosen, other)
    if where or mine.epoch_s is not None:
        reasons = f"in a step, {reasons}"
    if obstacle:
        return f"{name} would take {figures}, but cannot be run: {obstacle}."
    if ratio < 1.0:
        return why_chosen(mine, theirs, candidates=candidates, against=against, goal=goal)
    if is_believed_slower(theirs, mine):
        return f"{name} is {_longer(ratio)} slower{where} than {than} ({figures}), beyond the uncertainty: {reasons}."
    predicted = f"{name} is predicted {_longer(ratio)} slower{where} than {than}"
    return f"{predicted} ({figures}), within the uncertainty: {reasons}."


def _longer(ratio: float) -> str:
    return f"{ratio:.1f}×" if ratio >= 2.0 else f"{100 * (ratio - 1.0):.0f} %"


def _reasons(chosen: Anatomy, other: Anatomy) -> str:
    """Where the difference lies, largest first."""
    every = dict.fromkeys((*chosen.parts, *other.parts))
    differences = {part: other.parts.get(part, 0.0) - chosen.parts.get(part, 0.0) for part in every}
    least_s = _NEGLIGIBLE * chosen.candidate.step_time_s
    costs = sorted((part for part in differences if differences[part] > least_s), key=lambda part: -differences[part])[
        :3
    ]
    saves = sorted((part for part in differences if -differences[part] > least_s), key=lambda part: differences[part])[
        :2
    ]
    text = _list(f"{format_seconds(differences[part])} more {_WORDS.get(part, part)}" for part in costs)
    saved = _list(f"{format_seconds(-differences[part])} of {_WORDS.get(part, part)}" for part in saves)
    if not text:
        text = "no class of its time is longer by much"
    if saved:
        text += f"; it saves {saved}"
    if other.peak_bytes < (1.0 - 0.1) * chosen.peak_bytes:
        text += f"; it needs {format_bytes(other.peak_bytes)} instead of {format_bytes(chosen.peak_bytes)} a device"
    return text


_WORDS: Mapping[str, str] = {
    TimeClass.LOAD: "loading",
    TimeClass.FORWARD: "forward",
    TimeClass.BACKWARD: "backward",
    TimeClass.SLOWED: "compute slowed by communication",
    TimeClass.EXCHANGE: "exposed gradient exchange",
    TimeClass.MESSAGES: "messages between stages",
    TimeClass.BUBBLE: "bubble",
    TimeClass.UPDATE: "update",
    TimeClass.AFTER: "copies of gradients and waits for the slowest",
    TimeClass.LOOP: "overhead of the loop",
    TimeClass.WAIT: "waiting",
}


def _list(texts: Iterable[str]) -> str:
    words = list(texts)
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


# A group below this share of the step is not named.
_WORTH_NAMING = 0.02


def binding(option: Option) -> str:
    """The bottleneck of a step, in one sentence: the same one wherever a plan is shown; empty where it is not known.

    Args:
        option: the plan
    """
    step_s = option.step_time_s
    spent = sorted(option.groups_s.items(), key=lambda entry: -entry[1])
    if not spent or not step_s:
        return f"limited by {option.limiter}." if option.limiter else ""
    seconds = spent[0][1]
    if option.subject == INPUT_PIPELINE:
        waits_s = option.groups_s["loading"]
        return (
            f"limited by the {INPUT_PIPELINE}: the step waits {format_seconds(waits_s)} for its data, "
            f"{100 * waits_s / step_s:.0f} % of it, and nothing else shortens it."
        )
    others = [
        f"{other} {100 * part_s / step_s:.0f} %" for other, part_s in spent[1:] if part_s > _WORTH_NAMING * step_s
    ]
    sentence = f"limited by {option.subject}: {format_seconds(seconds)}, {100 * seconds / step_s:.0f} % of the step"
    return f"{sentence}; also {', '.join(others)}." if others else f"{sentence}."
