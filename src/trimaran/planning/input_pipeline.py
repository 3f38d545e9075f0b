"""The input pipeline of a plan: of this machine, or of a target cluster as a person gives it."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.base.units import format_bytes, format_count, parse_bytes, parse_rate, parse_seconds
from trimaran.graph.kernels.workload import Workload
from trimaran.jobs.resolve import JobSource
from trimaran.launch.world import World
from trimaran.machine.detect import detect_processor
from trimaran.machine.types import Machine, Node
from trimaran.networks.names import parse_network
from trimaran.planner.candidates import Candidate
from trimaran.planner.epoch import EpochData
from trimaran.planner.input_pipeline import QUICK_DATA
from trimaran.planner.pins import Pins
from trimaran.planner.problem import Room
from trimaran.planner.result import Search
from trimaran.planning.requests import Loading
from trimaran.pricing.input_pipeline import LOADERS, InputPipeline, given_samples
from trimaran.pricing.tables import SampleCosts
from trimaran.program.json_files import to_plain
from trimaran.program.strategy import Strategy


def room_of(job: Job, data: EpochData) -> Room | None:
    """Resources of this machine for loading a job's data; None: ranks load in line, as for a stream.

    Args:
        job: says how many epochs there are
        data: says whether samples have numbers
    """
    if not data.numbered:
        return None
    return Room(memory_bytes=detect_processor().memory_bytes, epochs=max(1, job.epochs))


def feeding_notes(found: Search[Candidate]) -> tuple[str, ...]:
    """Why ranks are fed as they are, where it was worth asking: loading takes a part of the step that matters.

    Args:
        found: the search
    """
    return tuple(reason for reason in found.feeding if not reason.startswith(QUICK_DATA))


def feeding_document(strategy: Strategy, found: Search[Candidate] | None) -> dict[str, Any]:
    """How ranks are fed, for programs.

    Args:
        strategy: of the plan
        found: has the reasons; None: a plan from a file

    Returns:
        The fields of `Feeding`, and `reasons`.
    """
    return {**to_plain(strategy.feeding), "reasons": [] if found is None else list(found.feeding)}


def fed_as_asked(strategy: Strategy, pins: Pins) -> Strategy:
    """The strategy of a plan from a file with the user's options for its input pipeline.

    Args:
        strategy: of the plan
        pins: of the request; those of other things are not for a plan that is made already
    """
    feeding = strategy.feeding
    if pins.workers is not None:
        feeding = replace(feeding, workers=pins.workers)
    if "cache" in pins.forbid:
        feeding = replace(feeding, cached=False)
    return strategy if feeding == strategy.feeding else replace(strategy, feeding=feeding)


# ---------------------------------------------------------------------------------------------------------------------
# The input pipeline of a target cluster


MEASURED = "measured"
"""The loader of the job itself, measured on this machine."""

_RATE = re.compile(
    r"\s*([\d,]*\.?\d+(?:e\+?\d+)?)\s*(?:\w+\s*)?/\s*s(?:ec)?(?:\s+(?:(per|a)\s+worker|with\s+(\d+)\s+workers?))?\s*",
    flags=re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderRate:
    """A rate of a loader.

    Attributes:
        samples_per_s: of a worker or of a node [samples/s]
        of_worker: whether it is of a worker
    """

    samples_per_s: float
    of_worker: bool


def parse_loader_rate(text: str) -> LoaderRate:
    """A rate of a loader as people write it.

    Args:
        text: such as "1070 images/s", "135 images/s per worker", or "1070 images/s with 8 workers"

    Raises:
        InputError: it is none

    Example:
        >>> parse_loader_rate("1,070 images/s")
        LoaderRate(samples_per_s=1070.0, of_worker=False)
        >>> parse_loader_rate("1070 images/s with 8 workers")
        LoaderRate(samples_per_s=133.75, of_worker=True)
    """
    match = _RATE.fullmatch(text)
    rate = float(match[1].replace(",", "")) if match is not None else 0.0
    if match is None or rate <= 0.0 or match[3] in ("0", "00"):
        raise InputError(
            'a loader is a rate of a node, such as "1070 images/s", or of a worker, such as "135 images/s per worker"; '
            f'a published one, such as "1070 images/s with 8 workers"; one of {", ".join(LOADERS)}; or "{MEASURED}", '
            f'the data set of the job on this machine; got "{text}"',
            code="loading.unknown-loader",
            loader=text,
        )
    workers = int(match[3]) if match[3] else 1
    return LoaderRate(samples_per_s=rate / workers, of_worker=bool(match[2] or match[3]))


SAMPLED_BATCH = 32
"""Samples of the batch whose size gives that of a sample."""


def sample_bytes(work: Workload) -> int:
    """What is copied to a device for a sample [bytes].

    Args:
        work: of a step
    """
    return -(-work.input_bytes // work.batch)


def pipeline_of(
    loading: Loading,
    source: JobSource,
    machine: Machine,
    *,
    workers: int | None,
    sample_bytes: Callable[[], int],
    of_strategy: bool = False,
) -> InputPipeline | None:
    """The input pipeline of each node of a machine; None where nothing is said of it: data are always ready.

    Args:
        loading: as users write it, checked by `check_loading`
        source: of the job, whose data set may be measured
        machine: of the catalog
        workers: of each rank; None: the fewest that keep up
        sample_bytes: gives the size of a sample that is copied to a device [bytes]
        of_strategy: whether the words of a strategy say the workers, as plans print them for any loader

    Raises:
        InputError: a text that means nothing, an option that the loader makes meaningless, or cores that are not known
    """
    if not loading.is_given:
        return None
    node, disk_s = machine.node, _disk_s(loading)
    latency_s = node.device.copies.latency_s
    copies_ahead = 1 if loading.copies_ahead is None else loading.copies_ahead
    cores: int | None = None
    if loading.loader == MEASURED:
        samples, what = _measured(source), "samples of the job, measured on this machine"
        samples = replace(samples, copy=replace(samples.copy, seconds=latency_s, low=latency_s, high=latency_s))
        if disk_s:
            # The disk of the node takes the place of that which was read here.
            there = given_samples(shared_s=disk_s, source=f"given: {loading.disk}")
            samples = replace(samples, read=there.read, read_again=there.read, shared=there.shared)
    else:
        decode_s, rate_s, what = 0.0, 0.0, "given"
        if loading.decode is not None:
            decode_s, what = parse_seconds(loading.decode, needs_unit=True), f"given: {loading.decode} a sample"
        elif loading.loader in LOADERS:
            found = LOADERS[loading.loader]
            decode_s, what = 1.0 / found.images_per_core_s, f"{loading.loader}, {found.source}"
            # Its rate is one of all cores of a node, over their number.
            cores = node.cpu_cores or None
        elif loading.loader is not None:
            rate = parse_loader_rate(loading.loader)
            what = f"given: {loading.loader}"
            if rate.of_worker:
                decode_s = 1.0 / rate.samples_per_s
            else:
                rate_s = 1.0 / rate.samples_per_s
                _check_rate_of_node(loading, None if of_strategy else workers)
        samples = given_samples(
            shared_s=max(disk_s, rate_s),
            decode_s=decode_s,
            sample_bytes=sample_bytes(),
            copy_latency_s=latency_s,
            source=what,
        )
    works = samples.prepare.seconds > 0.0
    if loading.host_cores is not None and not works:
        raise InputError(
            f"--host-cores {loading.host_cores}: nothing is decoded; say --decode, or leave it out",
            code="loading.cores-unused",
        )
    return InputPipeline(
        samples=samples,
        workers=workers,
        copies_ahead=copies_ahead,
        cores=_cores(loading, node, cores) if works else max(1, node.cpu_cores),
        node=node,
        source=what,
    )


def _check_rate_of_node(loading: Loading, workers: int | None) -> None:
    for option, value in (("--workers", workers), ("--host-cores", loading.host_cores)):
        if value is not None:
            raise InputError(
                f"{option} {value}: --loader {loading.loader} is the rate of a node, whatever loads; say what a worker "
                f'does ("{loading.loader} per worker", "{loading.loader} with 8 workers"), or leave {option} out',
                code="loading.rate-of-node",
                option=option,
            )


def _cores(loading: Loading, node: Node, of_all: int | None) -> int:
    """Cores of a node that load."""
    if loading.host_cores is not None:
        return loading.host_cores
    if of_all is not None:
        return of_all
    if not node.cpu_cores:
        raise InputError(
            f'how many cores a host of "{node.name}" has is not known: say --host-cores', code="loading.unknown-cores"
        )
    return max(1, node.cpu_cores - node.devices)


def _disk_s(loading: Loading) -> float:
    """Time of a sample on the disk of a node [s]."""
    if loading.disk is None or loading.sample_size is None:
        return 0.0
    return parse_bytes(loading.sample_size) / parse_rate(loading.disk)


def _measured(source: JobSource) -> SampleCosts:
    """Costs of a job's samples, measured on this machine on one rank."""
    if parse_network(source.reference) is not None:
        raise InputError(
            f'the data of "{source.reference}" are synthetic, so that measuring their loader says nothing: give the '
            'rate of yours, such as --loader "135 images/s per worker", or a job of yours (file.py:factory)',
            code="loading.synthetic-data",
        )
    # These import torch.
    from trimaran.launch.supervise import launch
    from trimaran.measure.findings import sample_costs

    return sample_costs(launch(_measure, (source,), ranks=1, device="cpu"), how="on this machine")


def _measure(world: World, source: JobSource) -> Any:
    """Measure the samples of a job on one rank."""
    from trimaran.measure.input_pipeline import measure_samples
    from trimaran.runtime.data.datasets import make_dataset

    job = source.make()
    return measure_samples(job, make_dataset(job), rank=world.rank, ranks=world.size, workers=True)


def pipeline_words(pipeline: InputPipeline) -> str:
    """What an input pipeline is taken to be, for people.

    Args:
        pipeline: of a node
    """
    samples = pipeline.samples
    parts = []
    if samples.prepare.seconds:
        parts.append(f"{format_count(pipeline.cores, 'core')} of a node load")
    if pipeline.workers is not None:
        workers = f"{format_count(pipeline.workers, 'worker')} a device"
        parts.append(workers if pipeline.workers else "each rank loads in line")
    if samples.sample_bytes:
        ahead = "ahead" if pipeline.copies_ahead else "when it is asked for"
        parts.append(f"{format_bytes(samples.sample_bytes)} of each sample are copied {ahead}")
    return ", ".join([f"loading: {pipeline.source}", *parts])
