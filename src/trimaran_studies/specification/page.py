"""All requirements, judged, and the page that says so."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.markup import escape
from rich.table import Table

from trimaran.base.errors import InputError
from trimaran.base.progress import Progress, ignore_progress
from trimaran.report.tables import frame_table
from trimaran_studies.specification.hybrid_parallelism import HYBRID_PARALLELISM
from trimaran_studies.specification.memory_virtualization import MEMORY_VIRTUALIZATION
from trimaran_studies.specification.multi_gpu_profile import MULTI_GPU_PROFILE
from trimaran_studies.specification.parallel_training import PARALLEL_TRAINING
from trimaran_studies.specification.requirements import Check, Found, Recorded, Requirement, Study, Verdict

STUDIES: tuple[Study, ...] = (PARALLEL_TRAINING, MULTI_GPU_PROFILE, HYBRID_PARALLELISM, MEMORY_VIRTUALIZATION)
"""The four studies, in order."""

COMMAND = "python -m trimaran_studies reproduce specification --write docs/specification.md"
"""Writes the page."""


def requirements() -> tuple[Requirement, ...]:
    """All, in order."""
    return tuple(requirement for study in STUDIES for requirement in study.requirements)


def judge(
    recorded: Recorded, *, rows: Sequence[str] | None = None, progress: Progress = ignore_progress
) -> tuple[Found, ...]:
    """Judge requirements, in order.

    Args:
        recorded: measurements that were kept
        rows: ids; None: all
        progress: called with the current one

    Raises:
        InputError: an unknown id, or a measurement is missing
    """
    known = {requirement.id: requirement for requirement in requirements()}
    asked = tuple(known) if rows is None else tuple(dict.fromkeys(row.strip().upper() for row in rows))
    for row in asked:
        if row not in known:
            raise InputError(
                f'no requirement is called "{row}"; there are {_ranges()}', code="specification.unknown-row", row=row
            )
    found = []
    for place, row in enumerate(asked):
        progress(f"{row}: {known[row].must}", place, len(asked))
        found.append(Found(requirement=known[row], checks=tuple(known[row].find(recorded))))
    return tuple(found)


def _ranges() -> str:
    return ", ".join(f"{study.requirements[0].id} to {study.requirements[-1].id}" for study in STUDIES)


class Line(NamedTuple):
    """One check as a line of a table.

    Attributes:
        row: id; empty below the first check of a requirement
        must: what the requirement asks for, with its command; empty likewise
        figure: what was found
        bound: that it is held against
        verdict: with the reason and, of a measured figure, date and machine
    """

    row: str
    must: str
    figure: str
    bound: str
    verdict: str

    @property
    def markdown(self) -> str:
        """As a line of a table of the page."""
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in self)} |"


def lines_of(found: Found) -> list[Line]:
    """A requirement as lines of a table, one for each check."""
    requirement = found.requirement
    return [
        Line(
            row=requirement.id if place == 0 else "",
            must=f"{requirement.must}: `{requirement.command}`" if place == 0 else "",
            figure=check.figure,
            bound=check.bound or "–",
            verdict=_said(check),
        )
        for place, check in enumerate(found.checks)
    ]


def verdict_line(found: Iterable[Found]) -> str:
    """How many requirements have which verdict.

    Args:
        found: some requirements
    """
    counts = Counter(str(each.verdict) for each in found)
    said = ", ".join(f"{number} {verdict}" for verdict, number in counts.most_common())
    return f"Of {counts.total()} requirements of four studies: {said}."


def lines_table(found: Iterable[Found]) -> Table:
    """Requirements for people, a line for each check."""
    table = frame_table()
    table.add_column("id", no_wrap=True)
    for title in ("figure", "bound", "verdict"):
        table.add_column(title)
    for each in found:
        for line in lines_of(each):
            table.add_row(line.row, *(escape(cell.replace("**", "")) for cell in line[2:]))
    return table


_OPEN = (Verdict.KNOWN, Verdict.NOT_REPRODUCED, Verdict.MISSED)


def _said(check: Check) -> str:
    verdict = f"**{check.verdict}**" if check.verdict in _OPEN else str(check.verdict)
    reason = f": {check.reason}" if check.reason else ""
    measured = f"; measured {check.measured}" if check.measured else ""
    return f"{verdict}{reason}{measured}"


_HEAD = """# What four studies ask for, and what Trimaran shows

Written by `{command}`.
A figure is computed when the page is written (predictions, counts, formulas), or read from
[benchmarks/results](../benchmarks/results), where a measured figure has its date and machine. `--rows A8,C1` prints
some rows; a test compares the page with what the command finds. A row has the worst verdict of its checks, as far as
they can be judged without a GPU. *Met as far as known*: what can be known holds its bound, and the rest lies in the
interval that the row gives. *Not reproduced*: an experiment shows why, and the bound stays. *Missed*: neither.

| study | {verdicts} |
|---|{rule}|
{counts}

{missed}
"""


def write_page(found: Sequence[Found]) -> str:
    """The page, as Markdown.

    Args:
        found: all requirements
    """
    by_id = {each.requirement.id: each for each in found}
    of_studies = [(study, [by_id[one.id] for one in study.requirements]) for study in STUDIES]
    counts = "\n".join(_count(study, rows) for study, rows in of_studies)
    open_rows = {verdict: [each.requirement.id for each in found if each.verdict is verdict] for verdict in _OPEN}
    said = "; ".join(f"{verdict}: {', '.join(rows)}" for verdict, rows in open_rows.items() if rows)
    head = _HEAD.format(
        command=COMMAND,
        counts=counts,
        verdicts=" | ".join(Verdict),
        rule="|".join("---" for _ in Verdict),
        missed=f"{said[:1].upper()}{said[1:]}; each with its reason below." if said else "All that is judged is met.",
    )
    return "\n".join([head, *(_part(study, rows) for study, rows in of_studies)])


def _count(study: Study, rows: Iterable[Found]) -> str:
    verdicts = Counter(each.verdict for each in rows)
    figures = " | ".join(str(verdicts[verdict]) for verdict in Verdict)
    return f"| {study.letter}. {study.title} | {figures} |"


def _part(study: Study, rows: Iterable[Found]) -> str:
    lines = [line.markdown for each in rows for line in lines_of(each)]
    head = "| id | it must, and the command | figure | bound | verdict |\n|---|---|---|---|---|"
    return f"## {study.letter}. {study.title}\n\n{study.citation}.\n\n{head}\n" + "\n".join(lines) + "\n"
