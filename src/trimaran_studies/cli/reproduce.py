"""`python -m trimaran_studies reproduce`: reproduces published results and shows the published figures next to them."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from trimaran.base.units import format_count
from trimaran.cli.options import Json, option
from trimaran.cli.output import check_plot, console, errors_reported, print_json, progress_shown

if TYPE_CHECKING:
    from rich.table import Table

# ---------------------------------------------------------------------------------------------------------------------
# Options of `python -m trimaran_studies reproduce`, and the reproductions that take each


DEVICE, RANKS, STEPS = "titan-x", 2, 18

# Options that only some reproductions take.
_TAKEN_BY = {
    "--device": ("vdnn",),
    "--devices": ("dgx1 --real",),
    "--steps": ("dgx1 --real", "feeding --real"),
    "--plot": ("feeding",),
    "--rows": ("specification",),
    "--write": ("specification", "survey"),
    "--networks": (
        "vdnn",
        "vdnn --real",
        "dgx1",
        "dgx1 --real",
        "hybrid",
        "hybrid --real",
        "feeding",
        "feeding --real",
    ),
}


class Paper(StrEnum):
    """A paper that can be reproduced, or what is said of all of them."""

    VDNN = "vdnn"
    DGX1 = "dgx1"
    HYBRID = "hybrid"
    FEEDING = "feeding"
    SPECIFICATION = "specification"
    SURVEY = "survey"


Which = Annotated[
    Paper,
    typer.Argument(
        help="vdnn: Rhu et al., MICRO 2016. dgx1: data parallelism on a DGX-1, Mojumder et al., IISWC 2018. "
        "hybrid: data and model parallelism together, Pal et al., IEEE Micro 2019. "
        "feeding: split, pre-load, compress, Xu et al., ICCAD 2021. "
        "specification: what these four ask for, requirement by requirement, with figures and verdicts. "
        "survey: published remedies, and what our models say that each is worth on two jobs."
    ),
]
DeviceName = Annotated[
    str | None,
    option('vdnn: simulated device of the catalog, such as "titan-x".', usual=DEVICE),
]
Networks = Annotated[
    str | None,
    option('Some of its networks, such as "alexnet,vgg16:256".  [default: all, with its batches]'),
]
Real = Annotated[bool, option("Run the networks on this machine instead; without a GPU, small ones.", "--real")]

Plot = Annotated[Path | None, option("feeding: write a drawing to this SVG file.")]
Rows = Annotated[
    str | None,
    option('specification: some of its rows, such as "A8,C1".  [default: all]'),
]
Write = Annotated[
    Path | None,
    option("specification and survey: write the page to this file."),
]
RealDevices = Annotated[
    int | None,
    option("dgx1 --real: number of processes, each on its GPU where there are enough.", usual=str(RANKS)),
]
RealSteps = Annotated[
    int | None,
    option("dgx1 and feeding --real: minimum number of timed steps of each case.", usual=str(STEPS)),
]


def check_options(which: str, given: Mapping[str, object]) -> None:
    """Reject options that a reproduction does not take.

    Args:
        which: the reproduction, such as "dgx1 --real"
        given: options and their values; None: not given

    Raises:
        InputError: an option is for other reproductions
    """
    from trimaran.base.errors import InputError

    for spelled, value in given.items():
        if value is not None and which not in _TAKEN_BY[spelled]:
            takes = " and ".join(f'"reproduce {name}"' for name in _TAKEN_BY[spelled])
            raise InputError(
                f'"reproduce {which}" does not take {spelled} (an option of {takes}): leave it out', option=spelled
            )


def check_page(path: Path) -> None:
    """Refuse a page that could not be written, before the work for it.

    Raises:
        EnvironmentProblem: it cannot be written there
    """
    from trimaran.base.files import check_writable

    check_writable(path)


def raise_no_real(paper: str) -> None:
    """Refuse --real where there is nothing to run.

    Raises:
        InputError: always
    """
    from trimaran.base.errors import InputError

    raise InputError(f'"reproduce {paper}" has no --real: measured figures come from scripts/bench; leave it out')


def reproduce(
    paper: Which,
    device: DeviceName = None,
    networks: Networks = None,
    real: Real = False,
    devices: RealDevices = None,
    steps: RealSteps = None,
    plot: Plot = None,
    rows: Rows = None,
    write: Write = None,
    as_json: Json = False,
) -> None:
    """Run a paper's networks under its policies and ours, and show the published figures next to ours."""
    with errors_reported(as_json=as_json):
        given = {"--device": device, "--devices": devices, "--steps": steps, "--plot": plot}
        given |= {"--rows": rows, "--write": write, "--networks": networks}
        check_options(f"{paper} --real" if real else paper, given)
        check_plot(plot)
        if write is not None:
            check_page(write)
        if real and paper in (Paper.SPECIFICATION, Paper.SURVEY):
            raise_no_real(paper)
        if paper is Paper.SPECIFICATION:
            _specification(rows, write, as_json=as_json)
        elif paper is Paper.SURVEY:
            _survey(write, as_json=as_json)
        elif paper is Paper.FEEDING and real:
            _measure_feeding(networks, STEPS if steps is None else steps, as_json=as_json)
        elif paper is Paper.FEEDING:
            _feeding(networks, plot, as_json=as_json)
        elif paper is Paper.HYBRID:
            _hybrid(networks, real=real, as_json=as_json)
        elif paper is Paper.DGX1 and real:
            ranks = RANKS if devices is None else devices
            _measure_exchange(networks, ranks, STEPS if steps is None else steps, as_json=as_json)
        elif paper is Paper.DGX1:
            _exchange(networks, as_json=as_json)
        elif real:
            _run(networks, as_json=as_json)
        else:
            _simulate(DEVICE if device is None else device, networks, as_json=as_json)


