"""Sections of a page about a step: predicted against measured, where its time and memory go, its plan and candidates.

Each function makes one section of what it is given, or None where that says nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Any

from trimaran.base.html import DataTable
from trimaran.base.timeline import Timeline
from trimaran.base.units import format_bytes, format_count, format_seconds, format_span
from trimaran.program.plan_file import CandidateRow, Plan
from trimaran.program.strategy import Strategy, is_plain_data_parallel
from trimaran.report.page.charts import (
    GROUND,
    INK,
    SERIES_COLOURS,
    SOFT,
    WIDTH,
    Bar,
    ChartAxis,
    Interval,
    LimitLine,
    Series,
    bar_chart,
    byte_unit,
    curve_chart,
    interval_chart,
    short,
    time_unit,
)
from trimaran.report.page.layout import Chart, Commands, Section, Words
from trimaran.report.plans import assumption_lines
from trimaran.report.svg import Drawing

PARTS_OF_STEP = (
    ("forward", "var(--forward)"),
    ("backward", "var(--backward)"),
    ("update", "var(--update)"),
    ("loading", "var(--load)"),
    ("communication, waiting", "var(--exposed)"),
    ("idle", "var(--idle)"),
    ("not attributed", "var(--unattributed)"),
)
"""Names and colours of `breakdown.PARTS`, in its order."""

_MOST_ROWS = 300
"""Of a table of candidates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredNote:
    """The measured step, next to its prediction.

    Attributes:
        step_s: mean over the ranks [s]
        steps: that were compared
        warmup: that were left out before
        noise: at 90 %, ratio of two runs that are alike minus 1; None: not known
        noise_words: the same for people, or how it is found out
    """

    step_s: float
    steps: int
    warmup: int
    noise: tuple[float, float] | None
    noise_words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankParts:
    """Where the step of a rank goes.

    Attributes:
        rank: the rank
        source: "predicted" or "measured"
        parts_s: by `PARTS_OF_STEP`, in their order [s]
        overlapped_s: communication while the rank works, no part of the step [s]
    """

    rank: int
    source: str
    parts_s: tuple[float, ...]
    overlapped_s: float


def percent(share: float, *, signed: bool = True) -> str:
    """A share as percent, with as many digits as it needs.

    Example:
        >>> percent(-0.1234), percent(0.0123), percent(0.5, signed=False)
        ('-12 %', '+1.2 %', '50 %')
    """
    digits = 1 if abs(share) < 0.0995 else 0
    return f"{100 * share:{'+' if signed else ''}.{digits}f} %"


def rate(samples_per_s: float) -> str:
    """A throughput for people.

    Example:
        >>> rate(12345.6), rate(12.34), rate(0.1234)
        ('12,346', '12.3', '0.123')
    """
    if samples_per_s >= 100:
        return f"{samples_per_s:,.0f}"
    return f"{samples_per_s:.3g}"


# ---------------------------------------------------------------------------------------------------------------------
# Predicted against measured


def prediction_section(
    predicted_s: float,
    interval_s: tuple[float, float],
    measured: MeasuredNote | None,
    *,
    kinds: Sequence[tuple[str, int, int, float, float | None]] = (),
) -> Section:
    """A step as it was predicted, with its interval, and as it was measured, with the noise of repeated runs.

    Args:
        predicted_s: time of a step [s]
        interval_s: its 90 % interval [s]
        measured: None: nothing was
        kinds: of instructions: name, count, observed, median predicted and measured [s]
    """
    unit, size = time_unit(max(predicted_s, measured.step_s if measured else 0.0, interval_s[1]))
    rows = [("predicted", predicted_s, *interval_s, "90 % interval of the prediction")]
    if measured is not None:
        low, high = measured.noise or (0.0, 0.0)
        ends = measured.step_s * (1 + low), measured.step_s * (1 + high)
        rows.append(("measured", measured.step_s, *ends, measured.noise_words))
    table = DataTable(
        columns=("step", f"time [{unit}]", f"low [{unit}]", f"high [{unit}]", "low to high"),
        rows=[
            (
                name,
                *(f"{value / size:.4g}" if known else "–" for value, known in zip(figures, flags, strict=True)),
                says,
            )
            for name, *figures, says in rows
            for flags in [(True, *(2 * [name == "predicted" or bool(measured and measured.noise)]))]
        ],
        words=frozenset({0, 4}),
    )
    content: list[Chart | DataTable] = [
        Chart(svg=_intervals(rows, unit, size), table=table, caption=_said_of(measured))
    ]
    if kinds:
        content.append(
            DataTable(
                columns=("kind of instruction", "count", "observed", "predicted", "measured", "error"),
                rows=[
                    (
                        kind,
                        str(count),
                        str(observed),
                        format_seconds(each_s),
                        "–" if was_s is None else format_seconds(was_s),
                        "–" if not was_s else percent(each_s / was_s - 1),
                    )
                    for kind, count, observed, each_s, was_s in kinds
                ],
                caption="Median of one instruction, by kind",
            )
        )
    return Section(
        id="prediction",
        title="Predicted step" if measured is None else "Predicted against measured",
        content=content,
    )


