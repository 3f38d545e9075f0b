"""The study of feeding several GPUs again: three remedies, one at a time, against two baselines on two machines.

    network × machine × batch ─▶ step of each baseline ─▶ with each remedy ─▶ saved, beside the study's figures

Its networks and batches are not public; ours are the field's. `reproduce_feeding_steps` has the model.
"""

from collections.abc import Iterator

from trimaran.cluster.find import find_machine
from trimaran.costs.feeding import loader_of, photograph_feed
from trimaran.costs.replicate import ABLATION, ALL, BASELINES, NONE, Remedies
from trimaran.costs.software import Software
from trimaran.errors import InputError
from trimaran.report.reproduction.feeding import FeedingRow, ReproducedFeeding
from trimaran.session.planning import Progress, ignore_progress
from trimaran.session.reproduce_feeding_steps import Case, FedSteps
from trimaran.units import format_count

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
                steps = FedSteps(network, machine, DEVICES, batch, SOFTWARE)
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
            network=steps.reference,
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
