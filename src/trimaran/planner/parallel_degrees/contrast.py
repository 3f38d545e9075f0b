"""Why a search did not choose what one has in mind: the best division of that kind, and where its time goes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.base.units import format_seconds
from trimaran.planner.parallel_degrees.document import division_name
from trimaran.planner.parallel_degrees.problem import DivisionSearch, PricedDivision
from trimaran.planner.parallel_degrees.search import search_task
from trimaran.planner.pins import NO_PINS, Pins

PARTS: Mapping[str, str] = {
    "compute_s": "compute",
    "tensor_s": "exchanges inside layers",
    "bubble_s": "idle stages",
    "data_s": "exchanges between replicas",
    "update_s": "update",
}
"""Fields of a `DividedStep` in words; they sum to the step."""

# A part, or a difference of one, below this share of the step is not worth a word.
_NEGLIGIBLE = 0.02

_KINDS = {
    "fsdp": Pins(zero=3, forbid=("cp", "pp", "tp")),
    "ddp": Pins(zero=0, forbid=("cp", "pp", "tp")),
    "tp": Pins(forbid=("cp", "pp")),
    "pp": Pins(forbid=("cp", "tp")),
}
_WORD = re.compile(r"(tp|pp|cp|dp|ep)(?=[1-9])([0-9]{1,6})|(zero)([0-3])")


@dataclass(frozen=True, slots=True, kw_only=True)
class DivisionKind:
    """Some divisions, by the name that a person gives them.

    Attributes:
        name: as it was written
        pins: what they have in common
    """

    name: str
    pins: Pins


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """What one had in mind beside what was chosen.

    Attributes:
        asked: its name
        other: the best division of that kind; None: none fits
        conclusion: why it was not chosen, in one sentence
    """

    asked: str
    other: PricedDivision | None
    conclusion: str


def read_kind(name: str) -> DivisionKind:
    """What a person calls a kind of divisions.

    Args:
        name: "fsdp", "ddp", "tp" (no stages), "pp" (layers whole), in any case; or degrees, of which those that are not
            named are free

    Raises:
        InputError: no such kind

    Example:
        >>> pins = read_kind("tp8-pp4-zero1").pins
        >>> pins.tp, pins.pp, pins.dp, pins.zero
        (8, 4, None, 1)
    """
    lower = name.strip().lower()
    if lower in _KINDS:
        return DivisionKind(name=name, pins=_KINDS[lower])
    words = [_WORD.fullmatch(word) for word in lower.split("-")]
    degrees: dict[str, Any] = {word[1] or word[3]: int(word[2] or word[4]) for word in words if word is not None}
    if len(degrees) < len(words):
        raise InputError(
            f'--why-not "{name}": a transformer on so many devices is divided by degrees; choose one of '
            f'{", ".join(_KINDS)}, or degrees, each once, such as "tp8", "pp4-dp32", "tp2-zero3"',
            code="why-not.unknown-degrees",
            why_not=name,
        )
    return DivisionKind(name=name, pins=replace(NO_PINS, **degrees))


def why_not(found: DivisionSearch, kind: DivisionKind, *, time_limit_s: float = 20.0) -> Contrast:
    """Why the chosen division is not of some kind.

    Args:
        found: the search; its pins do not bind the kind
        kind: that one has in mind
        time_limit_s: of the search for the best of the kind [s]
    """
    try:
        other = search_task(replace(found.task, pins=kind.pins), time_limit_s=time_limit_s).chosen
    except InfeasibleError as error:
        return Contrast(asked=kind.name, other=None, conclusion=f"{kind.name} is not to be had: {error.message}.")
    return Contrast(asked=kind.name, other=other, conclusion=_conclusion(kind.name, other, found))


def binding_part(priced: PricedDivision) -> str:
    """What binds a step, in one sentence.

    Args:
        priced: a division with its cost
    """
    spent = sorted(parts_of(priced).items(), key=lambda entry: -entry[1])
    (name, seconds), others = spent[0], spent[1:]
    percent = 100 / priced.seconds
    shares = [f"{PARTS[part]} {percent * part_s:.0f} %" for part, part_s in others if _counts(part_s, priced)]
    sentence = f"{PARTS[name]} binds: {format_seconds(seconds)}, {percent * seconds:.0f} % of the step"
    return f"{sentence}; beside it {', '.join(shares)}." if shares else f"{sentence}."


def parts_of(priced: PricedDivision) -> dict[str, float]:
    """Time of each part of a step, by its name in `PARTS` [s]; they sum to the step."""
    return {part: getattr(priced.step, part) for part in PARTS}


def _conclusion(asked: str, other: PricedDivision, found: DivisionSearch) -> str:
    chosen, name = found.chosen, division_name(other.division)
    if other.division == chosen.division:
        return f"{name} is the plan, and the best of {asked}."
    figures = f"{format_seconds(other.seconds)} against {format_seconds(chosen.seconds)}"
    percent = 100 * (other.seconds / chosen.seconds - 1.0)
    if percent < 0.0:
        change = f"{-percent:.1f} % faster"
        why = _why_not_faster(found)
    else:
        change, why = f"{percent:.1f} % slower", _reasons(other, chosen)
    return f"The best of {asked}, {name}, is {change} than the plan ({figures}): {why}."


def _why_not_faster(found: DivisionSearch) -> str:
    if not found.complete:
        return "the search ran out of time (--time-limit)"
    if replace(found.task.pins, compress=False) == NO_PINS:
        return "as fast as the plan within what is known, and the plan was taken for the target"
    return "what you decided is against it"


def _reasons(other: PricedDivision, chosen: PricedDivision) -> str:
    """Where the difference lies, largest first."""
    before = parts_of(chosen)
    differences = {part: seconds - before[part] for part, seconds in parts_of(other).items()}
    ranked = sorted(differences.items(), key=lambda entry: -abs(entry[1]))
    told = [(PARTS[part], seconds) for part, seconds in ranked if _counts(abs(seconds), chosen)]
    more = " and ".join(f"{format_seconds(seconds)} more of {name}" for name, seconds in told if seconds > 0.0)
    less = " and ".join(f"{format_seconds(-seconds)} of {name}" for name, seconds in told if seconds < 0.0)
    text = more or "no part of its time is longer by much"
    return f"{text}; it saves {less}" if less else text


def _counts(seconds: float, priced: PricedDivision) -> bool:
    return seconds > _NEGLIGIBLE * priced.seconds
