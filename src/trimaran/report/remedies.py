"""How remedies look: one table for people, whoever found them."""

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from trimaran.base.html import DataTable
from trimaran.base.remedies import Actor, Method, Remedy
from trimaran.base.units import format_span
from trimaran.report.page.charts import ChartAxis, Interval, interval_chart
from trimaran.report.page.layout import Chart, Section, Words
from trimaran.report.page.terminal import section_view
from trimaran.report.tables import bullet


def remedies_view(
    remedies: Sequence[Remedy],
    *,
    not_worth: Sequence[Remedy] = (),
    title: str = "Remedies, by predicted gain",
    nothing: str = "No known remedy would save more than the simulation leaves out.",
    of_script: bool = False,
) -> RenderableType:
    """Remedies for people, readable at 80 columns: those that are worth it, and in a line each those that are not.

    Args:
        remedies: that are worth it, ranked
        not_worth: the others, ranked
        title: says by what the first are ranked
        nothing: what is said where there are none
        of_script: they are for a script that does not run by Trimaran, so that its options are changes of the script
    """
    lines: list[RenderableType] = [
        remedy_table(remedies, title=title, of_script=of_script) if remedies else Text(nothing)
    ]
    if not_worth:
        lines += [Text(), Text("Not worth it here", style="bold"), *map(_in_a_line, not_worth)]
    return Group(*lines)


def _in_a_line(remedy: Remedy) -> RenderableType:
    figures = [share_saved(share, 1) for share in (remedy.predicted_gain, *remedy.gain_interval)]
    longer = ", times as long" if any("×" in figure for figure in figures) else ""
    span = format_span(*figures[1:])
    interval = "" if (span, longer) == (figures[0], "") else f" ({span}{longer})"
    text = Text(f"{remedy.name}: {figures[0]}{interval}. ")
    text.append(remedy.basis, style="dim")
    return bullet(text)


def remedy_table(
    remedies: Sequence[Remedy], *, title: str = "Remedies, by predicted gain", of_script: bool = False
) -> RenderableType:
    """Remedies in the given order, each with what to do and how its gain was computed, readable at 80 columns.

    Args:
        remedies: ranked
        title: says by what
        of_script: as for `remedies_view`

    Returns:
        A table of names and gains, and below it a paragraph for each remedy.
    """
    table, *words = section_view(remedies_section(remedies, title=title, of_script=of_script))
    return Group(table, Text(), *words)


def remedies_section(
    remedies: Sequence[Remedy],
    *,
    title: str = "Remedies, by predicted gain",
    of_script: bool = False,
    nothing: str = "No known remedy would save more than the simulation leaves out.",
) -> Section:
    """Remedies in the given order: gains, what to do, and how they were computed.

    Args:
        remedies: ranked
        title: says by what
        of_script: as for `remedies_view`
        nothing: what is said where there are none
    """
    if not remedies:
        return Section(id="remedies", title=title, content=[Words(lines=[nothing])])
    svg = interval_chart(
        "Predicted gain of remedies",
        [
            Interval(
                name=remedy.name,
                at=100 * remedy.predicted_gain,
                ends=(100 * remedy.gain_interval[0], 100 * remedy.gain_interval[1]),
                label=share_saved(remedy.predicted_gain),
                says=remedy.action,
            )
            for remedy in remedies[:_MOST_DRAWN]
        ],
        ChartAxis(title="time saved [%]"),
    )
    table = DataTable(
        columns=("", "remedy", "limiter", "gain", "interval"),
        rows=[
            (
                str(number),
                remedy.name,
                remedy.limiter,
                share_saved(remedy.predicted_gain),
                format_span(*map(share_saved, remedy.gain_interval)),
            )
            for number, remedy in enumerate(remedies, 1)
        ],
        words=frozenset({1, 2}),
    )
    said = "limiter: what it shortens; gain: share of the time saved; interval: 90 %, or over low to high costs"
    how = Words(lines=[_how(number, remedy, of_script=of_script) for number, remedy in enumerate(remedies, 1)])
    return Section(
        id="remedies", title=title, content=[Chart(svg=svg, table=table, caption=said, is_open=True), how], is_wide=True
    )


def _how(number: int, remedy: Remedy, *, of_script: bool) -> str:
    where = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in remedy.at.items())
    on = f" With {where}." if where else ""
    return f"{number}. {remedy.action}{on} {grounds(remedy, of_script=of_script)}"


_MOST_DRAWN = 12


def grounds(remedy: Remedy, *, of_script: bool = False) -> str:
    """What the gain of a remedy is made of, what was assumed, who acts, and what it needs.

    Args:
        remedy: any
        of_script: as for `remedies_view`
    """
    assumed = f" Assumes: {remedy.assumption}" if remedy.assumption else ""
    actor: Actor = "script" if of_script and remedy.actor == "plan" else remedy.actor
    return f"{_METHODS[remedy.method]}{remedy.basis}{assumed} By {_ACTORS[actor]}; needs {remedy.needs}."


_METHODS: Mapping[Method, str] = {"re-simulated": "Simulated: ", "estimated": "", "rule": ""}
_ACTORS: Mapping[Actor, str] = {
    "plan": "an option of Trimaran",
    "script": "a change of the training script",
    "network": "a change of the network",
}


def share_saved(share: float, digits: int = 0) -> str:
    """A share of the time that is saved; where more than as much again is lost, how many times as long it takes."""
    return f"{1 - share:.3g}×" if share < -1 else f"{100 * share:z.{digits}f} %"
