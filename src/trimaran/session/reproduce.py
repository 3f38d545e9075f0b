"""The vDNN paper again: its networks, batches and policies, and ours, on a device of the catalog in simulation.

Each network's step is traced on meta tensors and priced by the device's roofline. From the one trace come both
accountings (`report/reproduction`): the list of layers for the paper's buffers, and the live bytes of PyTorch's own.
Which constants were fixed before anything was compared, and which were not, is in `docs/vdnn.md`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trimaran.cluster.catalog import CatalogDevice, find_device
from trimaran.costs.memory_costs import MemoryCosts
from trimaran.costs.roofline import memory_costs
from trimaran.errors import InfeasibleError, InputError
from trimaran.graph.trace.types import StepTrace
from trimaran.planner.memory import plan_memory
from trimaran.planner.memory.vdnn import Offload, vdnn_all, vdnn_conv
from trimaran.planner.memory.vdnn_buffers import Buffers, baseline, virtualized
from trimaran.planner.memory.vdnn_convolution import Algorithm
from trimaran.planner.memory.vdnn_dynamic import Usage, choose_dynamically, vdnn_dyn
from trimaran.planner.memory.vdnn_ideal import offload_on_demand
from trimaran.planner.memory.vdnn_network import PaperNetwork, network_of
from trimaran.program.memory import KEEP_ALL, MemoryPlan
from trimaran.report.reproduction.figures import ReproducedNetwork, ReproducedPolicy, Reproduction
from trimaran.session.memory.figures import simulated, usage
from trimaran.session.memory.tracing import JobTracer
from trimaran.session.network_jobs import network_job
from trimaran.session.planning import Progress, ignore_progress

PAPER_NETWORKS: tuple[tuple[str, int], ...] = (
    ("alexnet", 128),
    ("overfeat", 128),
    ("googlenet", 128),
    ("vgg16", 64),
    ("vgg16", 128),
    ("vgg16", 256),
    ("vgg116", 32),
    ("vgg216", 32),
    ("vgg316", 32),
    ("vgg416", 32),
)
"""The paper's networks with their batch sizes."""


def parse_networks(text: str | None) -> tuple[tuple[str, int], ...]:
    """Networks as a person names them: "alexnet,vgg16:256"; without a batch, every one that the paper has.

    Raises:
        InputError: not a network of the paper, or not a batch size

    Example:
        >>> parse_networks("alexnet,vgg16:8")
        (('alexnet', 128), ('vgg16', 8))
        >>> parse_networks("vgg16")
        (('vgg16', 64), ('vgg16', 128), ('vgg16', 256))
    """
    if text is None:
        return PAPER_NETWORKS
    found: list[tuple[str, int]] = []
    for part in text.split(","):
        name, colon, batch = part.strip().partition(":")
        batches = [batch_size for network, batch_size in PAPER_NETWORKS if network == name]
        if not batches:
            known = ", ".join(dict.fromkeys(network for network, _ in PAPER_NETWORKS))
            raise InputError(f'unknown network "{name}"; the paper has {known}', network=name)
        if colon and not (batch.isascii() and batch.isdecimal() and int(batch)):
            raise InputError(f'expected a network as "vgg16:256", got "{part}": the batch is a count', network=part)
        found += [(name, int(batch))] if colon else [(name, batch_size) for batch_size in batches]
    return tuple(found)


