"""Reproduces the study of input pipelines: three remedies, one at a time, on two machines with two baselines each.

    network × machine × batch ─▶ step of each baseline ─▶ with each remedy ─▶ saving, next to the study's

The study's networks and batches are not public; ours are common ones. `RemedySteps` predicts the steps of one network
on one machine under both baselines with each remedy, and their intervals.

Samples are ready in the host's memory: loaders keep up. With replicate-and-scatter, remedies change terms of
`torch_data_parallel`. With a process for each device the batch is split already. Its copy is pageable and the step
waits for it, unless it is made ahead. Compression halves the bytes of the all-reduces.

Three sources of uncertainty are independent: the speed of devices, the speed of links and the time of the host's
interpreter. A saving compares two steps with the same devices, links and host. Its interval follows from both steps
with one source at a time longer and shorter; the three are added in quadrature.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace

from trimaran.base.errors import InputError
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.units import format_count
from trimaran.machine.find import find_machine
from trimaran.planning.data_parallel_job import DataParallelJob
from trimaran.pricing.exchange.costs import ExchangeOptions
from trimaran.pricing.exchange.frameworks import recipe_of
from trimaran.pricing.exchange.replica_memory import ReplicaMemory
from trimaran.pricing.kernels.estimate import StepEstimate
from trimaran.pricing.kernels.software import Software
from trimaran.pricing.types import Cost
from trimaran.simulator.data_parallel import data_parallel_step
from trimaran_studies.facts.loaders import loader_of, most_samples_per_s, photograph_feed
from trimaran_studies.reproduce.input_pipeline_report import FeedingRow, ReproducedFeeding
from trimaran_studies.reproduce.torch_data_parallel import (
    ABLATION,
    ALL,
    BASELINES,
    CODED_GRADIENTS,
    HALF,
    NONE,
    Baseline,
    Remedies,
    Transfers,
    batch_copies,
    replica_work,
    replicated_step,
    transfers_on,
)

LINKS_UNSURE = 0.3
"""Half the width of the 90 % interval of copies and collectives, as a share of them."""

HOST_UNSURE = 0.5
"""Likewise for the time of the host's interpreter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdowns:
    """Factors on the expected times of computation, links and host."""

    compute: float = 1.0
    links: float = 1.0
    host: float = 1.0


AS_EXPECTED = Slowdowns()


@dataclass(frozen=True, slots=True)
class Case:
    """A baseline with remedies.

    Attributes:
        baseline: that the remedies change
        remedies: enabled
    """

    baseline: Baseline
    remedies: Remedies


