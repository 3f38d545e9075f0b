"""Rehearsal of a script: the page that `rehearse` prints, and the same as JSON data.

The verdict is the first line. Below it: what is wrong and on which lines, memory by rank, collectives, the step, values
that were invented, notes, and the next command.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from trimaran.base.decoding import Count, Positive
from trimaran.base.html import DataTable
from trimaran.base.printable import printable
from trimaran.base.remedies import MemoryHelp
from trimaran.base.secrets import page_command
from trimaran.base.units import format_bytes, format_count, format_seconds, format_span
from trimaran.report.page.charts import Bar, ChartAxis, LimitLine, bar_chart, byte_unit, time_unit
from trimaran.report.page.layout import Absent, Chart, Page, Section, Words, those_known
from trimaran.report.page.terminal import section_view
from trimaran.report.tables import add_figures, add_words, bullet, frame_table, next_text, page_text

Verdict = Literal["fits", "not sure", "out of memory", "disagree", "hang", "failed", "not trained"]
"""What a rehearsal says of a script, the worst that was found: it fits and the calls of its ranks agree; memory is too
close to tell; a rank runs out of memory; ranks ask for different collectives, or train a model each; they wait for each
other for ever; a rank failed; no rank took a step of an optimizer."""

EXIT_CODES: Mapping[Verdict, int] = {
    "fits": 0,
    "not sure": 3,
    "out of memory": 3,
    "disagree": 5,
    "hang": 5,
    "failed": 5,
    "not trained": 2,
}
"""Of the command: those of `InfeasibleError`, `ExecutionError` and `InputError`."""

PURPOSES: Mapping[str, str] = {
    "parameter": "param",
    "gradient": "grad",
    "optimizer": "optim",
    "activation": "activ",
    "temporary": "temp",
    "communication": "comm",
    "workspace": "libs",
    "other": "other",
}
"""What memory is for, and its heading in tables; inputs count as other."""

_TIGHT = 0.9
"""Share of a device's room from which on another setting of the allocator is worth a look."""