def _said_of(measured: MeasuredNote | None) -> str:
    if measured is None:
        return "Nothing was measured: the interval is that of the prediction."
    return (
        f"Measured: {format_count(measured.steps, 'step')} after {measured.warmup} of warm-up; {measured.noise_words}."
    )


def _intervals(rows: Sequence[tuple[str, float, float, float, str]], unit: str, size: float) -> str:
    spans = [
        Interval(
            name=name,
            at=value / size,
            ends=(low / size, high / size),
            label=format_seconds(value),
            says=f"{name}: {format_seconds(value)}"
            + (f" ({format_span(format_seconds(low), format_seconds(high))})" if low < high else ""),
        )
        for name, value, low, high, _ in rows
    ]
    axis = ChartAxis(title=f"time of a step [{unit}]")
    return interval_chart("Time of a step with intervals", spans, axis)


# ---------------------------------------------------------------------------------------------------------------------
# Where the time goes


_FEW_RANKS = 20
"""Rows that a chart shows by their names, and a table one by one."""


def _rows_of_parts(ranks: Sequence[RankParts], size: float) -> list[tuple[str, ...]]:
    """The rows of a table: where there are many, ranks of the same figures are one."""
    rows: dict[tuple[str, ...], list[int]] = {}
    for one in ranks:
        figures = (*one.parts_s, sum(one.parts_s), one.overlapped_s)
        alone = (str(one.rank),) if len(ranks) <= _FEW_RANKS else ()
        rows.setdefault((*alone, one.source, *(f"{seconds / size:.4g}" for seconds in figures)), []).append(one.rank)
    if len(ranks) <= _FEW_RANKS:
        return list(rows)
    return [(_ranks_words(held), *cells) for cells, held in rows.items()]


def parts_section(ranks: Sequence[RankParts], *, note: str = "") -> Section | None:
    """Forward, backward, update, loading, communication and stalls of each rank, predicted and measured.

    Args:
        ranks: by rank, the prediction of each before its measurement
        note: what else to say of them
    """
    if not ranks:
        return None
    longest = max(sum(one.parts_s) for one in ranks)
    unit, size = time_unit(longest)
    axis = ChartAxis(title=f"time of a step [{unit}]")
    sources = list(dict.fromkeys(one.source for one in ranks))
    table = DataTable(
        columns=(
            "rank",
            "",
            *(f"{name} [{unit}]" for name, _ in PARTS_OF_STEP),
            f"step [{unit}]",
            f"overlapped [{unit}]",
        ),
        rows=_rows_of_parts(ranks, size),
        words=frozenset({0, 1}),
    )
    caption = "Communication counts where the rank waits for it; what overlaps with work is no part of the step."
    few = len(ranks) <= _FEW_RANKS
    charts = [ranks] if few else [[one for one in ranks if one.source == source] for source in sources]
    content: list[Chart | Words] = []
    for n, shown in enumerate(charts):
        bars = [
            Bar(
                name=f"{one.rank} {one.source}" if few else str(one.rank),
                parts=[seconds / size for seconds in one.parts_s],
                note=f"{sum(one.parts_s) / size:,.3g}" if few else "",
            )
            for one in shown
        ]
        what = "" if few or len(charts) == 1 else f"{shown[0].source.capitalize()}. "
        is_last = n == len(charts) - 1
        svg = bar_chart("Parts of a step by rank", bars, PARTS_OF_STEP, axis, names="rank")
        if is_last:
            content.append(Chart(svg=svg, table=table, caption=f"{what}{caption}"))
        else:
            own = [row for row, one in zip(table.rows, ranks, strict=True) if one.source == shown[0].source]
            content.append(
                Chart(svg=svg, table=DataTable(columns=table.columns, rows=own, words=table.words), caption=what)
            )
    if note:
        content.insert(0, Words(lines=[note]))
    return Section(id="parts", title="Where a step goes, by rank", content=content)


