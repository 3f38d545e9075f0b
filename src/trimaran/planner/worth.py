"""Whether it is worth it to compress gradients, with the figures."""

from trimaran.planner.candidates import Candidate
from trimaran.planner.choice import may_be_as_fast
from trimaran.planner.pins import Pins
from trimaran.planner.search import Search
from trimaran.units import format_seconds

WHERE_MEASURED = "accuracy may differ, what it did to built-in jobs is in docs/compression.md"


def said_of_compression(found: Search, pins: Pins) -> str:
    """Whether a plan compresses gradients and what that gains, or why it does not; empty without consent.

    Args:
        found: the search
        pins: of it
    """
    if not pins.consents:
        return ""
    known = list({id(one): one for one in (*found.candidates, *found.references)}.values())
    lossy = [one for one in known if one.strategy.compression is not None]
    lossless = [one for one in known if one.strategy.compression is None]
    chosen = found.chosen
    if chosen.strategy.compression is not None:
        return f"{_gain(chosen, lossless)}. Some of each gradient comes late or never: {WHERE_MEASURED}"
    if not lossy:
        ruled_out = [entry.reason for entry in found.rejected if entry.strategy.compression is not None]
        why = f": {ruled_out[0]}" if ruled_out else ""
        return f"compressing gradients is not worth it{why}"
    best = min(lossy, key=lambda one: one.objective_s)
    if best.objective_s >= chosen.objective_s:
        return f"compressing gradients is not worth it: {_against(best, chosen)}"
    # Between it and the chosen one there may be a third that both may be as fast as.
    unsure = ", within the uncertainty" if may_be_as_fast(chosen.cases, best.cases) else ""
    return f"compressing gradients is not worth it: {_against(best, chosen)}{unsure}"


def _gain(chosen: Candidate, lossless: list[Candidate]) -> str:
    compression = chosen.strategy.compression
    name = "" if compression is None else compression.name
    if not lossless:
        return f"gradients are sent as {name}"
    rival = min(lossless, key=lambda one: one.objective_s)
    return f"gradients are sent as {name}: {_against(chosen, rival)}"


def _against(one: Candidate, other: Candidate) -> str:
    """Two plans with their times."""
    what = "a step" if one.epoch_s is None else "an epoch"
    change = one.objective_s / other.objective_s - 1.0 if other.objective_s else 0.0
    return (
        f"{one.strategy.name} takes {format_seconds(one.objective_s)} {what}, {other.strategy.name} "
        f"{format_seconds(other.objective_s)} ({change:+.0%})"
    )