@dataclass(slots=True)
class RemedySteps:
    """Steps of one network on one machine at one batch.

    Attributes:
        job: the network, on a machine of one node
        devices: of it
        batch: samples of a device
    """

    job: DataParallelJob
    devices: int
    batch: int
    _transfers: Transfers | None = None
    _steps: dict[tuple[Case, Slowdowns], dict[str, float]] = field(default_factory=dict)

    def step(self, case: Case) -> Cost:
        """A step with its 90 % interval."""
        seconds = self._seconds(case)
        low, high = self._interval(lambda slowdowns: self._seconds(case, slowdowns))
        return Cost(seconds, low, high, f"simulated: {self.job.known(self.batch)[1].source}")

    def parts(self, case: Case) -> dict[str, float]:
        """Parts of the step, by name; they sum to it [s]."""
        return dict(self._parts(case, AS_EXPECTED))

    def saved(self, case: Case, base: Case) -> tuple[float, tuple[float, float]]:
        """Time that a case saves, as a share of the step of another, with its 90 % interval.

        Args:
            case: with remedies
            base: compared with
        """

        def share(slowdowns: Slowdowns) -> float:
            return 1.0 - self._seconds(case, slowdowns) / self._seconds(base, slowdowns)

        return share(AS_EXPECTED), self._interval(share)

    def memory(self) -> ReplicaMemory:
        """Memory of a rank, with one process for each device."""
        return self.job.memory(self.job.step(self.batch, self.devices))

    def _interval(self, figure: Callable[[Slowdowns], float]) -> tuple[float, float]:
        middle = figure(AS_EXPECTED)
        below = above = 0.0
        for shorter, longer in self._slowdown_pairs():
            ends = figure(shorter), figure(longer)
            below = math.hypot(below, max(0.0, middle - min(ends)))
            above = math.hypot(above, max(0.0, max(ends) - middle))
        return middle - below, middle + above

    def _slowdown_pairs(self) -> list[tuple[Slowdowns, Slowdowns]]:
        _, estimate = self.job.known(self.batch)
        compute = estimate.forward
        ends = {
            "compute": (compute.low / compute.seconds, compute.high / compute.seconds),
            "links": (1 - LINKS_UNSURE, 1 + LINKS_UNSURE),
            "host": (1 - HOST_UNSURE, 1 + HOST_UNSURE),
        }
        return [(Slowdowns(**{name: low}), Slowdowns(**{name: high})) for name, (low, high) in ends.items()]

    def _seconds(self, case: Case, slowdowns: Slowdowns = AS_EXPECTED) -> float:
        return sum(self._parts(case, slowdowns).values())

    def _parts(self, case: Case, slowdowns: Slowdowns) -> dict[str, float]:
        if (case, slowdowns) not in self._steps:
            found = self._replicated if case.baseline == "replicate-and-scatter" else self._exchanged
            self._steps[case, slowdowns] = found(case.remedies, slowdowns)
        return self._steps[case, slowdowns]

    def _replicated(self, remedies: Remedies, slowdowns: Slowdowns) -> dict[str, float]:
        work, estimate = self.job.known(self.batch)
        own = replica_work(work, estimate).scaled(slowdowns.compute)
        if self._transfers is None:
            self._transfers = transfers_on(self.job.machine, work, devices=self.devices, year=self.job.software.year)
        step = replicated_step(
            replace(own, calls_s=own.calls_s * slowdowns.host),
            self._transfers.scaled(links=slowdowns.links, host=slowdowns.host),
            devices=self.devices,
            remedies=remedies,
        )
        return {one.name.removesuffix("_s"): getattr(step, one.name) for one in fields(step)}

    def _exchanged(self, remedies: Remedies, slowdowns: Slowdowns) -> dict[str, float]:
        """A process for each device: its own copy, DDP's buckets."""
        work, estimate = self.job.known(self.batch)
        share = HALF if remedies.compress else 1.0
        # A link at half the rate takes as long as twice the bytes.
        sent = share * slowdowns.links
        habit = recipe_of(self.job.software)
        # The number of gradients in a bucket does not depend on the bytes that are sent for each.
        recipe = replace(
            habit, first_bytes=round(habit.first_bytes * sent), bucket_bytes=round(habit.bucket_bytes * sent)
        )
        options = ExchangeOptions(explain=False, wire_share=sent, recipe=recipe)
        setup = self.job.setup(self.batch, self.devices)
        step = data_parallel_step(replace(setup, estimate=_slower(estimate, slowdowns.compute), options=options))
        coding_s = CODED_GRADIENTS * work.gradient_bytes / self.job.machine.node.device.sustained_bytes_per_s
        parts = {
            "forward": step.forward_s,
            "backward": step.backward_s,
            "exchange": step.exposed_communication_s + step.overhead_s + (coding_s if remedies.compress else 0.0),
            "update": step.update_s,
        }
        copies = batch_copies(self.job.machine, work.input_bytes, devices=self.devices).scaled(slowdowns.links)
        waited_s = copies.shares_s
        if remedies.preload:
            waited_s = max(0.0, copies.shares_ahead_s - sum(parts.values()))
        return {"feed": waited_s, **parts}


def _slower(estimate: StepEstimate, factor: float) -> StepEstimate:
    """The same step on a device that takes `factor` times as long."""
    return replace(
        estimate,
        work_s=tuple(seconds * factor for seconds in estimate.work_s),
        forward=estimate.forward.scaled(factor),
        backward=estimate.backward.scaled(factor),
        update=estimate.update.scaled(factor),
        host_s=estimate.host_s * factor,
        device_s=estimate.device_s * factor,
    )


NETWORKS = ("alexnet", "vgg16", "googlenet", "inception_v3", "resnet50", "lstm", "bert:base")
"""Networks of images and of language, with many weights for what they compute and with few."""

IMAGES = frozenset(("alexnet", "vgg16", "googlenet", "inception_v3", "resnet50"))
"""Networks that train on photographs."""

