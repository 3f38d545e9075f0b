"""The study of feeding several GPUs again: three remedies, one at a time, against two baselines on two machines.

    network × machine × batch ─▶ step of each baseline ─▶ with each remedy ─▶ saved, beside the study's figures

Its networks and batches are not public; ours are the field's. `reproduce_feeding_steps` has the model.

Steps of one network on one machine under both baselines, with each of the three remedies, and how sure they are.

Samples are ready in the host's memory, as where loaders keep up. Against the first device through which everything
goes, remedies change terms of `costs.replicate`. With a process for each device the batch is split already; its copy is
pageable and the step waits for it, unless it is made ahead; compression halves what the all-reduces carry.

What is unsure has three parts that have nothing to do with each other: how fast devices compute, how fast links carry,
and what the host's interpreter takes. A saving compares two steps with the same devices, links and host, so its
interval comes from both steps with each part longer and shorter at a time; the three add in quadrature.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace

from trimaran.base.errors import InputError
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.units import format_count
from trimaran.machine.find import find_machine
from trimaran.planning.data_parallel_job import DataParallelJob
from trimaran.planning.replica_memory import RankMemory
from trimaran.pricing.exchange.costs import ExchangeOptions
from trimaran.pricing.exchange.frameworks import recipe_of
from trimaran.pricing.kernels.estimate import StepEstimate
from trimaran.pricing.kernels.software import Software
from trimaran.pricing.types import Cost
from trimaran.simulator.data_parallel import data_parallel_step
from trimaran_studies.facts.loaders import loader_of, photograph_feed
from trimaran_studies.reproduce.input_pipeline_report import FeedingRow, ReproducedFeeding
from trimaran_studies.reproduce.torch_data_parallel import (
    ABLATION,
    ALL,
    BASELINES,
    CODED_GRADIENTS,
    HALF,
    NONE,
    Baseline,
    Passages,
    Remedies,
    batch_copies,
    passages_on,
    replica_work,
    replicated_step,
)

LINKS_UNSURE = 0.3
"""Half the width of the 90 % interval of copies and collectives, as a share of them."""

HOST_UNSURE = 0.5
"""The same of what the host's interpreter takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How many times as long things take as expected."""

    compute: float = 1.0
    links: float = 1.0
    host: float = 1.0


AS_EXPECTED = Pace()


@dataclass(frozen=True, slots=True)
class Case:
    """A baseline and what is switched on.

    Attributes:
        baseline: where everything else is as it was
        remedies: switched on
    """

    baseline: Baseline
    remedies: Remedies


@dataclass(slots=True)
class FedSteps:
    """Steps of one network on one machine at one batch.

    Attributes:
        job: the network, on a machine of one node
        devices: of it
        batch: samples of a device
    """

    job: DataParallelJob
    devices: int
    batch: int
    _passages: Passages | None = None
    _steps: dict[tuple[Case, Pace], dict[str, float]] = field(default_factory=dict)

    def step(self, case: Case) -> Cost:
        """A step with its 90 % interval."""
        seconds = self._seconds(case)
        low, high = self._interval(lambda pace: self._seconds(case, pace))
        return Cost(seconds, low, high, f"simulated: {self.job.known(self.batch)[1].source}")

    def parts(self, case: Case) -> dict[str, float]:
        """What the step consists of, by name; they sum to it [s]."""
        return dict(self._parts(case, AS_EXPECTED))

    def saved(self, case: Case, base: Case) -> tuple[float, tuple[float, float]]:
        """Time that a case saves, as a share of the step of another, with its 90 % interval.

        Args:
            case: with remedies
            base: what it is held against
        """

        def share(pace: Pace) -> float:
            return 1.0 - self._seconds(case, pace) / self._seconds(base, pace)

        return share(AS_EXPECTED), self._interval(share)

    def memory(self) -> RankMemory:
        """Of a rank with a process of its own."""
        return self.job.memory(self.job.step(self.batch, self.devices))

    def _interval(self, figure: Callable[[Pace], float]) -> tuple[float, float]:
        middle = figure(AS_EXPECTED)
        below = above = 0.0
        for shorter, longer in self._paces():
            ends = figure(shorter), figure(longer)
            below = math.hypot(below, max(0.0, middle - min(ends)))
            above = math.hypot(above, max(0.0, max(ends) - middle))
        return middle - below, middle + above

    def _paces(self) -> list[tuple[Pace, Pace]]:
        _, estimate = self.job.known(self.batch)
        compute = estimate.forward
        ends = {
            "compute": (compute.low / compute.seconds, compute.high / compute.seconds),
            "links": (1 - LINKS_UNSURE, 1 + LINKS_UNSURE),
            "host": (1 - HOST_UNSURE, 1 + HOST_UNSURE),
        }
        return [(Pace(**{name: low}), Pace(**{name: high})) for name, (low, high) in ends.items()]

    def _seconds(self, case: Case, pace: Pace = AS_EXPECTED) -> float:
        return sum(self._parts(case, pace).values())

    def _parts(self, case: Case, pace: Pace) -> dict[str, float]:
        if (case, pace) not in self._steps:
            found = self._replicated if case.baseline == "replicate-and-scatter" else self._exchanged
            self._steps[case, pace] = found(case.remedies, pace)
        return self._steps[case, pace]

    def _replicated(self, remedies: Remedies, pace: Pace) -> dict[str, float]:
        work, estimate = self.job.known(self.batch)
        own = replica_work(work, estimate).scaled(pace.compute)
        if self._passages is None:
            self._passages = passages_on(self.job.machine, work, devices=self.devices, year=self.job.software.year)
        step = replicated_step(
            replace(own, calls_s=own.calls_s * pace.host),
            self._passages.scaled(links=pace.links, host=pace.host),
            devices=self.devices,
            remedies=remedies,
        )
        return {one.name.removesuffix("_s"): getattr(step, one.name) for one in fields(step)}

    def _exchanged(self, remedies: Remedies, pace: Pace) -> dict[str, float]:
        """A process for each device: its own copy, DDP's buckets."""
        work, estimate = self.job.known(self.batch)
        share = HALF if remedies.compress else 1.0
        # Bytes on links half as fast take as long as twice of them.
        wire = share * pace.links
        habit = recipe_of(self.job.software)
        # A bucket holds as many gradients, however many bytes they are on the wire.
        recipe = replace(
            habit, first_bytes=round(habit.first_bytes * wire), bucket_bytes=round(habit.bucket_bytes * wire)
        )
        options = ExchangeOptions(explain=False, wire_share=wire, recipe=recipe)
        setup = self.job.setup(self.batch, self.devices)
        step = data_parallel_step(replace(setup, estimate=_slower(estimate, pace.compute), options=options))
        coding_s = CODED_GRADIENTS * work.gradient_bytes / self.job.machine.node.device.sustained_bytes_per_s
        parts = {
            "forward": step.forward_s,
            "backward": step.backward_s,
            "exchange": step.exposed_communication_s + step.overhead_s + (coding_s if remedies.compress else 0.0),
            "update": step.update_s,
        }
        copies = batch_copies(self.job.machine, work.input_bytes, devices=self.devices).scaled(pace.links)
        waited_s = copies.shares_s
        if remedies.preload:
            waited_s = max(0.0, copies.shares_ahead_s - sum(parts.values()))
        return {"feed": waited_s, **parts}


