"""Calibrate this machine: measure the costs and the noise that all its plans use, and keep them.

    devices, links         measured anew                     ──▶ cache of costs   ┐
    jobs that are named    measured anew, as for `plan`      ──▶ cache of costs   ├──▶ calibration ──▶ kept here, a file
    noise                  fresh runs that are alike                              ┘

A plan takes the figures of a calibration that it is given before those of the cache. Of the one that is kept here,
later commands take the noise; its costs they find in the cache.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from trimaran.base.errors import EnvironmentProblem, InputError
from trimaran.base.files import check_writable, write_whole
from trimaran.base.progress import Progress, ignore_progress
from trimaran.jobs.resolve import JobSource
from trimaran.machine.types import Link
from trimaran.measure.calibration.calibrate import REPEATS, STEPS, measure_noise
from trimaran.measure.calibration.results import Calibration, encode_calibration, keep_calibration, link_figures
from trimaran.measure.others import await_idle_cores
from trimaran.planning.requests import PlanRequest
from trimaran.pricing.tables import CostTable, merge

_LOG = logging.getLogger(__name__)


def calibrate(
    *,
    jobs: Sequence[JobSource] = (),
    devices: int | None = None,
    links: Sequence[Link] = (),
    repeats: int = REPEATS,
    steps: int = STEPS,
    output: Path | None = None,
    progress: Progress = ignore_progress,
) -> Calibration:
    """Measure this machine, keep the figures, and write them where that is asked for.

    Args:
        jobs: jobs whose costs are measured too, also where they are kept already
        devices: how many; None: all of this machine
        links: rate limits of the links between local ranks under which transfers are measured too, one after the other
        repeats: fresh runs that show the noise, at least two
        steps: of each of these runs that count
        output: file that gets the calibration; None: it is only kept here
        progress: told what is being done

    Raises:
        InputError: a job is wrong, there are fewer devices than that, or too few runs
        EnvironmentProblem: the file or the cache cannot be written, or links cannot be rate-limited here
        ExecutionError: a rank failed
    """
    from trimaran.measure.calibration.calibrate import measure_links, measure_machine
    from trimaran.planning.preparation import local_cluster

    _check(jobs, repeats, output)
    ranks = local_cluster(PlanRequest(devices=devices)).size
    if links and ranks < 2:
        raise InputError("one device has no link to another: leave --link out, or calibrate two devices", ranks=ranks)
    await_idle_cores(progress)
    measured, machine = measure_machine(ranks=ranks, progress=progress)
    tables = [machine, *(measure_links(link, ranks=ranks, progress=progress) for link in links)]
    _store(tables, strict=output is None)
    # Before the noise, which takes longest: a job that is wrong is found out early.
    tables[0] = merge([*_job_tables(jobs, ranks, progress), machine])
    noise = measure_noise(ranks=ranks, repeats=repeats, steps=steps, date=_now()[:10], progress=progress)
    calibration = Calibration(
        fingerprint=machine.fingerprint,
        date=_now(),
        devices=(measured,),
        links=link_figures(tables),
        noise=noise,
        tables=tuple(tables),
    )
    _keep(calibration, output)
    return calibration


def _check(jobs: Sequence[JobSource], repeats: int, output: Path | None) -> None:
    """Find out before the measuring what would fail after it."""
    if repeats < 2:
        raise InputError(
            f"repeat-run noise shows between runs, at least 2 are needed: --repeats {repeats}",
            repeats=repeats,
        )
    for source in jobs:
        source.make()
    if output is not None:
        check_writable(output)


def _job_tables(jobs: Iterable[JobSource], ranks: int, progress: Progress) -> Iterator[CostTable]:
    """Costs that plans for the jobs use, measured anew: what is kept may be of a slower or busier machine."""
    from trimaran.measure.costs import forget, job_digest
    from trimaran.planning.measured import Measured

    for source in jobs:
        backend = Measured(source, PlanRequest(devices=ranks), progress)
        try:
            forget(source.make, backend.prepared.graph, ranks=ranks)
        except EnvironmentProblem as error:
            _LOG.warning("%s", error.message)
        planned = backend.plan().simulated
        table, graph = planned.table, planned.graph
        # A table of one job has its update and load under the digest of the graph; measuring looks for that of the job.
        yield replace(table, steps={job_digest(source.make, graph): table.steps[graph.digest]})


def _store(tables: Iterable[CostTable], *, strict: bool) -> None:
    from trimaran.measure.cache import store

    try:
        for table in tables:
            store(table)
    except EnvironmentProblem as error:
        if strict:
            raise
        _LOG.warning("%s", error.message)


def _keep(calibration: Calibration, output: Path | None) -> None:
    if output is None:
        keep_calibration(calibration)
        return
    write_whole(output, encode_calibration(calibration))
    try:
        keep_calibration(calibration)
    except EnvironmentProblem as error:
        _LOG.warning("%s", error.message)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