# ---------------------------------------------------------------------------------------------------------------------
# Memory over time


_MOST_CURVES = 6
_MOST_CHANGES = 1500


def memory_section(
    predicted: Timeline | None, measured: Timeline | None, budgets: Sequence[int], *, step_s: float = 0.0
) -> Section | None:
    """Live bytes of each rank over a step, with the budget.

    Args:
        predicted: one step, as simulated
        measured: steps as they were; its memory is drawn where it was followed
        budgets: memory that each rank may use [bytes]; empty: not known
        step_s: time of a step, until which the last value holds [s]
    """
    curves: dict[tuple[str, tuple[tuple[float, int], ...]], list[int]] = defaultdict(list)
    for source, timeline in (("predicted", predicted), ("measured", measured)):
        for rank, changes in enumerate(() if timeline is None else timeline.memory):
            if changes:
                curves[source, tuple(changes)].append(rank)
    if not curves:
        return None
    highest = sorted(curves, key=lambda key: -max(nbytes for _, nbytes in key[1]))
    shown = highest[:_MOST_CURVES]
    peak = max(nbytes for _, changes in shown for _, nbytes in changes)
    letter, size = byte_unit(peak)
    unit, tick_s = time_unit(max((changes[-1][0] for _, changes in shown), default=0.0) or step_s)
    series = []
    for n, key in enumerate(shown):
        source, changes = key
        kept = _thinned(changes)
        end_s = max(step_s, kept[-1][0])
        points = [(time_s / tick_s, nbytes / size) for time_s, nbytes in [*kept, (end_s, kept[-1][1])]]
        name = f"{source}, {_ranks_words(curves[key])}"
        series.append(
            Series(name=name, points=points, colour=SERIES_COLOURS[n], steps=True, dots=False, dashed=n % 2 == 1)
        )
    budget = min(budgets, default=0)
    near = 0 < budget < 4 * peak
    svg = curve_chart(
        "Memory over a step",
        series,
        ChartAxis(title=f"time in the step [{unit}]", zero=True),
        ChartAxis(title=f"live memory [{letter}]", zero=True),
        limits=[LimitLine(name=f"budget {format_bytes(budget)}", at=budget / size)] if near else [],
    )
    rows = [
        (
            source,
            _ranks_words(curves[source, changes], most=40),
            format_bytes(max(nbytes for _, nbytes in changes)),
            format_seconds(max(changes, key=lambda change: change[1])[0]),
            format_bytes(changes[-1][1]),
            f"{max(nbytes for _, nbytes in changes) / budget:.1%}" if budget else "–",
        )
        for source, changes in highest
    ]
    table = DataTable(
        columns=("source", "ranks", "peak", "peak at", "at the end", "peak of the budget"),
        rows=rows[:_MOST_ROWS],
        words=frozenset({0, 1}),
        left_out="" if len(rows) <= _MOST_ROWS else f"{len(rows) - _MOST_ROWS} more ranks, with less.",
    )
    caption = "Ranks with the same course share a line."
    if len(highest) > len(shown):
        caption += f" Of {len(highest)} courses those with the highest peaks are drawn; the table has all."
    if budget and not near:
        caption += f" The budget of {format_bytes(budget)} lies far above ({peak / budget:.2%} of it at the peak)."
    if not budget:
        caption += " No budget is known."
    if measured is None or not any(measured.memory):
        caption += " Measured memory was not followed."
    return Section(id="memory", title="Memory over time", content=[Chart(svg=svg, table=table, caption=caption)])


