"""Finds out what a path is, and makes the page of it."""

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimaran.base.errors import InputError
from trimaran.base.files import check_writable, entries, given, looked_at, write_whole
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.units import format_some
from trimaran.features.report_page.plan import page_of_plan
from trimaran.program.plan_file import Plan, read_plan, read_plan_document
from trimaran.report.page.layout import Page, render_page
from trimaran.report.page.run import page_of_report, page_of_run
from trimaran.report.page.studies import READERS as STUDIES
from trimaran.report.page.study import page_of_studies, study_of

ACCEPTED = (
    "the folder of a run (trimaran train), a plan file (trimaran plan --output), or what trimaran "
    f"{', '.join(one.command for one in STUDIES)} wrote with --json; or a folder of such documents"
)
_MOST_DOCUMENTS = 16
"""In a folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPage:
    """A report that was written.

    Attributes:
        path: of the file
        kind: of the input, in words
        verdict: its first sentence
        sections: titles of what it has
        absent: what it has not, and the command that gives it
        nbytes: of the file [bytes]
    """

    path: Path
    kind: str
    verdict: str
    sections: tuple[str, ...]
    absent: tuple[tuple[str, str], ...]
    nbytes: int

    def __str__(self) -> str:
        return f"{self.verdict}\n{self.path}"


def report(
    path: str | Path,
    output: str | Path = "report.html",
    *,
    simulate: bool = False,
    progress: Progress = ignore_progress,
) -> ReportPage:
    """Write a run, a plan or a study as one HTML file that needs no network.

    Args:
        path: folder of a run, plan file, JSON document of a study, or folder of such documents
        output: the HTML file
        simulate: run the job's code and measure here, to simulate a plan that is not for a target cluster
        progress: called with the current work

    Returns:
        What was written.

    Raises:
        InputError: the path is none of these, or a file of it is wrong; or `simulate` of what is no plan
        CorruptDataError: a file was damaged or edited
        EnvironmentProblem: the HTML file cannot be written
    """
    asked, written = Path(path), Path(output)
    if written.suffix.lower() not in (".html", ".htm"):
        raise InputError(
            f"{written}: a report is an HTML file: name it *.html", code="report.not-html", path=str(written)
        )
    check_writable(written)
    page = _page(asked, simulate, progress)
    text = render_page(page)
    write_whole(written, text.encode())
    return ReportPage(
        path=written,
        kind=page.kind,
        verdict=page.verdict,
        sections=tuple(section.title for section in page.sections),
        absent=tuple((one.title, one.how) for one in page.absent),
        nbytes=len(text.encode()),
    )


def _page(path: Path, simulate: bool, progress: Progress) -> Page:
    found = given(path)
    status = looked_at(found)
    plain = _document(path) if status is not None and stat.S_ISREG(status.st_mode) else None
    if plain is not None and _is_plan(plain):
        return page_of_plan(path, simulate=simulate, progress=progress)
    if simulate and status is not None:
        raise InputError(
            f"--simulate is for a plan file, and {path} is none: leave it out", code="report.no-plan", path=str(path)
        )
    if status is not None and stat.S_ISDIR(status.st_mode):
        if looked_at(found / "run.json"):
            return page_of_run(found, shown=str(path))
        return _page_of_folder(path)
    if status is None:
        raise InputError(f"there is no {path}; give {ACCEPTED}", code="report.missing", path=str(path))
    plain = _document(path) if plain is None else plain
    if _is_run_report(plain):
        return page_of_report(path)
    return page_of_studies([(path, plain)], accepted=ACCEPTED)


def _document(path: Path) -> dict[str, Any]:
    return read_plan_document(given(path), source=str(path))


def _is_plan(plain: dict[str, Any]) -> bool:
    return {"job", "strategy", "premises"} <= {*plain}


def _is_run_report(plain: dict[str, Any]) -> bool:
    return {"run_dir", "predicted", "environment", "plan"} <= {*plain}


def _page_of_folder(path: Path) -> Page:
    """A page of all documents in a folder that are known; plans next to them are points of their curves.

    Raises:
        InputError: there is none
    """
    documents: list[tuple[Path, dict[str, Any]]] = []
    plans: list[Plan] = []
    there = entries(given(path))
    alone = []
    for file in [one for one in there if one.suffix == ".json"][: 8 * _MOST_DOCUMENTS]:
        plain = _document(path / file.name)
        if _is_plan(plain) and len(plans) < _MOST_DOCUMENTS:
            plans.append(read_plan(given(path / file.name)))
            alone.append(path / file.name)
        elif study_of(plain) is not None and len(documents) < _MOST_DOCUMENTS:
            documents.append((path / file.name, plain))
    if not documents:
        alone[:0] = [path / one.name for one in there if looked_at(one / "run.json")]
        near = f", but {format_some(alone)}: give one of them, such as {alone[0]}" if alone else f"; give {ACCEPTED}"
        raise InputError(
            f"{path} is no run and has no document of a study{near}",
            code="report.nothing-here",
            path=str(path),
        )
    return page_of_studies(documents, accepted=ACCEPTED, plans=plans)
