"""The costs of a job on this machine: known ones from the cache, the others measured now.

    cache ──▶ what is missing? ──nothing──▶ table
                    │
                    └──▶ start the ranks, measure, merge ──▶ cache ──▶ table

Measuring runs on as many processes at once as the plan may use, because processes share cores, caches and memory.
"""

import hashlib
import logging
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trimaran.base import VERSION
from trimaran.base.errors import EnvironmentProblem, ExecutionError, InputError
from trimaran.base.files import read_bytes
from trimaran.base.job import Job
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.units import format_bit_rate, format_count, format_seconds
from trimaran.emulation.links import launch_on
from trimaran.graph.types import Graph
from trimaran.jobs.resolve import JobSource
from trimaran.launch.supervise import Event
from trimaran.launch.world import choose_device
from trimaran.machine.detect import detect_gpus, detect_processor
from trimaran.machine.types import Link
from trimaran.measure.cache import change_kept, load_cached, store
from trimaran.measure.findings import Findings, assemble
from trimaran.measure.others import await_idle_cores
from trimaran.measure.wanted import Wanted, find_missing
from trimaran.pricing.tables import CostTable, Fingerprint, merge
from trimaran.program.gradients import Compression
from trimaran.program.strategy import Execution

_LOG = logging.getLogger(__name__)


def measure_costs(
    make_job: Callable[[], Job],
    graph: Graph,
    *,
    ranks: int,
    batches: Iterable[int],
    executions: Sequence[Execution] = ("eager",),
    link: Link | None = None,
    known: Sequence[CostTable] = (),
    reduces: bool = False,
    gathers: bool = False,
    compressions: Sequence[Compression] = (),
    samples: bool = False,
    progress: Progress = ignore_progress,
) -> CostTable:
    """The costs of a job on this machine.

    Args:
        make_job: makes the job; can be sent to another process, as the `make` of a `JobSource` can
        graph: the job's, captured
        ranks: processes that are busy at the same time
        batches: sizes of microbatches that plans may have [samples]
        executions: "eager", "compiled"
        link: rate limit of the links between the ranks; None: there is none
        known: tables of a calibration; where one is for these ranks or links, it goes before the cache
        reduces: plans may reduce gradients to their owners
        gathers: plans may shard parameters
        compressions: ways in which plans may send gradients
        samples: plans may choose the input pipeline
        progress: told what is measured, and how many of how many rounds are done

    Returns:
        A table of what concerns this job. The same cache gives the same table.

    Raises:
        InputError: no batch size, or a rank cannot make the job
        ExecutionError: a rank failed
    """
    sizes = tuple(sorted(set(batches)))
    if not sizes or sizes[0] < 1 or ranks < 1:
        raise InputError(
            f"measuring needs batch sizes and ranks of at least 1, got batches {sizes} and {ranks} ranks",
            code="measure.bad-sizes",
        )
    key = job_digest(make_job, graph)
    table = _known(ranks, link, known)
    wanted = find_missing(
        table,
        graph,
        job=key,
        ranks=ranks,
        batches=sizes,
        executions=executions,
        reduces=reduces,
        gathers=gathers,
        compressions=compressions,
        samples=samples,
    )
    if not wanted.nothing:
        await_idle_cores(progress)
        found = _measure(make_job, graph, wanted, ranks, link, progress)
        new = assemble(found, table.steps.get(key), graph, job=key, fingerprint=table.fingerprint)
        _keep(new)
        _check_ran(found)
        table = merge([table, new])
    return select(table, graph, job=key)


def _known(ranks: int, link: Link | None, given: Sequence[CostTable]) -> CostTable:
    """Known costs of compute on this machine, and of these links; given tables go before the cache."""

    def look_up(fingerprint: Fingerprint) -> CostTable:
        return merge([load_cached(fingerprint), *(table for table in given if table.fingerprint == fingerprint)])

    table = look_up(fingerprint_here(ranks))
    if link is None:
        return table
    wires = look_up(fingerprint_here(ranks, link))
    return replace(table, fingerprint=wires.fingerprint, curves=wires.curves, interference=wires.interference)


def fingerprint_here(ranks: int, link: Link | None = None) -> Fingerprint:
    """Where and how costs are measured on this machine, with this number of ranks and these links."""
    processor = detect_processor()
    on_gpu = choose_device("auto", local_size=ranks) != "cpu"
    return Fingerprint(
        device=detect_gpus()[0].title if on_gpu else processor.name,
        kind="cuda" if on_gpu else "cpu",
        torch=version("torch"),
        threads=1,
        ranks=ranks,
        cores=processor.cores,
        link="" if link is None else name_link(link),
    )


