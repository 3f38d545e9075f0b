"""The waits of a step of a job: the page that `profile --stalls` prints, and the same as JSON data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from trimaran.base.html import DataTable
from trimaran.base.remedies import Remedy
from trimaran.base.units import format_seconds, format_span
from trimaran.program.json_files import to_plain
from trimaran.report.remedies import remedies_view
from trimaran.report.tables import Joined, add_figures, add_words, bullet, frame_table, table_view

_TITLES = {
    "fetch": "fetch           waiting for data",
    "prepare": "prepare         decode, augment, collate",
    "copy": "copy            host to device",
    "compute": "compute         forward, backward, update",
    "communication": "communication   exchanges, exposed",
    "synchronization": "synchronization waiting for other ranks",
    "unattributed": "unattributed    not measured",
}
_SHORT = {"communication": "comm", "synchronization": "sync", "unattributed": "rest"}
_WAYS = {
    "cold": "samples read for the first time",
    "cached": "samples read again",
    "synthetic": "one batch, nothing loaded",
}
_MOST_RANKS = 8
# Below this share of the step, of either sign, a class is not shown to people.
_SHOWN = 5e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class WaySplit:
    """Steps of one way to get a batch.

    Attributes:
        step_time_s: mean step [s]
        interval_s: 90 % interval of it [s]; None: there is one block of steps, which has none
        shares: time of each class in it; they sum to it [s]; `unattributed` may be negative
        share_intervals_s: 90 % interval of each [s]; None: as above
        steps: that count
    """

    step_time_s: float
    interval_s: tuple[float, float] | None
    shares: Mapping[str, float]
    share_intervals_s: Mapping[str, tuple[float, float]] | None
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSplit:
    """The mean step of one rank.

    Attributes:
        rank: its number
        step_time_s: the step [s]
        shares: time of each class in it [s]
    """

    rank: int
    step_time_s: float
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Without:
    """The step, were a class of it gone: a bound on what any remedy for it gives.

    Attributes:
        step_time_s: what is left [s]
        speedup: the step now over that
    """

    step_time_s: float
    speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StallReport:
    """The waits of a step of a job.

    Attributes:
        job: its name
        strategy: what was run
        feeding: how batches were loaded, in words
        ranks: how many
        devices: what each of them is
        global_batch_size: samples of one update
        way: the way whose figures `shares`, `by_rank` and `advice` are
        ways: steps of each way
        by_rank: the mean step of each rank
        limiter: the largest class other than compute, where it is worth the name; else "compute"
        without: the step without each class that there is
        advice: remedies that are sure to be worth it, by the low end of their gain
        not_worth: known remedies that are not, by predicted gain
        notes: what else a person should know, one sentence each
        environment: versions and devices
    """

    job: str
    strategy: str
    feeding: str
    ranks: int
    devices: str
    global_batch_size: int
    way: str
    ways: Mapping[str, WaySplit]
    by_rank: Sequence[RankSplit]
    limiter: str
    without: Mapping[str, Without]
    advice: Sequence[Remedy]
    not_worth: Sequence[Remedy]
    notes: Sequence[str]
    environment: Mapping[str, str]

    @property
    def split(self) -> WaySplit:
        """The split of the way that counts."""
        return self.ways[self.way]


def stalls_document(report: StallReport) -> dict[str, object]:
    """A stall report as JSON data; the figures of the way that counts come first."""
    plain: dict[str, object] = to_plain(report)
    head: dict[str, object] = to_plain(report.split)
    remedies = {"advice": to_plain(report.advice), "not_worth": to_plain(report.not_worth)}
    return head | plain | remedies


def stalls_view(report: StallReport) -> RenderableType:
    """A stall report for people, readable at 80 columns.

    Args:
        report: of a job
    """
    split = report.split
    head = Text()
    head.append(report.job, style="bold")
    head.append(f", global batch {report.global_batch_size}, {report.strategy} on {report.ranks} × {report.devices}")
    step = Text(f"{format_seconds(split.step_time_s)} a step", style="bold")
    interval = ""
    if split.interval_s is not None:
        interval = f" (90 %: {format_span(*map(format_seconds, split.interval_s))})"
    step.append(f" {report.way}{interval}; {report.feeding}", style="not bold")
    head.append(": ")
    head.append_text(step)
    lines: list[RenderableType] = [Joined(head), Joined(_limit_line(report)), Text(), _ways_table(report)]
    if report.ranks > 1:
        lines += [Text(), _ranks_table(report)]
    lines.append(Text())
    lines.append(
        remedies_view(
            report.advice,
            not_worth=report.not_worth,
            title="Remedies, by the gain that is sure",
            nothing="No known remedy for feeding or exchange is sure to save 1 % of the step.",
        )
    )
    if report.notes:
        lines += [Text(), Text("Notes", style="bold"), *(bullet(Text(note)) for note in report.notes)]
    return Group(*lines)


def _limit_line(report: StallReport) -> Text:
    line = Text("Limited by ")
    line.append(report.limiter, style="bold")
    gone = report.without.get(report.limiter)
    split = report.split
    if report.limiter == "compute" or gone is None:
        line.append(": what is waited for is small.")
    else:
        share = split.shares[report.limiter] / split.step_time_s
        line.append(
            f", {100 * share:.0f} % of the step. Without it: {format_seconds(gone.step_time_s)} a step, "
            f"{gone.speedup:.2f}× as fast."
        )
    return line


def _ways_table(report: StallReport) -> RenderableType:
    table = frame_table("What a step is spent on")
    add_words(table, "")
    add_figures(table, "share")
    for way in report.ways:
        table.add_column(way, justify="right", no_wrap=True, style="bold" if way == report.way else "")
    own = report.split
    for name, title in _TITLES.items():
        if all(abs(way.shares[name]) < _SHOWN * way.step_time_s for way in report.ways.values()):
            continue
        share = f"{100 * own.shares[name] / own.step_time_s:.1f} %"
        table.add_row(title, share, *(format_seconds(way.shares[name]) for way in report.ways.values()))
    table.add_section()
    table.add_row("step", "100 %", *(format_seconds(way.step_time_s) for way in report.ways.values()))
    steps = ", ".join(f"{way.steps} {name}" for name, way in report.ways.items())
    ways = "; ".join(f"{way}: {_WAYS[way]}" for way in report.ways)
    table.caption = f"share: of the {report.way} step; {ways}\nSteps: {steps}."
    return table


def _ranks_table(report: StallReport) -> RenderableType:
    shown = [
        name for name in _TITLES if any(abs(rank.shares[name]) >= _SHOWN * rank.step_time_s for rank in report.by_rank)
    ]
    legend = "; ".join(f"{_SHORT[name]}: {name}" for name in shown if name in _SHORT)
    rows = [
        (str(rank.rank), *(format_seconds(rank.shares[name]) for name in shown), format_seconds(rank.step_time_s))
        for rank in report.by_rank
    ]
    columns = ("rank", *(_SHORT.get(name, name) for name in shown), "step")
    table = DataTable(columns=columns, rows=rows, words=frozenset())
    return table_view(table, f"By rank, {report.way}", legend, most=_MOST_RANKS)
