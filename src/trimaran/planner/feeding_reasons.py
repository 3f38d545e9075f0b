"""Why ranks are fed as they are, in sentences with the figures."""

from trimaran.costs.sample_costs import SampleCosts
from trimaran.planner.candidates import Candidate
from trimaran.planner.room import Room
from trimaran.program import Strategy
from trimaran.units import format_bytes, format_count, format_seconds

QUICK_DATA = "data are loaded in line"
"""How the sentence begins where loading takes too little to ask how ranks are fed."""


def quick_data(chosen: Candidate, handed: Candidate) -> str:
    """Loading takes too little to do it elsewhere.

    Args:
        chosen: in line
        handed: with loads that are only handed over
    """
    saved_s = max(0.0, chosen.step_time_s - handed.step_time_s)
    return (
        f"{QUICK_DATA}: workers would save at most {format_seconds(saved_s)} of a step of "
        f"{format_seconds(chosen.step_time_s)}"
    )


def workers_reason(chosen: Candidate, in_line: Candidate | None) -> str:
    """What workers give.

    Args:
        chosen: with workers
        in_line: the same strategy without; None: the search had no use for it
    """
    text = f"{format_count(chosen.strategy.feeding.workers, 'worker')} a rank"
    if in_line is None:
        return f"{text}: a step takes {format_seconds(chosen.step_time_s)}"
    return (
        f"{text}: a step that loads in line takes {format_seconds(in_line.step_time_s)}, fed "
        f"{format_seconds(chosen.step_time_s)}"
    )


def not_worth_it(other: Candidate, chosen: Candidate, *, mean_s: float | None = None) -> str:
    """A feeding that gives nothing beyond the uncertainty.

    Args:
        other: the best of its kind
        chosen: what is simpler and may be as fast
        mean_s: of the other, over all epochs; None: what it takes [s]
    """
    return (
        f"{feeding_words(other.strategy)} is not worth it: {other.strategy.name} takes "
        f"{format_seconds(other.time_s if mean_s is None else mean_s)}, {chosen.strategy.name} "
        f"{format_seconds(chosen.time_s)}"
    )


def feeding_words(strategy: Strategy) -> str:
    """What a strategy does for its data.

    Example:
        >>> from trimaran.program.feeding import Feeding
        >>> feeding_words(Strategy(feeding=Feeding(workers=2))), feeding_words(Strategy(feeding=Feeding(cached=True)))
        ('loading in 2 workers', 'keeping samples')
    """
    if strategy.feeding.cached:
        return "keeping samples"
    return f"loading in {format_count(strategy.feeding.workers, 'worker')}"


def kept_reason(
    chosen: Candidate, first: Candidate, best: Candidate, mean_s: float, samples: SampleCosts, room: Room
) -> str:
    """What keeping samples gives.

    Args:
        chosen: steps of later epochs
        first: steps of the first epoch
        best: the best that reads samples each time
        mean_s: mean over all epochs [s]
        samples: what they take
        room: has the epochs
    """
    nbytes = format_bytes(samples.samples * samples.stored_bytes)
    return (
        f"the host keeps the samples ({nbytes}): a step takes {format_seconds(first.time_s)} in the first epoch "
        f"and {format_seconds(chosen.time_s)} later; over {room.epochs} epochs "
        f"{1.0 - mean_s / best.objective_s:.0%} less than {best.strategy.name}, which reads them each time"
    )


def not_kept(samples: SampleCosts, room: Room, *, left_bytes: float) -> str:
    """Why samples cannot be kept; empty where they may.

    Args:
        samples: whether they repeat, and how large they are
        room: has the epochs
        left_bytes: memory of the host for them [bytes]
    """
    needed = samples.samples * samples.stored_bytes
    if room.epochs < 2:
        return "each is read once"
    if not samples.repeats:
        return "they are not the same each time that they are read"
    if not samples.stored_bytes:
        return "they differ in shape, or are no tensors and numbers"
    if needed > left_bytes:
        return f"they take {format_bytes(needed)}, and the ranks leave {format_bytes(int(left_bytes))}"
    return ""
