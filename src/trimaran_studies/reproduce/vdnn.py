"""Reproduces the vDNN paper: its networks, batches and policies, and our policy, simulated on a device of the catalog.

Each network's step is traced on meta tensors and priced by the kernel model, with the paper's software. The trace gives
both accountings: the list of layers for the paper's buffers, and the live bytes of PyTorch. `benchmarks/vdnn/README.md`
says which constants were fixed before any comparison and which were not.

Our figures are shown next to the paper's. Memory is counted twice. **Paper** is the paper's accounting: the buffers of
Torch and cuDNN in 2016, allocated for the whole network (the baseline) or layer by layer (its policies), with
workspaces, means over time. **Trace** is ours: every storage of a step of PyTorch as autograd packs and unpacks it,
without workspaces, means over the operations of forward and backward. Figures of the two are not comparable; each is
compared with the baseline of its accounting.

Figures of the paper have a grade: published (in its abstract) or recalled (from its figures and from summaries of it,
not checked against the paper).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal

from rich.table import Table

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.units import format_bytes, format_count, whole_number
from trimaran.features.memory_fit.estimate import simulated, usage
from trimaran.graph.trace.types import StepTrace
from trimaran.jobs.published_jobs import network_job
from trimaran.machine.catalog import find_device
from trimaran.machine.types import Device
from trimaran.memory.search import plan_memory
from trimaran.memory.vdnn import Offload, vdnn_all, vdnn_conv, vdnn_dyn
from trimaran.planning.tracing.meta_trace import JobTracer
from trimaran.pricing.kernels.software import Software
from trimaran.pricing.offload_costs import MemoryCosts, modelled_costs
from trimaran.program.memory import KEEP_ALL, MemoryPlan
from trimaran.report.tables import add_figures, add_words, frame_table
from trimaran_studies.reproduce.vdnn_accounting import (
    Buffers,
    PaperNetwork,
    baseline,
    network_of,
    offload_on_demand,
    virtualized,
)
from trimaran_studies.reproduce.vdnn_dynamic import Algorithm, Usage, choose_dynamically

PAPER_SOFTWARE = Software(framework="torch7", year=2016.2, libraries="cudnn-4", source="the paper: Torch with cuDNN 4")

Accounting = Literal["paper", "trace"]
Grade = Literal["published", "recalled"]
SOURCE = "Rhu et al., vDNN, MICRO 2016, arXiv:1602.08124"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperFigure:
    """A figure of the paper for a network under a policy.

    Attributes:
        network: name of the network
        batch: samples of a step
        policy: of the paper: "none (p)", "all (m)", "dyn"
        quantity: memory needed, the saved share of the mean, or the slowdown
        value: in bytes, or a share
        text: for people
        grade: where the figure comes from
    """

    network: str
    batch: int
    policy: str
    quantity: Literal["total", "saved", "slower"]
    value: float
    text: str
    grade: Grade


PAPER_FIGURES = (
    PaperFigure(
        network="alexnet",
        batch=128,
        policy="all (m)",
        quantity="saved",
        value=0.89,
        text="89 % saved",
        grade="published",
    ),
    PaperFigure(
        network="overfeat",
        batch=128,
        policy="all (m)",
        quantity="saved",
        value=0.91,
        text="91 % saved",
        grade="published",
    ),
    PaperFigure(
        network="googlenet",
        batch=128,
        policy="all (m)",
        quantity="saved",
        value=0.95,
        text="95 % saved",
        grade="published",
    ),
    PaperFigure(
        network="vgg16",
        batch=256,
        policy="none (p)",
        quantity="total",
        value=28e9,
        text="28 GB",
        grade="published",
    ),
    PaperFigure(
        network="vgg16",
        batch=256,
        policy="dyn",
        quantity="slower",
        value=0.18,
        text="18 % slower",
        grade="published",
    ),
    PaperFigure(
        network="alexnet",
        batch=128,
        policy="none (p)",
        quantity="total",
        value=1.1e9,
        text="1.1 GB",
        grade="recalled",
    ),
    PaperFigure(
        network="vgg16",
        batch=128,
        policy="none (p)",
        quantity="total",
        value=14e9,
        text="14 GB",
        grade="recalled",
    ),
    PaperFigure(
        network="vgg416",
        batch=32,
        policy="none (m)",
        quantity="total",
        value=67.1e9,
        text="67.1 GB",
        grade="recalled",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproducedPolicy:
    """A network under a policy.

    Attributes:
        policy: name; (m) and (p) are the algorithms of convolutions
        accounting: of the memory
        fits: whether the peak fits the device
        peak_bytes: peak [bytes]
        mean_bytes: mean [bytes]
        bare_mean_bytes: mean without weights, their gradients and optimizer state [bytes]
        saved: saved share of the baseline's mean without weights
        slowdown: step time by that of the fastest algorithms without offload or recompute, minus 1: 0.02 is 2 %
        note: for the reader
    """

    policy: str
    accounting: Accounting
    fits: bool
    peak_bytes: int
    mean_bytes: int
    bare_mean_bytes: int
    saved: float
    slowdown: float
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproducedNetwork:
    """A network at a batch size.

    Attributes:
        network: name
        batch: samples of a step
        policies: in both accountings
        notes: for the reader
    """

    network: str
    batch: int
    policies: tuple[ReproducedPolicy, ...]
    notes: tuple[str, ...] = ()

    def figure(self, line: ReproducedPolicy) -> PaperFigure | None:
        """The paper's figure for it; None where there is none."""
        if line.accounting != "paper":
            return None
        return next(
            (
                figure
                for figure in PAPER_FIGURES
                if (figure.network, figure.batch, figure.policy) == (self.network, self.batch, line.policy)
            ),
            None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """All networks on a device.

    Attributes:
        device: title of the device
        paper_budget_bytes: memory for the paper's policies: its pool is the whole card [bytes]
        trace_budget_bytes: memory for a step of PyTorch: the card minus its context [bytes]
        networks: in order
        source: of the durations
    """

    device: str
    paper_budget_bytes: int
    trace_budget_bytes: int
    networks: tuple[ReproducedNetwork, ...]
    source: str


def reproduction_document(found: Reproduction) -> dict[str, object]:
    """All figures as plain data."""
    return {
        "device": found.device,
        "paper": SOURCE,
        "paper_budget_bytes": found.paper_budget_bytes,
        "trace_budget_bytes": found.trace_budget_bytes,
        "source": found.source,
        "networks": [
            {
                "network": network.network,
                "batch": network.batch,
                "policies": [
                    asdict(line) | {"paper": None if (figure := network.figure(line)) is None else asdict(figure)}
                    for line in network.policies
                ],
                "notes": list(network.notes),
            }
            for network in found.networks
        ],
    }


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
    """Read a list of networks such as "alexnet,vgg16:256"; without a batch, all batches of the paper.

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
        if colon and whole_number(batch, least=1) is None:
            raise InputError(f'expected a network as "vgg16:256", got "{part}": the batch is a count', network=part)
        found += [(name, int(batch))] if colon else [(name, batch_size) for batch_size in batches]
    return tuple(found)


def reproduce_vdnn(
    *, device: str = "titan-x", networks: str | None = None, progress: Progress = ignore_progress
) -> Reproduction:
    """Simulate the paper's networks under its policies and ours.

    Args:
        device: of the catalog
        networks: in the form of `parse_networks`; None: all of the paper
        progress: called with the current item

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
        costs = modelled_costs(trace, card, software=PAPER_SOFTWARE)
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
    device: Device


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


# ---------------------------------------------------------------------------------------------------------------------
# A reproduction for people: one table a network, readable at 80 columns and without colour


_SECTIONS: tuple[tuple[Accounting, str], ...] = (("paper", "buffers of 2016"), ("trace", "a step of PyTorch"))


def network_table(network: ReproducedNetwork) -> Table:
    """Policies in the paper's accounting, then in ours."""
    table = frame_table(
        f"{network.network}, batch {network.batch}",
        "peak, mean: memory of a step [GB]; w/o: the mean without weights, their gradients and the optimizer's state; "
        "saved: of that; slower: than none (p)\n"
        "fits: into the card; the paper: its figure, ~: recalled; (p): fastest convolutions, (m): without workspace",
    )
    add_words(table, "policy", no_wrap=True)
    add_figures(table, "peak", "mean", "w/o", "saved", "slower")
    add_words(table, "fits", "the paper", no_wrap=True)
    for accounting, title in _SECTIONS:
        lines = [line for line in network.policies if line.accounting == accounting]
        if not lines:
            continue
        table.add_row(f"[dim]{title}[/]")
        for line in lines:
            figure = network.figure(line)
            mark = "" if figure is None else figure.text + ("" if figure.grade == "published" else " ~")
            table.add_row(
                f"  {line.policy}",
                *(f"{nbytes / 1e9:.2f}" for nbytes in (line.peak_bytes, line.mean_bytes, line.bare_mean_bytes)),
                f"{100 * line.saved:.1f} %",
                f"{100 * line.slowdown:.1f} %",
                "yes" if line.fits else "no",
                mark,
            )
    return table


_APART = (
    ("saved", "saved memory by at most {:.0f} points"),
    ("total", "memory by at most {:.0f} %"),
    ("slower", "slowdowns by at most {:.0f} points"),
)


def verdict(found: Reproduction) -> str:
    """How far our figures are from the paper's, in a sentence."""
    apart: dict[str, list[float]] = {}
    for network in found.networks:
        for line in network.policies:
            figure = network.figure(line)
            if figure is not None:
                ours = {"saved": line.saved, "slower": line.slowdown, "total": line.peak_bytes / figure.value - 1}
                theirs = 0.0 if figure.quantity == "total" else figure.value
                apart.setdefault(figure.quantity, []).append(100 * abs(ours[figure.quantity] - theirs))
    said = [text.format(max(apart[quantity])) for quantity, text in _APART if quantity in apart]
    if not said:
        return f"vDNN on {found.device}, simulated: the paper has no figure of these networks."
    return (
        f"vDNN on {found.device}, simulated, differs from {format_count(sum(map(len, apart.values())), 'figure')} of "
        f"the paper: {', '.join(said)}."
    )


def accounting_lines(found: Reproduction) -> list[str]:
    """How to read the figures."""
    return [
        "Buffers of 2016: the paper's accounting. Feature maps (ReLU in place), gradient maps, workspace, weights "
        "twice; the baseline allocates all at once, with two gradient maps of the largest size; means are over time.",
        "A step of PyTorch: every storage as autograd holds it, with the optimizer's state, without workspaces; means "
        "are over the operations of forward and backward.",
        f"GB: 1e9 bytes; fits: into {format_bytes(found.paper_budget_bytes)} (the paper's pool is the whole card), "
        f"with PyTorch into {format_bytes(found.trace_budget_bytes)} (the card minus its context).",
        f"Times are {found.source}. Figures of the paper that are not recalled are in its abstract.",
    ]