def _thinned(changes: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """At most some changes, with the highest of each that goes."""
    if len(changes) <= _MOST_CHANGES:
        return list(changes)
    every = -(-len(changes) // _MOST_CHANGES)
    return [max(changes[n : n + every], key=lambda change: change[1]) for n in range(0, len(changes), every)]


def _ranks_words(ranks: Sequence[int], most: int = 4) -> str:
    """Ranks for people, neighbours as a range; of many ranges the first, and how many ranks there are.

    Example:
        >>> _ranks_words([0]), _ranks_words([0, 1, 2, 3, 7]), _ranks_words([0, 2, 4, 6, 8, 10])
        ('rank 0', 'ranks 0–3, 7', '6 ranks: 0, 2, 4, 6, …')
    """
    runs: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    words = [f"{first}" if first == last else f"{first}–{last}" for first, last in runs]
    if len(words) > most:
        return f"{len(ranks)} ranks: {', '.join(words[:most])}, …"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(words)}"


# ---------------------------------------------------------------------------------------------------------------------
# The plan: candidates, scaling, placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Considered:
    """A strategy that was considered.

    Attributes:
        name: of the strategy
        verdict: "chosen", "baseline", "rejected" or another
        pareto: no other is better in time, memory and devices at once
        devices: that it uses; None: the document does not say
        step_s: predicted time of a step [s]; None: it was rejected before
        interval_s: its 90 % interval [s]
        peak_bytes: of the fullest rank [bytes]; 0: not known
        says: what limits it, or why it was rejected
    """

    name: str
    verdict: str
    pareto: bool = False
    devices: int | None = None
    step_s: float | None = None
    interval_s: tuple[float, float] | None = None
    peak_bytes: int = 0
    says: str = ""


def considered(rows: Iterable[CandidateRow]) -> list[Considered]:
    """The candidates of a plan file, each once: one that is chosen may be among the baselines, too."""
    rows = tuple(rows)
    chosen = {row.strategy for row in rows if row.verdict == "chosen"}
    return [
        Considered(
            name=row.strategy.name,
            verdict=row.verdict,
            pareto=row.pareto,
            devices=row.strategy.devices,
            step_s=None if row.prediction is None else row.prediction.step_time_s,
            interval_s=None if row.prediction is None else row.prediction.interval_s,
            peak_bytes=0 if row.prediction is None else max(row.prediction.peak_bytes, default=0),
            says=row.reason if row.prediction is None else row.limiter or row.reason,
        )
        for row in rows
        if row.verdict != "baseline" or row.strategy not in chosen
    ]


def candidates_section(rows: Sequence[Considered], *, rule: str = "", rejected: int | None = None) -> Section | None:
    """What a plan was chosen from, with the Pareto front of time, memory and devices.

    Args:
        rows: of the plan
        rule: why the chosen one is not the fastest; "": nothing is to be said
        rejected: how many were, where `rows` does not hold them all
    """
    priced = [row for row in rows if row.step_s is not None]
    if not rows:
        return None
    unit, size = time_unit(max((row.step_s or 0.0 for row in priced), default=1.0))
    letter, bytes_size = byte_unit(max((row.peak_bytes for row in priced), default=0))
    kinds: Mapping[str, tuple[str, bool, float]] = {
        "chosen": (SERIES_COLOURS[1], False, 7.0),
        "on the Pareto front": (SERIES_COLOURS[0], False, 4.5),
        "baseline": (SERIES_COLOURS[3], True, 5.5),
        "others": (SERIES_COLOURS[5], True, 3.5),
    }
    places: dict[str, list[tuple[float, float, str, str]]] = {name: [] for name in kinds}
    for row in priced:
        if row.step_s is None or not row.peak_bytes:
            continue
        on = "" if row.devices is None else f" on {format_count(row.devices, 'device')}"
        says = f"{row.name}: {format_seconds(row.step_s)}, {format_bytes(row.peak_bytes)}{on}"
        for kind in _kinds(row):
            label = row.name if kind in ("chosen", "baseline") else ""
            places[kind].append((row.step_s / size, row.peak_bytes / bytes_size, says, label))
    times = [place[0] for spots in places.values() for place in spots]
    heights = [place[1] for spots in places.values() for place in spots]
    svg = curve_chart(
        "Candidates by time of a step and memory",
        [
            Series(
                name=name,
                points=[(a, b) for a, b, *_ in places[name]],
                says=[says for _, _, says, _ in places[name]],
                labels=[label for *_, label in places[name]],
                colour=colour,
                hollow=hollow,
                size=dot,
                line=False,
            )
            for name, (colour, hollow, dot) in reversed(list(kinds.items()))
        ],
        ChartAxis(title=f"time of a step [{unit}]", log=_is_wide(times), zero=_reaches_down(times)),
        ChartAxis(
            title=f"memory at the peak, fullest rank [{letter}]", log=_is_wide(heights), zero=_reaches_down(heights)
        ),
    )
    table = DataTable(
        columns=(
            "strategy",
            "",
            "Pareto",
            "devices",
            "step",
            "90 % interval",
            "memory at the peak",
            "limited by, or why not",
        ),
        rows=[_candidate_cells(row) for row in rows[:_MOST_ROWS]],
        words=frozenset({0, 1, 2, 7}),
        left_out="" if len(rows) <= _MOST_ROWS else f"{len(rows) - _MOST_ROWS} more are in the plan file.",
    )
    count = sum(row.verdict == "rejected" for row in rows) if rejected is None else rejected
    # A plan of degrees does not hold what was rejected.
    before = f"; {count:,} rejected before" if count else ""
    caption = f"{format_count(len(priced), 'candidate')} with a predicted step{before}. "
    caption += "Pareto: of those that keep what was decided, no other is better in time, memory and devices at once."
    content: list[Chart | Words] = [Chart(svg=svg, table=table, caption=caption)]
    if rule:
        content.append(Words(lines=[rule]))
    return Section(id="candidates", title="Candidates and the Pareto front", content=content)


def _kinds(row: Considered) -> Iterable[str]:
    if row.verdict == "chosen":
        yield "chosen"
    if row.verdict == "baseline":
        yield "baseline"
    if row.pareto and row.verdict != "chosen":
        yield "on the Pareto front"
    if row.verdict not in ("chosen", "baseline") and not row.pareto:
        yield "others"


def _is_wide(values: Sequence[float]) -> bool:
    return bool(values) and min(values) > 0 and max(values) / min(values) > 12


def _reaches_down(values: Sequence[float]) -> bool:
    """Points fill most of an axis that begins at 0; else it covers them alone."""
    return bool(values) and min(values) < 0.2 * max(values)


def _candidate_cells(row: Considered) -> tuple[str, ...]:
    head = (row.name, row.verdict, "yes" if row.pareto else "", "–" if row.devices is None else f"{row.devices:,}")
    peak = format_bytes(row.peak_bytes) if row.peak_bytes else "–"
    if row.step_s is None:
        return (*head, "–", "–", peak, row.says)
    ends = "–" if row.interval_s is None else " to ".join(format_seconds(end) for end in row.interval_s)
    return (*head, format_seconds(row.step_s), ends, peak, row.says)


def assumption_section(document: Mapping[str, Any]) -> Section | None:
    """What a plan assumes, and the simplest plan within the uncertainty, in the words of the command.

    Args:
        document: as of `assumption_lines`
    """
    lines = assumption_lines(document)
    content = [Words(lines=lines)]
    return Section(id="assumed", title="What is assumed, and what is simpler", content=content) if lines else None


def compared_devices(most: int) -> str:
    """Numbers of devices to compare, as `--devices` reads them: a quarter, half and all.

    Args:
        most: devices of a plan

    Example:
        >>> compared_devices(1024), compared_devices(2)
        ('256,512,1024', '1,2')
    """
    return ",".join(str(count) for count in sorted({max(1, most // 4), max(1, most // 2), most}))


def scaling_section(plan: Plan, *, measured: tuple[int, float] | None = None) -> Section | None:
    """Throughput by devices: ideal, plain data parallelism (DDP), the best plan, by the candidates of a plan.

    Args:
        plan: with candidates
        measured: devices and throughput of a run [samples/s]
    """
    batch = plan.premises.global_batch_size
    best: dict[str, dict[int, tuple[float, str]]] = {"best plan": {}, "DDP": {}}
    for row in plan.candidates:
        if row.prediction is None or row.prediction.step_time_s <= 0:
            continue
        found = batch / row.prediction.step_time_s, row.strategy.name
        count = row.strategy.devices
        names = ["best plan"] + (["DDP"] if is_plain_data_parallel(row.strategy) else [])
        for name in names:
            best[name][count] = max(best[name].get(count, (0.0, "")), found)
    counts = sorted(best["best plan"])
    if len(counts) < 2:
        return None
    chosen = (plan.strategy.devices, batch / plan.prediction.step_time_s) if plan.prediction.step_time_s > 0 else None
    return drawn_scaling(best, chosen, name=plan.strategy.name, batch=batch, measured=measured)


def drawn_scaling(
    best: Mapping[str, Mapping[int, tuple[float, str]]],
    chosen: tuple[int, float] | None,
    *,
    name: str,
    batch: int | None,
    measured: tuple[int, float] | None = None,
    more: Sequence[str] = (),
    cells: Mapping[int, Sequence[str]] = MappingProxyType({}),
    says: str = "",
) -> Section:
    """Throughput by devices, and what else is known of each number of them.

    Args:
        best: "best plan" and "DDP": by devices the throughput [samples/s] and the strategy
        chosen: devices and throughput of the plan; None: not known
        name: strategy of the plan
        batch: samples of one update; None: several are compared
        measured: devices and throughput of a run; None: of none
        more: titles of further columns
        cells: of these columns, by devices
        says: further sentences
    """
    counts, ddp = sorted(best["best plan"]), best["DDP"]
    first = counts[0]
    base = best["best plan"][first][0] / first
    series = [
        Series(
            name="ideal",
            points=[(float(n), base * n) for n in counts],
            colour=SERIES_COLOURS[5],
            dashed=True,
            dots=False,
        )
    ]
    for n, kind in enumerate(("DDP", "best plan")):
        found_rows = sorted(best[kind].items())
        series.append(
            Series(
                name=kind,
                points=[(float(count), value) for count, (value, _) in found_rows],
                says=[f"{strategy} on {count}: {rate(value)} samples/s" for count, (value, strategy) in found_rows],
                colour=SERIES_COLOURS[3 - 3 * n],
            )
        )
    if chosen is not None:
        series.append(
            Series(
                name="this plan", points=[(float(chosen[0]), chosen[1])], colour=SERIES_COLOURS[1], line=False, size=7.0
            )
        )
    if measured is not None:
        series.append(
            Series(
                name="measured",
                points=[(float(measured[0]), measured[1])],
                colour=SERIES_COLOURS[2],
                line=False,
                hollow=True,
                size=7.0,
            )
        )
    own = "" if chosen is None else f" This plan, {name}: {rate(chosen[1])} samples/s predicted"
    own += f", {rate(measured[1])} by the measured step." if own and measured is not None else "." if own else ""
    one_batch = "" if batch is None else f", for one global batch of {batch:,} samples"
    wide = counts[-1] / counts[0] > 4
    svg = curve_chart(
        "Throughput by devices",
        series,
        ChartAxis(title="devices", log=wide, ticks=[float(n) for n in counts]),
        ChartAxis(title="throughput [samples/s]", log=wide, zero=True),
    )
    table = DataTable(
        columns=(
            "devices",
            "ideal [samples/s]",
            *(["DDP [samples/s]"] if ddp else []),
            "best plan [samples/s]",
            "strategy",
            *more,
        ),
        rows=[
            (
                f"{n:,}",
                rate(base * n),
                *([rate(ddp[n][0]) if n in ddp else "–"] if ddp else []),
                rate(best["best plan"][n][0]),
                best["best plan"][n][1],
                *cells.get(n, ()),
            )
            for n in counts
        ],
        words=frozenset({4 if ddp else 3}),
    )
    return Section(
        id="scaling",
        title="Scaling",
        content=[
            Chart(
                svg=svg,
                table=table,
                caption=f"Predicted{one_batch}, by the candidates of this plan; ideal: "
                f"{'one device' if first == 1 else f'{first} devices'}, as many times faster as there are devices."
                f"{own}{says}",
                is_open=bool(more),
            )
        ],
    )


def placement_section(
    strategy: Strategy, *, modules: Mapping[str, int] | None = None, layers: int | None = None
) -> Section:
    """Which rank has which part of the network.

    Args:
        strategy: of the plan
        modules: for each module, in the order of the network, the row of a replica that runs it; None: not known
        layers: of the network, where the plan has degrees only
    """
    rows = _stages(strategy, modules, layers)
    sizes = [
        f"{format_count(size, name)}"
        for size, name in (
            (strategy.dp, "data-parallel replica"),
            (strategy.pp, "pipeline stage" if not strategy.parts else "place"),
            (strategy.tp, "tensor-parallel rank"),
            (strategy.cp, "context-parallel rank"),
        )
        if size > 1
    ]
    said = f"{strategy.name}: {' × '.join(sizes) if sizes else 'one rank with the whole network'}."
    if strategy.zero:
        what = {
            1: "optimizer state",
            2: "optimizer state and gradients",
            3: "parameters, gradients and optimizer state",
        }
        said += (
            f" ZeRO-{strategy.zero}: {what[strategy.zero]} sharded over {format_count(strategy.state_ranks, 'rank')}."
        )
    if strategy.pp > 1:
        said += f" Schedule {strategy.schedule}, {format_count(strategy.microbatches, 'microbatch')[:-1]}" + (
            "es." if strategy.microbatches > 1 else "h."
        )
    return drawn_placement(rows, [said], modules=modules)


def drawn_placement(
    rows: Sequence[tuple[str, str, str]], said: Sequence[str], *, modules: Mapping[str, int] | None = None
) -> Section:
    """Which ranks have which part of the network, where a document says that and no strategy.

    Args:
        rows: part of a replica, what it has of the network, which ranks have it
        said: sentences before the drawing
        modules: as of `placement_section`
    """
    table = DataTable(columns=("part of a replica", "of the network", "ranks"), rows=rows, words=frozenset({0, 1, 2}))
    content: list[Chart | Words] = [Words(lines=said), Chart(svg=_placement_drawing(rows, modules), table=table)]
    return Section(id="placement", title="Placement", content=content)


def _ranks_of_row(strategy: Strategy, row: int) -> str:
    """Ranks that hold a row of a replica, in the numbering of programs."""
    if strategy.cp > 1:
        return f"{format_count(strategy.dp * strategy.tp * strategy.cp, 'rank')}"
    held = [
        (replica * strategy.pp + row) * strategy.tp + shard
        for replica in range(strategy.dp)
        for shard in range(strategy.tp)
    ]
    return _ranks_words(held)


def _stages(strategy: Strategy, modules: Mapping[str, int] | None, layers: int | None) -> list[tuple[str, str, str]]:
    if strategy.pp == 1:
        return [("whole network", f"{layers} layers" if layers else "all modules", _ranks_of_row(strategy, 0))]
    found = []
    for row in range(strategy.pp):
        segments = [n for n, of in enumerate(strategy.rows) if of == row]
        if modules:
            held = ", ".join(name for name, of in modules.items() if of == row)
        elif strategy.parts:
            held = ", ".join(op for n in segments for op in strategy.parts[n].ops)
        elif strategy.boundaries:
            held = "; ".join(_between(strategy, n) for n in segments)
        elif strategy.segment_layers:
            own = strategy.segment_layers[row :: strategy.pp]
            held = f"{sum(own)} layers ({' + '.join(map(str, own))})" if len(own) > 1 else f"{sum(own)} layers"
        elif layers:
            held = f"about {layers / strategy.pp:.3g} of {layers} layers" + (
                f", {strategy.chunks} chunks" if strategy.chunks > 1 else ""
            )
        else:
            held = "not said"
        name = "place" if strategy.parts else "stage"
        found.append((f"{name} {row}", held, _ranks_of_row(strategy, row)))
    return found


def _between(strategy: Strategy, segment: int) -> str:
    bounds = strategy.boundaries
    begin = f"after {bounds[segment - 1]}" if 0 < segment <= len(bounds) else "from the input"
    end = f"to {bounds[segment]}" if segment < len(bounds) else "to the loss"
    return f"{begin} {end}"


_ROW_COLOURS = (
    "var(--forward)",
    "var(--update)",
    "var(--load)",
    "var(--exposed)",
    "var(--unattributed)",
    "var(--idle)",
)


_MOST_BOXES = 64


def _placement_drawing(rows: Sequence[tuple[str, str, str]], modules: Mapping[str, int] | None) -> str:
    """The network from its input to its loss: neighbours that run on the same ranks are one box."""
    boxes = [(name, held, ranks, n) for n, (name, held, ranks) in enumerate(rows)]
    if modules:
        runs = [(row, [name for name, _ in run]) for row, run in groupby(modules.items(), key=lambda item: item[1])]
        boxes = [(rows[row][0], _span_words(names), rows[row][2], row) for row, names in runs]
    if len(boxes) > _MOST_BOXES:
        return ""
    columns = min(2, len(boxes))
    wide, high, gap = (WIDTH - 16.0) / columns - 22, 64.0, 22.0
    lines = -(-len(boxes) // columns)
    drawing = Drawing(
        width=WIDTH, height=lines * (high + 14) + 12, title="Placement of the network on ranks", inline=True
    )
    for n, (name, held, ranks, row) in enumerate(boxes):
        x, y = 8 + (n % columns) * (wide + gap), 8 + (n // columns) * (high + 14)
        says = f"{name}: {held}; {ranks}"
        drawing.box(x, y, wide, high, colour=_ROW_COLOURS[row % len(_ROW_COLOURS)], says=says)
        drawing.box(x + 5, y + 2, wide - 7, high - 4, colour=GROUND, says=says)
        most = int((wide - 20) / 6.8)
        drawing.text(x + 12, y + 22, short(name, most), size=13, colour=INK, bold=True)
        drawing.text(x + 12, y + 40, short(held, most), size=12, colour=SOFT)
        drawing.text(x + 12, y + 57, _whole_names(ranks, most), size=12, colour=SOFT)
        if n % columns < columns - 1 and n < len(boxes) - 1:
            tip, middle = x + wide + gap - 3, y + high / 2
            drawing.line([(x + wide + 4, middle), (tip - 3, middle)], colour=SOFT, width=1.5)
            drawing.area([(tip, middle), (tip - 7, middle - 4), (tip - 7, middle + 4)], colour=SOFT)
    return drawing.render()


def _whole_names(listed: str, most: int) -> str:
    """A list of at most some characters, which ends behind a whole name.

    Example:
        >>> _whole_names("ranks 0–3, 7", 12), _whole_names("64 ranks: 0–1, 8–9, 16–17, …", 24)
        ('ranks 0–3, 7', '64 ranks: 0–1, 8–9, …')
    """
    if len(listed) <= most:
        return listed
    kept = listed[: most - 2].rpartition(", ")[0]
    return f"{kept}, …" if kept else short(listed, most)


def _span_words(names: Sequence[str]) -> str:
    """Modules from the first to the last.

    Example:
        >>> _span_words(["conv1"]), _span_words(["conv1", "pool", "fc"])
        ('conv1', 'conv1 … fc (3 parts)')
    """
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)} parts)"


# ---------------------------------------------------------------------------------------------------------------------
# The training: loss and metric


def training_section(
    epochs: Sequence[tuple[int, float | None, float | None, float | None]],
    *,
    target: float | None,
    says: str = "",
    metric_name: str = "metric",
) -> Section | None:
    """Time to accuracy: loss and metric of each epoch, over the time of training.

    Args:
        epochs: number, loss, metric, seconds of each
        target: of the metric; None: nobody said
        says: what a plan says of the training to the target
        metric_name: of the metric, for people
    """
    if not epochs:
        return None
    times, spent = [], 0.0
    for _, _, _, seconds in epochs:
        spent += seconds or 0.0
        times.append(spent)
    unit, size = time_unit(spent)
    metric = [(at / size, value) for at, (_, _, value, _) in zip(times, epochs, strict=True) if value is not None]
    loss = [(at / size, value) for at, (_, value, _, _) in zip(times, epochs, strict=True) if value is not None]
    several = len(epochs) > 1
    axis = ChartAxis(title=f"time of training [{unit}]", zero=True)
    table = DataTable(
        columns=("epoch", f"time [{unit}]", "loss", metric_name),
        rows=[
            (
                str(epoch),
                f"{at / size:.4g}",
                "–" if lost is None else f"{lost:.4g}",
                "–" if value is None else f"{value:.4g}",
            )
            for at, (epoch, lost, value, _) in zip(times, epochs, strict=True)
        ],
        words=frozenset(),
    )
    reached = next((at for at, value in metric if target is not None and value >= target), None)
    if target is None:
        caption = "No target was set."
    elif reached is None:
        caption = f"The target of {target:g} was not reached."
    else:
        caption = f"The target of {target:g} was reached after {format_seconds(reached * size)} of training."
    if says:
        caption += f" {says}"
    limits = [] if target is None else [LimitLine(name=f"target {target:g}", at=target)]
    shown = metric or loss
    name = metric_name if metric else "loss"
    svg = (
        curve_chart(
            f"{name} over time",
            [Series(name=name, points=shown, colour=SERIES_COLOURS[0])],
            axis,
            ChartAxis(title=f"{name} after each epoch"),
            limits=limits if metric else [],
        )
        if several
        else ""
    )
    return Section(id="training", title="Time to accuracy", content=[Chart(svg=svg, table=table, caption=caption)])


# ---------------------------------------------------------------------------------------------------------------------
# Environment and commands


def commands_section(environment: Mapping[str, str], commands: Sequence[tuple[str, str]]) -> Section:
    """Where something ran or is planned to run, and the commands that repeat it.

    Args:
        environment: names and values
        commands: what each does, and the command
    """
    content: list[Chart | Words | Commands | DataTable] = []
    if environment:
        table = DataTable(columns=("", ""), rows=list(environment.items()), words=frozenset({0, 1}))
        content.append(table)
    content.append(Commands(lines=commands))
    return Section(id="environment", title="Environment and commands", content=content)