def _show(
    document: dict[str, Any],
    head: str,
    tables: Iterable["Table"],
    lines: Iterable[str] = (),
    legend: Iterable[str] = (),
    *,
    as_json: bool,
) -> None:
    """Print a reproduction: its document for programs, or for people what it is of, tables, sentences, and a legend."""
    if as_json:
        print_json(document)
        return
    out = console()
    out.print(f"{head}\n")
    for table in tables:
        out.print(table, "")
    said = [escape(line) for line in lines]
    out.print(*said, *([""] if said else ()), *(f"[dim]{escape(line)}[/]" for line in legend), sep="\n")


def _specification(rows: str | None, page: Path | None, *, as_json: bool) -> None:
    from trimaran.base.errors import InputError
    from trimaran.base.files import write_whole
    from trimaran_studies.specification.page import judge, lines_table, verdict_line, write_page
    from trimaran_studies.specification.requirements import Recorded, default_results, to_json

    if page is not None and rows is not None:
        raise InputError("a page has all rows: leave --rows out, or --write", code="specification.part-of-page")
    with progress_shown() as progress:
        recorded = Recorded(default_results())
        found = judge(recorded, rows=None if rows is None else rows.split(","), progress=progress)
    if page is not None:
        write_whole(page, write_page(found).encode())
    if as_json:
        print_json({"schema_version": 1, "rows": to_json(found)})
        return
    console().print(verdict_line(found), "", lines_table(found), sep="\n")


def _survey(page: Path | None, *, as_json: bool) -> None:
    from trimaran.base.files import write_whole
    from trimaran_studies.survey import survey, survey_document, survey_page, survey_table

    with progress_shown() as progress:
        found = survey(progress=progress)
    if page is not None:
        write_whole(page, survey_page(found).encode())
    if as_json:
        print_json({"schema_version": 1, **survey_document(found)})
        return
    out = console()
    out.print("What each published remedy is worth on two jobs, by our models.\n")
    out.print(survey_table(found))


def _simulate(device: str, networks: str | None, *, as_json: bool) -> None:
    from trimaran.report.tables import print_next
    from trimaran_studies.reproduce.vdnn import (
        SOURCE,
        accounting_lines,
        network_table,
        reproduce_vdnn,
        reproduction_document,
        verdict,
    )

    with progress_shown() as progress:
        found = reproduce_vdnn(device=device, networks=networks, progress=progress)
    if as_json:
        print_json(reproduction_document(found))
        return
    out = console()
    out.print(verdict(found), SOURCE, "", sep="\n", markup=False)
    for network in found.networks:
        out.print(network_table(network))
        for note in network.notes:
            out.print(f"[dim]{escape(note)}[/]")
        out.print()
    for line in accounting_lines(found):
        out.print(f"[dim]{escape(line)}[/]")
    last = found.networks[-1]
    words = ["trimaran", "memory", last.network, "--device", device, "--batch", str(last.batch)]
    print_next(out, words)