def reproduce_vdnn(
    *, device: str = "titan-x", networks: str | None = None, progress: Progress = ignore_progress
) -> Reproduction:
    """Simulate the paper's networks under its policies and ours.

    Args:
        device: of the catalog
        networks: which, as `parse_networks` reads them; None: all of the paper
        progress: told what is being done

    Raises:
        InputError: an unknown device or network
    """
    card = find_device(device)
    wanted = parse_networks(networks)
    found, sources, tracers = [], [], dict[str, JobTracer]()
    for place, (name, batch) in enumerate(wanted):
        progress(f"{name}, batch {batch}", place, len(wanted))
        if name not in tracers:
            tracers = {name: JobTracer(network_job(name))}  # one at a time: traces of the deep ones are large
        trace = tracers[name].trace(batch)
        costs = memory_costs(trace, card)
        sources.append(costs.source)
        found.append(_reproduced(name, batch, _Step(trace=trace, costs=costs, device=card)))
    return Reproduction(
        device=card.title,
        paper_budget_bytes=card.memory.nbytes,
        trace_budget_bytes=card.budget_bytes(card.memory.nbytes),
        networks=tuple(found),
        source=sources[-1],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A network's step on the device."""

    trace: StepTrace
    costs: MemoryCosts
    device: CatalogDevice


def _reproduced(name: str, batch: int, step: _Step) -> ReproducedNetwork:
    paper, chosen = _in_paper_accounting(step)
    traced, notes = _in_trace_accounting(step)
    return ReproducedNetwork(network=name, batch=batch, policies=(*paper, *traced), notes=(*chosen, *notes))


def _in_paper_accounting(step: _Step) -> tuple[list[ReproducedPolicy], list[str]]:
    network = network_of(step.trace, step.costs.durations_s)
    convolutions = tuple(n for n, layer in enumerate(network.layers) if layer.convolution is not None)
    frugal = dict.fromkeys(convolutions, Algorithm.MEMORY)
    budget_bytes = step.device.memory.nbytes
    rows: dict[str, Buffers] = {
        "none (p)": baseline(network),
        "none (m)": baseline(network, frugal),
        "all (m)": _virtualized(network, Offload.ALL, frugal, step.costs),
        "all (p)": _virtualized(network, Offload.ALL, {}, step.costs),
        "conv (m)": _virtualized(network, Offload.CONV, frugal, step.costs),
        "conv (p)": _virtualized(network, Offload.CONV, {}, step.costs),
    }
    notes = []
    try:
        choice = choose_dynamically(
            lambda offload, algorithms: _paper_usage(network, offload, algorithms, step.costs),
            convolutions,
            budget_bytes=budget_bytes,
        )
        rows["dyn"] = _virtualized(network, choice.offload, choice.algorithms, step.costs)
        notes.append(f"dyn, buffers of 2016: {' → '.join(choice.tried)}.")
    except InfeasibleError as error:
        notes.append(f"dyn, buffers of 2016: {error.message}")
    return [_paper_row(policy, found, rows["none (p)"], budget_bytes) for policy, found in rows.items()], notes


def _virtualized(
    network: PaperNetwork, offload: Offload, algorithms: Mapping[int, Algorithm], costs: MemoryCosts
) -> Buffers:
    if offload == Offload.NONE:
        return baseline(network, algorithms)
    return virtualized(
        network,
        offload,
        algorithms,
        to_host_bytes_per_s=costs.to_host_bytes_per_s,
        to_device_bytes_per_s=costs.to_device_bytes_per_s,
    )


def _paper_usage(
    network: PaperNetwork, offload: Offload, algorithms: Mapping[int, Algorithm], costs: MemoryCosts
) -> Usage:
    found = _virtualized(network, offload, algorithms, costs)
    steps = (found.steps_bytes + found.weight_bytes).tolist()
    return Usage(
        peak_bytes=found.peak_bytes,
        by_convolution={n: max(steps[n], steps[-1 - n]) for n in algorithms},
    )


def _paper_row(policy: str, found: Buffers, kept: Buffers, budget_bytes: int) -> ReproducedPolicy:
    return ReproducedPolicy(
        policy=policy,
        accounting="paper",
        fits=found.peak_bytes <= budget_bytes,
        peak_bytes=found.peak_bytes,
        mean_bytes=round(found.mean_bytes),
        bare_mean_bytes=round(found.mean_without_weights_bytes),
        saved=1 - found.mean_without_weights_bytes / kept.mean_without_weights_bytes,
        slowdown=found.step_time_s / kept.step_time_s - 1,
    )


def _in_trace_accounting(step: _Step) -> tuple[list[ReproducedPolicy], list[str]]:
    trace, costs = step.trace, step.costs
    budget_bytes = step.device.budget_bytes(step.device.memory.nbytes)
    plans: dict[str, MemoryPlan] = {"none": KEEP_ALL, "all": vdnn_all(trace), "conv": vdnn_conv(trace)}
    notes = []
    try:
        plans["dyn"] = vdnn_dyn(trace, budget_bytes=budget_bytes)
    except InfeasibleError as error:
        notes.append(f"dyn, a step of PyTorch: {error.message}")
    plans["on demand"] = offload_on_demand(trace)
    try:
        plans["trimaran"] = plan_memory(trace, costs, budget_bytes=budget_bytes).plan
    except InfeasibleError as error:
        notes.append(f"trimaran: {error.message}")
    return _trace_rows(step, plans, budget_bytes), notes


def _trace_rows(step: _Step, plans: Mapping[str, MemoryPlan], budget_bytes: int) -> list[ReproducedPolicy]:
    rows: list[ReproducedPolicy] = []
    for policy, plan in plans.items():
        found = simulated(step.trace, plan, step.costs)
        used = usage(step.trace, found.live, step.costs)
        row = ReproducedPolicy(
            policy=policy,
            accounting="trace",
            fits=used.peak_bytes <= budget_bytes,
            peak_bytes=used.peak_bytes,
            mean_bytes=used.mean_bytes,
            bare_mean_bytes=used.bare_mean_bytes,
            saved=0.0,
            slowdown=found.run.slowdown,
        )
        kept = rows[0].bare_mean_bytes if rows else row.bare_mean_bytes
        rows.append(replace(row, saved=1 - row.bare_mean_bytes / kept if kept else 0.0))
    return rows
