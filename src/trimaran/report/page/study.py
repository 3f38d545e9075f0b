"""The page of documents that commands wrote with `--json`, each recognised by its contents."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trimaran.base import VERSION
from trimaran.base.decoding import decode_typed
from trimaran.base.errors import InputError
from trimaran.base.files import given, read_bytes
from trimaran.program.plan_file import Plan
from trimaran.report.page.charts import chart_file
from trimaran.report.page.layout import Chart, Page, Section, Words
from trimaran.report.page.steps import commands_section
from trimaran.report.page.studies import READERS as STUDIES
from trimaran.report.page.studies import StudyReader


def study_of(plain: dict[str, Any]) -> StudyReader | None:
    """Which study a document is of; None: of none that is known.

    Args:
        plain: its content
    """
    return next((one for one in STUDIES if one.keys <= {*plain}), None)


def page_of_studies(
    documents: Sequence[tuple[Path, dict[str, Any]]], *, accepted: str, plans: Sequence[Plan] = ()
) -> Page:
    """One page of one or several documents.

    Args:
        documents: path and content of each
        accepted: what is accepted, for the message
        plans: that were given next to them; those for the job of a scaling study are points of its curve

    Raises:
        InputError: a document is of no known study, is the error of a command, or lacks something
    """
    found = [_read(path, plain, accepted, plans) for path, plain in documents]
    first = found[0]
    sections: list[Section] = []
    several = len(found) > 1
    for number, one in enumerate(found):
        if several:
            head = Section(id=f"study-{number}", title=f"{one.kind}: {one.title}", content=[Words(lines=[one.verdict])])
            sections.append(head)
        sections += [replace(section, id=f"{section.id}-{number}") if several else section for section in one.sections]
    environment = {name: value for one in reversed(found) for name, value in one.environment.items() if value}
    commands = [("A document like this one", one.command) for one in found if one.command]
    commands.append(("This report", f"trimaran report {' '.join(dict.fromkeys(str(path) for path, _ in documents))}"))
    sections.append(commands_section(environment, commands))
    return Page(
        title=first.title if not several else ", ".join(dict.fromkeys(one.title for one in found)),
        kind=first.kind if not several else "Study",
        verdict=first.verdict,
        facts=first.facts,
        sections=sections,
        absent=[absent for one in found for absent in one.absent],
        notes=[note for one in found for note in one.notes],
        sources=[path.name for path, _ in documents],
        version=VERSION,
    )


DRAWN = frozenset({"scaling", "parts", "crossover", "training", "need"})
"""Sections whose charts are drawn into a file."""


def drawing_of(answer: object) -> str:
    """The charts of a study as the text of an SVG file: those of its page.

    Args:
        answer: of a study that has a page
    """
    reader = next(one for one in STUDIES if isinstance(answer, one.content))
    page = reader.page(answer, (), "")
    charts = [
        part.svg
        for section in page.sections
        if section.id.partition("-")[0] in DRAWN
        for part in section.content
        if isinstance(part, Chart)
    ]
    return chart_file(page.title, page.verdict, charts)


def _read(path: Path, plain: dict[str, Any], accepted: str, plans: Sequence[Plan]) -> Page:
    error = plain.get("error")
    if isinstance(error, dict) and "message" in error:
        raise InputError(
            f"{path} holds the error of a command, not a result: {error['message']}",
            code="report.error-document",
            path=str(path),
        )
    reader = study_of(plain)
    if reader is None:
        raise InputError(
            f"{path} is nothing that a report is made of; give {accepted}",
            code="report.unknown-document",
            path=str(path),
        )
    content, now = read_bytes(given(path)), _respelled(plain)
    if now != plain:
        content = json.dumps(now).encode()
    asked = plain.get("command")
    answer = decode_typed(content, reader.content, source=str(path))
    return reader.page(answer, plans, asked if isinstance(asked, str) else "")


_EARLIER = {"step_s": "step_time_s", "step_interval_s": "interval_s"}
"""Names that figures of answers had before."""


def _respelled(part: Any) -> Any:
    """A document, or a part of it, with the names and kinds that its figures have now."""
    if isinstance(part, list):
        return [_respelled(one) for one in part]
    if not isinstance(part, dict):
        return part
    found = {_EARLIER.get(name, name): _respelled(value) for name, value in part.items()}
    if "predicted_gain" in found and "at" not in found:
        found["at"] = {name: found[name] for name in ("devices", "local_batch_size", "sync") if name in found}
    peaks = found.get("peak_bytes")
    if isinstance(peaks, list):
        found["peak_bytes_by_rank"] = peaks
        found["peak_bytes"] = max((each for each in peaks if isinstance(each, int)), default=0)
    return found