def _slower(estimate: StepEstimate, factor: float) -> StepEstimate:
    """The same step on a device that takes so many times as long."""
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
"""Those that photographs are fed to."""

BATCHES = (16, 32, 64)
"""Samples of a device."""

DEVICES = 4
MACHINES = {"4xv100-pcie": "PCIe", "4xv100": "NVLink"}
"""Machines of the catalog with four V100 each, and what joins them: a box of cards, half a DGX-1."""

SOFTWARE = Software(year=2021.0, source="PyTorch of the year of the study")


def reproduce_feeding(
    *, networks: str | None = None, batches: tuple[int, ...] = BATCHES, progress: Progress = ignore_progress
) -> ReproducedFeeding:
    """Every network on both machines.

    Args:
        networks: some of them, such as "alexnet,resnet50"; None: all
        batches: of a device
        progress: told what is being done

    Raises:
        InputError: a network that is not among them, or nothing that fits
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
                steps = FedSteps(job, DEVICES, batch)
                if steps.memory().fits:
                    rows += _rows(steps, name, links)
                else:
                    notes.append(f"{network} at batch {batch} does not fit {machine.node.device.title}: left out.")
    if not rows:
        raise InputError("; ".join(notes) or "nothing is asked for", networks=networks)
    return ReproducedFeeding(
        devices=DEVICES,
        software=f"{SOFTWARE.framework} of {SOFTWARE.year:.0f}",
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
    """Baseline and remedy as rows name them, the case, and what it is held against."""
    for baseline in BASELINES:
        for remedies in ABLATION:
            yield baseline, remedies.name, Case(baseline, remedies), Case(baseline, NONE)
    through_first = Case("replicate-and-scatter", NONE)
    yield through_first.baseline, "ddp", Case("ddp", Remedies(split=True)), through_first
    yield through_first.baseline, "ddp, all", Case("ddp", ALL), through_first


def _rows(steps: FedSteps, machine: str, links: str) -> Iterator[FeedingRow]:
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
    """Where photographs, decoded by all cores of the node, would hold a step up whatever the remedy."""
    for name in dict.fromkeys(row.machine for row in rows):
        node = find_machine(name).node
        feed = photograph_feed(node, loader=loader_of(SOFTWARE), devices=DEVICES)
        ours = [
            row
            for row in rows
            if row.machine == name and row.network in IMAGES and (row.baseline, row.remedy) == ("ddp", "all")
        ]
        held = [row for row in ours if feed.wait_s(row.batch, devices=DEVICES, step_s=row.step_s) > 0.0]
        if held:
            yield (
                f"Photographs that are decoded meanwhile are another matter: the {node.cpu_cores} cores of {name} make "
                f"{feed.samples_per_s:,.0f} images/s, fewer than {len(held)} of {len(ours)} steps of image networks "
                "with all remedies take; then decoding is the limit, and none of the three is about that."
            )
