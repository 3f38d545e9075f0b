"""Whether it is worth it to compress gradients, with the figures."""

from trimaran.planner.candidates import Candidate
from trimaran.planner.choice import may_be_as_fast
from trimaran.planner.found import Search
from trimaran.planner.pins import Pins
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
        parts = [_gain(chosen, lossless), *_assumed(chosen, pins), *_sooner(lossy, chosen)]
        return ". ".join([*parts, f"Some of each gradient comes late or never: {WHERE_MEASURED}"])
    if not lossy:
        ruled_out = [entry.reason for entry in found.rejected if entry.strategy.compression is not None]
        why = f": {ruled_out[0]}" if ruled_out else ""
        return f"compressing gradients is not worth it{why}"
    best = min(lossy, key=lambda one: one.objective_s)
    said = f"compressing gradients is not worth it: {_against(best, chosen)}"
    # Between it and the chosen one there may be a third that both may be as fast as.
    if best.objective_s < chosen.objective_s and may_be_as_fast(chosen.cases, best.cases):
        said += ", within the uncertainty"
    return ". ".join([said, *_assumed(best, pins), *_sooner(lossy, chosen)])


def _gain(chosen: Candidate, lossless: list[Candidate]) -> str:
    compression = chosen.strategy.compression
    name = "" if compression is None else compression.name
    if not lossless:
        return f"gradients are sent as {name}"
    rival = min(lossless, key=lambda one: one.objective_s)
    return f"gradients are sent as {name}: {_against(chosen, rival)}"


def _against(one: Candidate, other: Candidate) -> str:
    """Two plans with their times; where one needs more samples, to the target too."""
    what = "a step" if one.epoch_s is None else "an epoch"
    text = (
        f"{one.strategy.name} takes {format_seconds(one.time_s)} {what}, {other.strategy.name} "
        f"{format_seconds(other.time_s)} ({_change(one.time_s, other.time_s)})"
    )
    if one.samples_factor == other.samples_factor:
        return text
    return (
        f"{text}; {_change(one.objective_s, other.objective_s)} to the target, "
        f"with {one.samples_factor:g} times the samples"
    )


def _change(one_s: float, other_s: float) -> str:
    return f"{one_s / other_s - 1.0 if other_s else 0.0:+.0%}"


def _assumed(candidate: Candidate, pins: Pins) -> list[str]:
    """Where a factor on samples comes from; nothing where there is none."""
    if pins.powersgd_samples is not None or candidate.samples_factor == 1.0:
        return []
    return ["That factor is assumed, as on built-in jobs: give your own as --powersgd-samples"]


def _sooner(lossy: list[Candidate], chosen: Candidate) -> list[str]:
    """How few samples would make a shorter step the better one; nothing where none of those that need more has one."""
    quick = [one for one in lossy if one.samples_factor > chosen.samples_factor and one.time_s < chosen.time_s]
    if not quick:
        return []
    best = min(quick, key=lambda one: one.objective_s)
    return [
        f"With less than {chosen.objective_s / best.time_s:.2f} times the samples {best.strategy.name} would be sooner "
        f"at the target, at {format_seconds(best.time_s)}"
    ]
