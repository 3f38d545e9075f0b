"""Why parallel degrees are what they are: the best of the kind that one has in mind, and where its time goes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.planner.choice import rule_of_choice
from trimaran.planner.contrast import Anatomy, Contrast, conclude
from trimaran.planner.explain import Explanation, rival
from trimaran.planner.parallel_degrees.problem import DivisionSearch, PricedDivision
from trimaran.planner.parallel_degrees.search import search_task
from trimaran.planner.pins import NO_PINS, Pins
from trimaran.planner.search import PinPrice

PARTS: Mapping[str, str] = {
    "compute_s": "compute",
    "tensor_s": "exchanges inside layers",
    "bubble_s": "idle stages",
    "data_s": "exchanges between replicas",
    "update_s": "update",
}
"""Fields of a `DividedStep` in words; they sum to the step."""

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


def explain_division(
    found: DivisionSearch,
    *,
    why_not: Sequence[DivisionKind] = (),
    paid: Sequence[PinPrice] = (),
    time_limit_s: float | None = None,
    goal: str = "",
) -> Explanation:
    """Explain parallel degrees that the analytical model priced.

    There is no program, so there is no critical path, and neither changes nor remedies are simulated.

    Args:
        found: the search; its pins do not bind the kinds
        why_not: kinds to compare with
        paid: what each pin costs
        time_limit_s: of the search for the best of a kind [s]; None: none
        goal: what was made best over all batches in place of a step; empty: a step was
    """
    against = against_of(found)
    listed = [*found.runners_up, *(one.priced for one in found.baselines if one.priced is not None)]
    return Explanation(
        chosen=dissect_division(found.chosen),
        rivals=tuple(rival(one, found.chosen) for one in found.runners_up),
        contrasts=tuple(contrast(found, kind, time_limit_s=time_limit_s, goal=goal) for kind in why_not),
        prices=tuple(paid),
        rule=rule_of_choice(found.chosen, listed, against=against, goal=goal),
    )


def contrast(
    found: DivisionSearch, kind: DivisionKind, *, time_limit_s: float | None = None, goal: str = ""
) -> Contrast:
    """The best of a kind of divisions beside the chosen one.

    Args:
        found: the search; its pins do not bind the kind
        kind: that one has in mind
        time_limit_s: of the search for the best of the kind [s]; None: none
        goal: what was made best over all batches in place of a step; empty: a step was
    """
    try:
        other = search_task(replace(found.task, pins=kind.pins), time_limit_s=time_limit_s).chosen
    except InfeasibleError as error:
        obstacle = error.message
        sentence = f"{kind.name} is not to be had: {obstacle}."
        return Contrast(asked=kind.name, other=None, obstacle=obstacle, conclusion=sentence)
    mine, theirs = dissect_division(found.chosen), dissect_division(other)
    if other.division == found.chosen.division:
        sentence = f"{other.name} is the plan, and the best of {kind.name}."
    else:
        sentence = conclude(mine, theirs, candidates=[found.chosen], against=against_of(found), goal=goal)
    return Contrast(asked=kind.name, other=theirs, obstacle="", conclusion=sentence)


def dissect_division(priced: PricedDivision) -> Anatomy:
    """The parts of a step of parallel degrees, by their names in `PARTS`."""
    return Anatomy(candidate=priced, parts={words: getattr(priced.step, part) for part, words in PARTS.items()})


def against_of(found: DivisionSearch) -> str:
    """What stands against divisions that are faster than the chosen one; empty where nothing does."""
    if not found.complete:
        return "the end of the search before all was looked at (--time-limit)"
    return "" if replace(found.task.pins, compress=False) == NO_PINS else "what you decided"