_MOST_ROWS = 12
_MOST_PURPOSES = 4
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedRank:
    """One rank that was rehearsed.

    Attributes:
        rank: global
        place: where it stands in the script's groups, such as "pp 3 of 16, tp 0 of 8"; "" where there are none
        stands_for: ranks that are taken to do the same, itself included
        ended: how its script ended, in words
        status: exit status of the script
        steps: of an optimizer that it took
        allocated_bytes: at most, in blocks [bytes]
        reserved_bytes: at most, in segments of the allocator, with what it takes in addition [bytes]
        room_bytes: of its device for the allocator, without the driver's context and the usual buffers of NCCL [bytes]
        parts_bytes: what was allocated at that moment is for, by names of `PURPOSES` [bytes]
        kept_bytes: what is still allocated when its last step ends is for; empty: it had no step [bytes]
        peak_line: the user's line at that moment; "" where none is known
        host_s: that it took here [s]
        host_bytes: of its process here, at most [bytes]
    """

    rank: Count
    place: str
    stands_for: Count
    ended: str
    status: int
    steps: Count
    allocated_bytes: Count
    reserved_bytes: Count
    room_bytes: Count
    parts_bytes: Mapping[str, Count]
    kept_bytes: Mapping[str, Count]
    peak_line: str
    host_s: Positive
    host_bytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One rank's side of what is wrong.

    Attributes:
        rank: global
        text: what it does, such as "all_reduce of 4 × float32, sum"
        lines: of the user's code, innermost first, such as "train.py:41 in main"
    """

    rank: Count
    text: str
    lines: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Something that keeps the script from training.

    Attributes:
        verdict: what it makes of the rehearsal
        text: one sentence
        sides: the ranks that it is about, the first one first
        help: what would help, one sentence each, the best first
    """

    verdict: Verdict
    text: str
    sides: Sequence[Side]
    help: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedCollectives:
    """Collectives of one kind in one step.

    Attributes:
        rank: that asks for them
        operation: such as "all_gather"
        group: the script's name of the group, or its ranks
        ranks: of the group
        count: in one step; the mean where steps differ
        nbytes: of all of them [bytes]
    """

    rank: Count
    operation: str
    group: str
    ranks: Count
    count: Positive
    nbytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedStep:
    """The step on the target cluster.

    Attributes:
        seconds: of one step [s]
        interval_s: 90 % interval [s]
        parts_s: what it is spent on [s]
        mfu: share of the devices' peak; None: not known
        peak: precision that `mfu` counts with, such as "bf16"
        rank: whose parts are told
        notes: what the figures take for granted
    """

    seconds: Positive
    interval_s: tuple[Positive, Positive]
    parts_s: Mapping[str, Positive]
    mfu: Positive | None
    peak: str
    rank: Count
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InventedValue:
    """A value that the script asked for and that no data can tell.

    Attributes:
        what: kind of the value, such as "loss"; the name of its hint
        asked: operation that asked
        value: that was given
        line: the user's
        count: how often, over all rehearsed ranks
    """

    what: str
    asked: str
    value: str
    line: str
    count: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What a rehearsal found.

    Attributes:
        verdict: the worst that was found
        headline: the same as one sentence with its figures
        script: path, or "-m" and the module's name, and its arguments
        world: ranks in all
        cluster: name of the target cluster
        device: what its device is called
        per_node: ranks of a node
        memory_bytes: of a device [bytes]
        ranks: that were rehearsed, ascending
        troubles: what is wrong, the worst first; empty where the script fits and the calls of its ranks agree
        remedies: for a lack of memory, those that are enough first, then those with the shortest step
        agreement: what was compared, one sentence
        collectives: of one step, of the rank that has most
        step: on the target cluster; None: not known
        invented: values without data
        notes: what was taken instead of what the script asked for, and what is not modelled
        printed: the last lines that rank 0 printed, or the rank that failed
        took_s: that the rehearsal took [s]
        calibration: factors on the modelled times, as `--calibration` reads them; None: none
        options: what was asked besides, each an option of the command and its value, such as "--memory", "80GiB"
    """

    derived: ClassVar = ("fits", "peak_bytes")
    verdict: Verdict
    headline: str
    script: Sequence[str]
    world: Count
    cluster: str
    device: str
    per_node: Count
    memory_bytes: Count
    ranks: Sequence[RehearsedRank]
    troubles: Sequence[Trouble]
    remedies: Sequence[MemoryHelp]
    agreement: str
    collectives: Sequence[RehearsedCollectives]
    step: RehearsedStep | None
    invented: Sequence[InventedValue]
    notes: Sequence[str]
    printed: Sequence[str]
    took_s: Positive
    calibration: Mapping[str, object] | None = None
    options: Sequence[str] = ()

    @property
    def fits(self) -> bool:
        """Whether it fits, the calls of its ranks agree, and it trains."""
        return self.verdict == "fits"

    @property
    def peak_bytes(self) -> int:
        """Memory that the rank with most reserves [bytes]."""
        return max((one.reserved_bytes for one in self.ranks), default=0)

    def __str__(self) -> str:
        return page_text(lambda out: out.print(rehearsal_view(self)))


# ---------------------------------------------------------------------------------------------------------------------
# The page of a rehearsal


_PURPOSE_COLOURS = (
    "var(--series-1)",
    "var(--series-2)",
    "var(--series-3)",
    "var(--series-4)",
    "var(--series-5)",
    "var(--backward)",
    "var(--after)",
    "var(--overlapped)",
)


def rehearsal_page(found: Rehearsal, _: Sequence[object] = (), __: str = "") -> Page:
    """What is wrong, memory by rank, what would help, collectives, the step, and what was invented.

    Args:
        found: the answer
    """
    return Page(
        kind="Rehearsal",
        title=f"{' '.join(found.script[: 1 + (found.script[:1] == ['-m'])])} on {format_count(found.world, 'rank')}",
        verdict=found.headline,
        facts=[
            ("verdict", found.verdict),
            ("ranks rehearsed", f"{len(found.ranks)} of {found.world:,}"),
            ("device", f"{found.device}, {format_bytes(found.memory_bytes)}"),
        ]
        + ([("step", format_seconds(found.step.seconds))] if found.step else []),
        sections=those_known(
            _troubles_section(found.troubles),
            _rank_memory_section(found),
            helps_section(found.remedies),
            _collectives_section(found),
            _step_section(found.step),
            _invented_section(found.invented),
            Section(id="printed", title="The script printed last", content=[Words(lines=found.printed, is_list=True)])
            if found.printed
            else None,
        ),
        absent=[]
        if found.step is not None
        else [Absent(title="Step time", how="no step could be timed: the ranks have to reach a step of an optimizer")],
        notes=found.notes,
        command=page_command(asked_again(found, "--json")),
        environment={
            "cluster": found.cluster,
            "device": found.device,
            "times corrected by": "" if found.calibration is None else str(found.calibration.get("source", "")),
        },
    )


def _troubles_section(troubles: Sequence[Trouble]) -> Section | None:
    if not troubles:
        return None
    content: list[Chart | Words | DataTable] = []
    for one in troubles[:20]:
        content.append(Words(lines=[one.text]))
        sides = [(str(side.rank), side.text, "; ".join(side.lines)) for side in one.sides]
        if sides:
            content.append(DataTable(columns=("rank", "does", "lines"), rows=sides, words=frozenset({1, 2})))
        if one.help:
            content.append(Words(lines=one.help, is_list=True))
    return Section(id="troubles", title="What is wrong", content=content)


def _rank_memory_section(found: Rehearsal) -> Section | None:
    ranks = [one for one in found.ranks if one.reserved_bytes or one.allocated_bytes]
    if not ranks:
        return None
    peak = max(one.reserved_bytes for one in ranks)
    unit, size = byte_unit(peak)
    purposes = list(PURPOSES)
    room = min(one.room_bytes for one in ranks)
    parts = [*zip(purposes, _PURPOSE_COLOURS, strict=True), ("reserved beyond", "var(--idle)")]

    def figures(one: RehearsedRank) -> list[float]:
        known = [one.parts_bytes.get(name, 0) / size for name in purposes]
        known[-1] += sum(count for name, count in one.parts_bytes.items() if name not in PURPOSES) / size
        return [*known, max(0.0, one.reserved_bytes / size - sum(known))]

    svg = bar_chart(
        "Memory at the peak by rank and purpose",
        [
            Bar(name=f"rank {one.rank}" if len(ranks) <= 20 else str(one.rank), parts=figures(one), note="")
            for one in ranks
        ],
        parts,
        ChartAxis(title=f"memory at the peak [{unit}]"),
        limit=LimitLine(name=f"a device has {format_bytes(room)} to allocate", at=room / size)
        if room < 4 * peak
        else None,
    )
    table = DataTable(
        columns=(
            *("rank", "place", "stands for", *(f"{name} [{unit}]" for name in purposes)),
            *(f"allocated [{unit}]", f"reserved [{unit}]", "at the peak", "ended"),
        ),
        rows=[
            (
                str(one.rank),
                one.place,
                f"{one.stands_for:,}",
                *(f"{one.parts_bytes.get(name, 0) / size:,.4g}" for name in purposes),
                f"{one.allocated_bytes / size:,.4g}",
                f"{one.reserved_bytes / size:,.4g}",
                one.peak_line,
                one.ended,
            )
            for one in ranks
        ],
        words=frozenset({1, 3 + len(purposes) + 2, 3 + len(purposes) + 3}),
    )
    caption = (
        "Reserved beyond: what the allocator holds above what is in blocks. A rank stands for all that do the same."
    )
    if room >= 4 * peak:
        caption += f" A device has {format_bytes(room)} to allocate, far above."
    return Section(
        id="memory", title="Memory by rank and purpose", content=[Chart(svg=svg, table=table, caption=caption)]
    )


def helps_section(helps: Sequence[MemoryHelp]) -> Section | None:
    """Remedies for a lack of memory.

    Args:
        helps: of one rank
    """
    if not helps:
        return None
    table = DataTable(
        columns=("remedy", "saves", "reserved then", "step then", "fits then"),
        rows=[_help_row(one) for one in helps],
        words=frozenset({0, 4}),
        caption="saves: of the reserved memory; then: with this remedy alone",
    )
    refused = [f"{one.name}: {one.refused}" for one in helps if one.refused]
    content: list[Words | DataTable] = [table, *([Words(lines=refused, is_list=True)] if refused else [])]
    title = f"What would help rank {helps[0].rank}, each played on its record"
    return Section(id="remedies", title=title, content=content)


def _collectives_section(found: Rehearsal) -> Section | None:
    content: list[Chart | Words] = [Words(lines=[found.agreement])] if found.agreement else []
    if found.collectives:
        shown = sorted(found.collectives, key=lambda one: -one.nbytes)
        unit, size = byte_unit(shown[0].nbytes)
        svg = bar_chart(
            "Bytes of collectives in a step",
            [
                Bar(name=f"{one.operation} {one.group}", parts=[one.nbytes / size], note=f"{one.count:,} ×")
                for one in shown[:16]
            ],
            [("bytes in a step", "var(--exposed)")],
            ChartAxis(title=f"bytes in a step [{unit}]"),
        )
        table = DataTable(
            columns=("operation", "group", "ranks", "count", "bytes"),
            rows=[
                (one.operation, one.group, f"{one.ranks:,}", f"{one.count:,}", format_bytes(one.nbytes))
                for one in shown
            ],
            words=frozenset({0, 1}),
        )
        caption = f"group: as the script names it; ranks: of the group; count, bytes: in a step of rank {shown[0].rank}"
        content.append(Chart(svg=svg, table=table, caption=caption))
    return Section(id="collectives", title="Collectives of a step", content=content) if content else None


def _step_section(step: RehearsedStep | None) -> Section | None:
    if step is None:
        return None
    unit, size = time_unit(step.seconds)
    parts = [(name, seconds) for name, seconds in step.parts_s.items() if seconds >= max(5e-4 * step.seconds, 1e-15)]
    svg = bar_chart(
        "Parts of the step",
        [Bar(name=name, parts=[seconds / size], note=f"{seconds / size:,.3g}") for name, seconds in parts],
        [("time", "var(--series-1)")],
        ChartAxis(title=f"time of a step [{unit}]"),
    )
    table = DataTable(
        columns=("part of the step", "time", "share"),
        rows=[(name, format_seconds(seconds), f"{100 * seconds / step.seconds:.1f} %") for name, seconds in parts],
    )
    caption = (
        f"Rank {step.rank}: {format_seconds(step.seconds)} (90 %: {format_span(*map(format_seconds, step.interval_s))})"
        + (f", {100 * step.mfu:.1f} % of {step.peak} (MFU)" if step.mfu is not None else "")
        + "; times are predicted for the cluster."
    )
    notes = [Words(lines=step.notes, is_list=True)] if step.notes else []
    chart = Chart(svg=svg, table=table, caption=caption)
    return Section(id="parts", title="The step on the target cluster", content=[chart, *notes])


def _invented_section(invented: Sequence[InventedValue]) -> Section | None:
    if not invented:
        return None
    table = DataTable(
        columns=("what", "answer", "asked by", "line", "times"),
        rows=[(one.what, one.value, one.asked, one.line, f"{one.count:,}") for one in invented],
        words=frozenset({0, 1, 2, 3}),
        caption="what the script asked of tensors without data; asked by, line: where; --hint says a value of yours",
    )
    return Section(id="invented", title="Invented values", content=[table])


# ---------------------------------------------------------------------------------------------------------------------
# For people


def rehearsal_view(rehearsal: Rehearsal) -> RenderableType:
    """A rehearsal for people, readable at 80 columns.

    Args:
        rehearsal: of a script
    """
    parts: list[RenderableType] = [Text(rehearsal.headline, style="bold")]
    parts += [_trouble(trouble, is_told=trouble.text in rehearsal.headline) for trouble in rehearsal.troubles]
    if any(one.reserved_bytes or one.allocated_bytes for one in rehearsal.ranks):
        parts += [Text(), *_memory_tables(rehearsal)]
    sections = (helps_section(rehearsal.remedies), _collectives_section(rehearsal), _step_section(rehearsal.step))
    for section in those_known(*sections, _invented_section(rehearsal.invented)):
        parts += [Text(), *section_view(section, most=_MOST_ROWS)]
    if rehearsal.notes:
        parts += [Text(), Text("Notes", style="bold"), *(bullet(Text(note)) for note in rehearsal.notes)]
    if rehearsal.printed:
        of = "The script printed last"
        parts += [Text(), Text(of, style="bold"), *(_one_line(line) for line in rehearsal.printed)]
    parts += [Text(), *(Text(line) for line in _ending(rehearsal))]
    return Group(*parts)


def _title(text: str) -> Text:
    return Text(text, style="bold")


def _one_line(text: str) -> Text:
    """A line of whatever length, folded nowhere."""
    return Text(f"  {printable(text)}", no_wrap=True, overflow="ellipsis")


def _trouble(trouble: Trouble, *, is_told: bool) -> RenderableType:
    lines: list[RenderableType] = [] if is_told else [Text(), Text(trouble.text)]
    for side in trouble.sides:
        # Where a side's text is a sentence with its ranks, it needs no name.
        text = side.text if side.text.startswith("rank") else f"rank {side.rank}{f': {side.text}' if side.text else ''}"
        if len(side.lines) > 1 or (side.text and side.text not in trouble.text):
            lines.append(Padding(Text(text), (0, 0, 0, 2), expand=False))
        if len(side.lines) > 1:
            lines += [Text(f"      {'by' if number else 'at'} {line}") for number, line in enumerate(side.lines[:3])]
    lines += [Padding(bullet(Text(sentence)), (0, 0, 0, 2), expand=False) for sentence in trouble.help]
    return Group(*lines)


def _memory_tables(rehearsal: Rehearsal) -> Iterator[RenderableType]:
    rows = _alike(rehearsal.ranks)
    shown = sorted(rows, key=lambda row: -row[0].reserved_bytes)[:_MOST_ROWS]
    shown.sort(key=lambda row: row[0].rank)
    purposes = [name for name in PURPOSES if any(row[0].parts_bytes.get(name, 0) >= _GIB / 2000 for row in shown)]
    size, unit = (2**20, "MiB") if rehearsal.peak_bytes < _GIB else (_GIB, "GiB")
    room = format_bytes(min(one.room_bytes for one in rehearsal.ranks))
    capacity = format_bytes(rehearsal.memory_bytes)
    placed = any(_common_place(row) for row in shown)
    # Side by side both would be wider than a page.
    apart = placed and len(purposes) > _MOST_PURPOSES
    yield _title(f"Memory at the peak [{unit}]; a device has {capacity}, {room} to allocate")
    table = frame_table()
    add_words(table, "rank", no_wrap=True)
    add_figures(table, "like it")
    add_words(table, *(("place",) if placed else ()))
    add_figures(table, *(() if apart else (PURPOSES[name] for name in purposes)), "alloc", "reserved")
    for ranks in shown:
        table.add_row(
            _some(ranks),
            f"{sum(one.stands_for for one in ranks):,}",
            *((Text(_common_place(ranks)),) if placed else ()),
            *(() if apart else _parts(ranks[0], purposes, size)),
            _amount(ranks[0].allocated_bytes, size),
            _amount(ranks[0].reserved_bytes, size),
        )
    yield table
    if apart:
        yield Text()
        table = frame_table()
        add_words(table, "rank", no_wrap=True)
        add_figures(table, *(PURPOSES[name] for name in purposes))
        for ranks in shown:
            table.add_row(_some(ranks), *_parts(ranks[0], purposes, size))
        yield table
    left = len(rows) - len(shown)
    legend = ", ".join(f"{PURPOSES[name]}: {name}" for name in purposes if PURPOSES[name] != name)
    legend += f"{'; ' if legend else ''}like it: ranks that are taken to be the same; alloc: of tensors; "
    legend += "reserved: by the allocator"
    yield Text(legend + (f"; {format_count(left, 'row')} with less: --json" if left else ""), style="dim")


def _parts(rank: RehearsedRank, purposes: Sequence[str], size: int) -> Iterator[str]:
    """Memory of a rank by purpose."""
    return (_amount(rank.parts_bytes.get(name, 0), size) for name in purposes)


def _help_row(one: MemoryHelp) -> tuple[str, ...]:
    """A remedy in a table: what to do, what it saves, what is reserved then, the step then, whether it fits then."""
    step = "–" if one.step_time_s is None else format_seconds(one.step_time_s)
    fits = "yes" if one.fits else "no: host" if one.refused else "no"
    return one.action or one.name, format_bytes(one.saves_bytes), format_bytes(one.reserved_bytes), step, fits


def _alike(ranks: Sequence[RehearsedRank]) -> list[list[RehearsedRank]]:
    """Ranks with the same figures together."""
    found: dict[object, list[RehearsedRank]] = {}
    for one in ranks:
        key = (one.allocated_bytes, one.reserved_bytes, tuple(sorted(one.parts_bytes.items())))
        found.setdefault(key, []).append(one)
    return list(found.values())


def _common_place(ranks: Sequence[RehearsedRank]) -> str:
    """What the places of ranks have in common, without the sizes of groups, such as "pp 3, tp 0"."""
    places = [one.place.split(", ") for one in ranks]
    common = [word for word in places[0] if all(word in place for place in places[1:])]
    return ", ".join(word.partition(" of ")[0] for word in common)


def _some(ranks: Sequence[RehearsedRank]) -> str:
    more = f" +{len(ranks) - 2}" if len(ranks) > 2 else ""
    return ", ".join(str(one.rank) for one in ranks[:2]) + more


def _amount(nbytes: int, size: int) -> str:
    value = nbytes / size
    return "–" if not nbytes else f"{value:.2f}" if value < 10 else f"{value:,.1f}"


def _ending(rehearsal: Rehearsal) -> Iterator[str]:
    ranks = len(rehearsal.ranks)
    host = max((one.host_bytes for one in rehearsal.ranks), default=0)
    used = f", {format_bytes(host)} at most in a process" if host else ""
    yield f"{ranks} of {format_count(rehearsal.world, 'rank')} rehearsed in {format_seconds(rehearsal.took_s)}{used}"
    before, trimaran, options = next_command(rehearsal).partition("trimaran rehearse ")
    if not trimaran:
        yield f"Next: {before}"
    elif not before:
        yield next_text(shlex.split(f"{trimaran}{options}"))
    else:
        yield f"Next: {before.rstrip(' ;:')}:"
        yield next_text(shlex.split(f"{trimaran}{options}")).replace("Next: ", "   ", 1)


def asked_again(rehearsal: Rehearsal, *more: str) -> str:
    """The command of a rehearsal, for a shell.

    Args:
        rehearsal: of a script
        more: options, in the place of the same ones that were given
    """
    words = ["trimaran", "rehearse", "--world", str(rehearsal.world), "--cluster", rehearsal.cluster]
    for name, value in zip(rehearsal.options[::2], rehearsal.options[1::2], strict=True):
        words += () if name in more else (name, value)
    script = rehearsal.script if rehearsal.script[:1] == ["-m"] else ["--", *rehearsal.script]
    return shlex.join([*words, *more, *script])


def next_command(rehearsal: Rehearsal) -> str:
    """What to do after a rehearsal, as a command or in words."""
    if rehearsal.remedies:
        helps = [one for one in rehearsal.remedies if one.fits]
        what = helps[0].action.rstrip(".") if helps else "no remedy is enough alone: take several"
        return f"{what}; then {asked_again(rehearsal)}"
    grows = rehearsal.verdict == "out of memory" and any(one.help for one in rehearsal.troubles[:1])
    if rehearsal.verdict in ("disagree", "hang") or grows:
        return f"repair the lines above, then {asked_again(rehearsal)}"
    tight = any(one.reserved_bytes > _TIGHT * one.room_bytes for one in rehearsal.ranks)
    if rehearsal.verdict in ("out of memory", "not sure") and tight:
        return asked_again(rehearsal, "--alloc-conf", "expandable_segments:True")
    if rehearsal.verdict == "failed":
        rank = rehearsal.troubles[0].sides[0].rank if rehearsal.troubles and rehearsal.troubles[0].sides else 0
        return asked_again(rehearsal, "--ranks", str(rank), "--logs", "logs")
    if rehearsal.verdict == "not trained":
        return f"give the arguments with which the script trains: {asked_again(rehearsal)} …"
    return asked_again(rehearsal, "--trace", "trace.json")
