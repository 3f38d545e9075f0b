"""Why a search did not choose what one has in mind: the best division with those degrees, and where its time goes."""

from collections import Counter
from dataclasses import dataclass, fields, replace

from trimaran.errors import InfeasibleError, InputError
from trimaran.planner.divisions.document import division_name
from trimaran.planner.divisions.search import search_task
from trimaran.planner.divisions.types import DivisionPins, DivisionSearch, PricedDivision

_KINDS = {
    "fsdp": DivisionPins(sharding="parameters", forbid=frozenset({"tp", "pp", "cp"})),
    "ddp": DivisionPins(sharding="none", forbid=frozenset({"tp", "pp", "cp"})),
    "tp": DivisionPins(forbid=frozenset({"pp", "cp"})),
    "pp": DivisionPins(forbid=frozenset({"tp", "cp"})),
}
"""What short names ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """What one had in mind beside what was chosen.

    Attributes:
        asked: in words
        other: the best division of that kind; None where none fits
        text: why it was not chosen
    """

    asked: str
    other: PricedDivision | None
    text: str


def why_not(found: DivisionSearch, asked: DivisionPins | str) -> Contrast:
    """Why the chosen division is not of some kind.

    Args:
        found: the search
        asked: degrees, or one of "fsdp", "ddp", "tp" (no stages), "pp" (layers whole)

    Raises:
        InputError: no such kind
    """
    if isinstance(asked, str):
        if asked not in _KINDS:
            raise InputError(f"--why-not {asked}: expected one of {', '.join(_KINDS)}, or degrees", kind=asked)
        name, pins = asked, _KINDS[asked]
    else:
        name, pins = pins_name(asked), asked
    try:
        other = search_task(replace(found.task, pins=pins)).chosen
    except InfeasibleError as error:
        return Contrast(asked=name, other=None, text=f"{name}: {error.message}")
    chosen = found.chosen
    if other.seconds <= chosen.seconds:
        return Contrast(asked=name, other=other, text=f"{name}: the chosen division is one")
    parts = Counter({part: getattr(other.step, part) - getattr(chosen.step, part) for part in _PARTS})
    worst, seconds = parts.most_common(1)[0]
    text = (
        f"{name}: the best is {division_name(other.division)}, {other.seconds / chosen.seconds:.3f} times as long; "
        f"most of it is {_PARTS[worst]} ({seconds:+.3g} s of {other.seconds - chosen.seconds:+.3g} s)"
    )
    return Contrast(asked=name, other=other, text=text)


def pins_name(pins: DivisionPins) -> str:
    """Pins in words.

    Example:
        >>> pins_name(DivisionPins(tensor=2, forbid=frozenset({"pp"})))
        'tensor 2, no pp'
    """
    given = [(entry.name, getattr(pins, entry.name)) for entry in fields(pins) if entry.name != "forbid"]
    told = [f"{name} {value}" for name, value in given if value is not None]
    return ", ".join([*told, *(f"no {name}" for name in sorted(pins.forbid))]) or "anything"


_PARTS = {
    "compute_s": "compute",
    "tensor_s": "exchanges inside layers",
    "bubble_s": "the pipeline",
    "data_s": "exchanges between replicas",
    "update_s": "the update",
}