def name_link(link: Link) -> str:
    """A link by its figures, under which costs are kept.

    Example:
        >>> name_link(Link(bytes_per_s=125e6, latency_s=0.0, source="example"))
        '1 Gb/s'
    """
    rate = format_bit_rate(link.bytes_per_s)
    return f"{rate}, {format_seconds(link.latency_s)}" if link.latency_s else rate


def job_digest(make_job: Callable[[], Job], graph: Graph) -> str:
    """Digest of what a job's update, loading and loss depend on: its graph, its reference and the content of its file.

    They are kept by numbers of samples, and no epochs, seed or target change them: a plan, and whatever is asked of its
    file, have one measurement. What the file imports is not looked at.

    Raises:
        InputError: the function that makes the job cannot be sent to another process
    """
    source = getattr(make_job, "__self__", None)
    if isinstance(source, JobSource):
        make_job = JobSource(reference=source.reference, precision=source.precision).make
    try:
        parts = [graph.digest.encode(), pickle.dumps(make_job)]
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"{make_job!r} must be sent to the processes that measure, and cannot be: {error}. Use a function at the "
            "top level of a module, or the method of a plain value",
            code="measure.cannot-send",
        ) from error
    reference = str(getattr(source, "reference", ""))
    path = Path(reference.rpartition(":")[0])
    parts.append(read_bytes(path) if path.is_file() else VERSION.encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def select(table: CostTable, graph: Graph, *, job: str) -> CostTable:
    """The part of a table for one job, with its step under the digest of the graph.

    Args:
        table: everything that is known
        graph: the job's
        job: digest of the job
    """
    own = _chosen(table, graph, job, are_own=True)
    return replace(own, steps={graph.digest: own.steps[job]} if job in own.steps else {})


def _chosen(table: CostTable, graph: Graph, job: str, *, are_own: bool) -> CostTable:
    """What a table has of a job, or all but that."""
    contents = {op.content for op in graph.ops}
    return replace(
        table,
        operations={key: held for key, held in table.operations.items() if (key.content in contents) == are_own},
        wholes={key: held for key, held in table.wholes.items() if (key.graph == graph.digest) == are_own},
        steps={key: costs for key, costs in table.steps.items() if (key == job) == are_own},
    )


def forget(make_job: Callable[[], Job], graph: Graph, *, ranks: int) -> None:
    """Forget what is kept of a job on this machine, so that it is measured anew.

    Args:
        make_job: makes the job, as for `measure_costs`
        graph: the job's, captured
        ranks: processes that are busy at the same time

    Raises:
        EnvironmentProblem: the cache cannot be written
    """
    job = job_digest(make_job, graph)
    change_kept(fingerprint_here(ranks), lambda table: _chosen(table, graph, job, are_own=False))


def _measure(
    make_job: Callable[[], Job], graph: Graph, wanted: Wanted, ranks: int, link: Link | None, progress: Progress
) -> list[Findings]:
    from trimaran.measure.rank import measure_on_rank

    progress("starting processes", 0, 0)
    arguments = (make_job, graph.digest, wanted, graph.behaviour)
    return launch_on(link, measure_on_rank, arguments, ranks=ranks, on_event=shown_by(progress))


def shown_by(progress: Progress) -> Callable[[int, Event], None]:
    """A listener to ranks that measure, which shows what they measure.

    Args:
        progress: told of it
    """

    def on_event(rank: int, event: Event) -> None:
        if "measuring" in event:
            progress(str(event["measuring"]), int(str(event["done"])), int(str(event["total"])))

    return on_event


def _check_ran(found: Sequence[Findings]) -> None:
    """Raise the error of the whole model, with the batch sizes at which it failed among the figures."""
    failed = {run: raised for one in reversed(found) for run, raised in one.failed.items() if raised}
    if not failed:
        return
    sizes = {run.batch: raised for run, raised in failed.items() if run.form == "module"}
    run, raised = max(failed.items(), key=lambda one: one[0].batch)
    # What fails in another form alone is not for the number of samples.
    figures: dict[str, Any] = {"failed": sizes} if all(one.batch in sizes for one in failed) else {}
    raise ExecutionError(
        f"a step of {format_count(run.batch, 'sample')} failed: {raised}", code="measure.step-failed", **figures
    )


def _keep(found: CostTable) -> None:
    """Store what was found: compute under the machine, transfers under its links."""
    here = replace(found.fingerprint, link="")
    parts = [replace(found, fingerprint=here)]
    if found.fingerprint.link:
        wires = CostTable(fingerprint=found.fingerprint, curves=found.curves, interference=found.interference)
        parts = [replace(found, fingerprint=here, curves={}, interference={}), wires]
    try:
        for part in parts:
            store(part)
    except EnvironmentProblem as error:
        _LOG.warning("%s; what was measured is lost when this run ends", error.message)
