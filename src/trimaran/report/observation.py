"""Observation of a script: the page that `observe` prints."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from trimaran.base.decoding import Count, Positive
from trimaran.base.html import DataTable
from trimaran.base.remedies import Remedy
from trimaran.base.units import format_bytes, format_seconds, format_span
from trimaran.report.remedies import remedies_view
from trimaran.report.tables import bullet, page_text, table_view


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRank:
    """One rank of a script.

    Attributes:
        rank: its number
        samples: mean samples of a step
        peak_bytes: most memory of the process; of the device, where it trains on one [bytes]
        parts_s: mean time of a step by what it is spent on [s]
    """

    rank: Count
    samples: Positive
    peak_bytes: Count
    parts_s: Mapping[str, Positive]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The observation of a script.

    Attributes:
        model: class of the model
        device: "cpu" or "cuda"
        step_time_s: mean time of a step [s]
        interval_s: 90 % interval of it [s]
        steps: that the figures are of
        backwards: mean of a step, more than 1 where gradients are accumulated
        left_out: steps by the reason why they do not count
        parts_s: mean time of a step over all ranks, by what it is spent on [s]
        ranks: each rank
        memory_bytes: parameters, gradients, optimizer state of the first rank by name [bytes]
        launch_bound: share of forward and backward that does not depend on the batch, or on a GPU, share of the steps
            before which the device ran out of work; None: not known
        limiter: what limits the script; "not clear" where the run contradicts itself
        doubt: why the limiter is not clear; None where it is
        guess: the likeliest limiter where it is not clear, without what the threads that train waited for a processor;
            "" else
        remedies: ranked; where the limiter is not clear, those alone that surely help, and fewer threads where there
            are more than cores
        unseen: what could not be seen, one sentence each
    """

    model: str
    device: str
    step_time_s: Positive
    interval_s: tuple[Positive, Positive]
    steps: Count
    backwards: Positive
    left_out: Mapping[str, Count]
    parts_s: Mapping[str, Positive]
    ranks: Sequence[ObservedRank]
    memory_bytes: Mapping[str, Count]
    launch_bound: float | None
    limiter: str
    doubt: str | None
    remedies: Sequence[Remedy]
    unseen: Sequence[str]
    guess: str = ""

    def __str__(self) -> str:
        return page_text(lambda out: out.print(observation_view(self)))


def observation_view(observation: Observation) -> RenderableType:
    """An observation for people, readable at 80 columns.

    Args:
        observation: of a script
    """
    low, high = observation.interval_s
    ranks = len(observation.ranks)
    head = Text(f"{observation.model} on {ranks} {'process' if ranks == 1 else 'processes'} ({observation.device}): ")
    head.append(f"{format_seconds(observation.step_time_s)} a step", style="bold")
    head.append(f" (90 %: {format_span(format_seconds(low), format_seconds(high))})")
    before, limiter, after = limit_words(observation)
    lines: list[RenderableType] = [
        head,
        Text.assemble(before, (limiter, "bold"), after),
        Text(),
        table_view(parts_table(observation), "What a step is spent on"),
    ]
    lines += [Text(), _memory_line(observation)]
    if launch := launch_words(observation):
        lines.append(Text(launch))
    nothing = without_remedy(observation)
    lines += [Text(), remedies_view(observation.remedies, nothing=nothing, of_script=True)]
    if observation.unseen:
        lines += [Text(), Text("Not seen", style="bold")]
        lines += [bullet(Text(sentence)) for sentence in observation.unseen]
    return Group(*lines)


def limit_words(observation: Observation) -> tuple[str, str, str]:
    """What limits the script, or the best guess first where that is not clear: what comes before, it, and after."""
    if observation.doubt is None:
        return "Limited by ", observation.limiter, "."
    if not observation.guess:
        return "What limits it is ", observation.limiter, f": {observation.doubt}"
    return "Best guess: ", observation.guess, f". What limits it is {observation.limiter}: {observation.doubt}"


def without_remedy(observation: Observation) -> str:
    """What is said where no remedy is named."""
    if observation.doubt is None:
        return "No known remedy would save 1 % of the step."
    return "No remedy is sure to help, as long as what limits it is not clear."


def steps_words(observation: Observation) -> str:
    """Which steps the figures are of."""
    left_out = ", ".join(f"{count} {reason}" for reason, count in observation.left_out.items() if count)
    backwards = f" of {observation.backwards:.1f} backwards each" if observation.backwards > 1.05 else ""
    return f"mean of {observation.steps} steps{backwards}" + (f"; left out: {left_out}" if left_out else "")


_MOST_RANKS = 4
"""Ranks that have a column each, side by side at 80 columns; of more the least and the most are shown."""


def parts_table(observation: Observation) -> DataTable:
    """What a step is spent on; of several ranks each, or of many the least and the most.

    Args:
        observation: of a script
    """
    ranks = observation.ranks
    several, is_each = len(ranks) > 1, len(ranks) <= _MOST_RANKS
    names = [f"rank {rank.rank}" for rank in ranks] if is_each else ["least", "most"]

    def cells(values: Sequence[float], written: Callable[[float], str] = format_seconds) -> Sequence[str]:
        shown = values if is_each else (min(values), max(values))
        return [written(value) for value in shown] if several else ()

    whole_s = observation.step_time_s
    rows = [
        (name, format_seconds(seconds), f"{100 * seconds / whole_s:.1f} %" if whole_s else "–", *cells(each))
        for name, seconds in observation.parts_s.items()
        if max(seconds, *(each := [rank.parts_s.get(name, 0.0) for rank in ranks])) >= 5e-4 * whole_s
    ]
    rows.append(("step", format_seconds(whole_s), "100 %", *cells([sum(rank.parts_s.values()) for rank in ranks])))
    if several:
        samples = cells([rank.samples for rank in ranks], lambda count: f"{count:.1f}" if count else "–")
        rows.append(("samples", "", "", *samples))
    below = f"FP, BP, WU: forward, backward, weight update; {steps_words(observation)}"
    return DataTable(
        columns=("", "time", "share", *(names if several else ())),
        rows=rows,
        caption=below if is_each else f"least, most: of {len(ranks)} ranks, each of which --json has; {below}",
        sums=1 + several,
    )


def _memory_line(observation: Observation) -> Text:
    parts = [f"{name} {format_bytes(nbytes)}" for name, nbytes in observation.memory_bytes.items()]
    peak = max(rank.peak_bytes for rank in observation.ranks)
    return Text(f"Memory: {format_bytes(peak)} at most in a process; {', '.join(parts)}.")


def launch_words(observation: Observation) -> str:
    """Whether launching bounds the script; empty where that is not known."""
    share = observation.launch_bound
    if share is None or observation.doubt is not None:
        return ""
    verdict = "Launch-bound" if share > 0.5 else "Not launch-bound"
    if observation.device == "cuda":
        return f"{verdict}: before {100 * share:.0f} % of the steps the device had run out of work."
    return f"{verdict}: {100 * share:.0f} % of forward and backward do not depend on the batch."