def _exchange(networks: str | None, *, as_json: bool) -> None:
    from trimaran_studies.reproduce.dgx1 import (
        exchange_document,
        ratio_lines,
        ratio_table,
        reproduce_dgx1,
        studied_table,
    )

    with progress_shown() as progress:
        found = reproduce_dgx1(networks=networks, progress=progress)
    legend = (
        "ms of a step; WU: time that gradients and weights add: exposed communication, update, calls, waits. "
        "Public: Apache's wiki, with the only batch that it states and networks in the form of MXNet's examples; the "
        "study's own figures are not public."
    )
    _show(
        exchange_document(found),
        f"[bold]Data parallelism on {escape(found.cluster)}[/], {escape(found.software)}, simulated",
        [*map(studied_table, found.networks), ratio_table(found.networks)],
        legend=[legend, *ratio_lines(found.networks)],
        as_json=as_json,
    )


def _hybrid(networks: str | None, *, real: bool, as_json: bool) -> None:
    from trimaran.base.errors import InputError
    from trimaran_studies.reproduce.hybrid import (
        hybrid_document,
        hybrid_lines,
        hybrid_table,
        legend_lines,
        reproduce_hybrid,
    )

    if real:
        raise InputError("the study of hybrids has no --real: it needs two V100 or more; leave it out")
    with progress_shown() as progress:
        found = reproduce_hybrid(networks=networks, progress=progress)
    _show(
        hybrid_document(found),
        f"[bold]Hybrid parallelism[/], workers of two devices on {escape(found.cluster)}",
        [hybrid_table(found)],
        hybrid_lines(found),
        legend_lines(found),
        as_json=as_json,
    )


def _feeding(networks: str | None, plot: Path | None, *, as_json: bool) -> None:
    from trimaran_studies.reproduce.input_pipeline import reproduce_feeding
    from trimaran_studies.reproduce.input_pipeline_report import (
        feeding_document,
        feeding_table,
        legend_lines,
        savings_table,
        verdict_lines,
    )

    with progress_shown() as progress:
        found = reproduce_feeding(networks=networks, progress=progress)
    if plot is not None:
        from trimaran.report.svg import write_drawing
        from trimaran_studies.reproduce.input_pipeline_report import plot as draw

        write_drawing(plot, draw(found))
    tables = [feeding_table(found, machine, batch) for machine in found.machines for batch in found.batches]
    _show(
        feeding_document(found),
        f"[bold]Input pipeline and gradient communication[/]: three remedies, {escape(found.software)}, simulated",
        [*tables, *(savings_table(found, machine) for machine in found.machines)],
        verdict_lines(found),
        legend_lines(found),
        as_json=as_json,
    )


def _measure_feeding(jobs: str | None, steps: int, *, as_json: bool) -> None:
    from trimaran_studies.reproduce.input_pipeline_real import tried_document, tried_lines, tried_tables, try_feeding

    with progress_shown() as progress:
        found = try_feeding(jobs=jobs, steps=steps, progress=progress)
    _show(
        tried_document(found),
        f"[bold]Input pipeline and gradient communication on this machine[/], {format_count(found.ranks, 'rank')}",
        tried_tables(found),
        legend=tried_lines(found),
        as_json=as_json,
    )


def _measure_exchange(networks: str | None, devices: int, steps: int, *, as_json: bool) -> None:
    from trimaran_studies.reproduce.dgx1_real import measure_dgx1, measured_document, measured_lines, measured_table

    with progress_shown() as progress:
        found = measure_dgx1(networks=networks, devices=devices, steps=steps, progress=progress)
    _show(
        measured_document(found),
        f"[bold]Data parallelism on this machine[/], {format_count(devices, 'device')}",
        map(measured_table, found),
        legend=measured_lines(found),
        as_json=as_json,
    )


def _run(networks: str | None, *, as_json: bool) -> None:
    from trimaran_studies.reproduce.vdnn_real import real_document, real_lines, real_table, run_vdnn

    with progress_shown() as progress:
        runs = run_vdnn(networks, progress=progress)
    _show(
        real_document(runs),
        "[bold]vDNN[/] on this machine",
        map(real_table, runs),
        legend=real_lines(),
        as_json=as_json,
    )