BATCHES = (16, 32, 64)
"""Samples of a device."""

DEVICES = 4
MACHINES = {"4xv100-pcie": "PCIe", "4xv100": "NVLink"}
"""Machines of the catalog with four V100 each, and their links: a server with cards, half a DGX-1."""

SOFTWARE = Software(year=2021.0, source="PyTorch of the year of the study")


def reproduce_feeding(
    *, networks: str | None = None, batches: tuple[int, ...] = BATCHES, progress: Progress = ignore_progress
) -> ReproducedFeeding:
    """Every network on both machines.

    Args:
        networks: some of them, such as "alexnet,resnet50"; None: all
        batches: of a device
        progress: called with the current item

    Raises:
        InputError: a network that is not of the study, or no network fits the memory
    """
    names = _wanted(networks)
    titles: dict[str, str] = {}
    rows: list[FeedingRow] = []
    notes: list[str] = []
    for name, links in MACHINES.items():
        machine = find_machine(name)
        titles[name] = f"{machine.node.device.title}, {format_count(DEVICES, 'GPU')}, {links}"
        for batch in batches:
            for place, network in enumerate(names):
                progress(f"{network} on {name}, batch {batch}", place, len(names))
                job = DataParallelJob(reference=network, machine=machine, software=SOFTWARE)
                steps = RemedySteps(job, DEVICES, batch)
                if steps.memory().fits:
                    rows += _rows(steps, name, links)
                else:
                    notes.append(f"{network} at batch {batch} does not fit {machine.node.device.title}: left out.")
    if not rows:
        raise InputError("; ".join(notes) or "no network or batch is given", networks=networks)
    return ReproducedFeeding(
        devices=DEVICES,
        software=SOFTWARE.text,
        rows=tuple(rows),
        titles=titles,
        notes=(*dict.fromkeys(notes), *_decoding_notes(rows)),
    )


def _wanted(networks: str | None) -> tuple[str, ...]:
    if networks is None:
        return NETWORKS
    names = tuple(dict.fromkeys(part.strip() for part in networks.split(",")))
    for name in names:
        if name not in NETWORKS:
            raise InputError(f'"{name}" is not of this ablation; there are {", ".join(NETWORKS)}', network=name)
    return names


def _cases() -> Iterator[tuple[str, str, Case, Case]]:
    """Names of baseline and remedy, the case, and the case that it is compared with."""
    for baseline in BASELINES:
        for remedies in ABLATION:
            yield baseline, remedies.name, Case(baseline, remedies), Case(baseline, NONE)
    through_first = Case("replicate-and-scatter", NONE)
    yield through_first.baseline, "ddp", Case("ddp", Remedies(split=True)), through_first
    yield through_first.baseline, "ddp, all", Case("ddp", ALL), through_first


def _rows(steps: RemedySteps, machine: str, links: str) -> Iterator[FeedingRow]:
    for baseline, remedy, case, base in _cases():
        step = steps.step(case)
        saved, interval = steps.saved(case, base)
        yield FeedingRow(
            machine=machine,
            links=links,
            network=steps.job.reference,
            batch=steps.batch,
            baseline=baseline,
            remedy=remedy,
            step_s=step.seconds,
            step_interval=(step.low, step.high),
            saved=saved,
            interval=interval,
            parts=steps.parts(case),
        )


def _decoding_notes(rows: list[FeedingRow]) -> Iterator[str]:
    """Machines on which decoding photographs on all cores would limit the step with every remedy."""
    for name in dict.fromkeys(row.machine for row in rows):
        node = find_machine(name).node
        feed = photograph_feed(node, loader=loader_of(SOFTWARE))
        ours = [
            row
            for row in rows
            if row.machine == name and row.network in IMAGES and (row.baseline, row.remedy) == ("ddp", "all")
        ]
        rate = most_samples_per_s(feed, devices=DEVICES)
        limited = [row for row in ours if feed.fed(row.step_s, batch=row.batch, devices=DEVICES).wait_s > 0.0]
        if limited:
            yield (
                f"Decoding of photographs is not included: the {node.cpu_cores} cores of {name} decode "
                f"{rate:,.0f} images/s, too few for {len(limited)} of {len(ours)} steps of image "
                "networks with all remedies. There decoding is the bottleneck, which none of the three changes."
            )
