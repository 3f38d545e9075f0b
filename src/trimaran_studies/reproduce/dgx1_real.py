"""The split of a step into FP, BP and WU, measured on this machine with both exchanges of the study.

The study's five networks, reduced, run on a few local processes. Gradients are exchanged by all-reduce, or by copies to
parameter owners and back. Each step is split by the recorded timeline (`report/breakdown`). The simulator predicts it
from the costs of operations, updates and transfers, which are measured just before. Only the ranks import torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.table import Table

from trimaran.base.errors import InputError
from trimaran.base.progress import Progress, ignore_progress
from trimaran.machine.detect import detect_machine
from trimaran.pricing.program import price
from trimaran.pricing.tables import CostTable, Curve, CurveKey
from trimaran.program.lowering.lower import lower
from trimaran.program.strategy import Strategy
from trimaran.report.tables import add_words, frame_table
from trimaran.simulator.engine import simulate
from trimaran_studies.reproduce.dgx1_networks import BATCH, STUDIED_FORMS
from trimaran_studies.reproduce.step_split import TERMS, SplitTerms, measured_terms, predicted_terms, recording_cost

if TYPE_CHECKING:
    from trimaran_studies.reproduce.dgx1_rank import RankFindings


# ---------------------------------------------------------------------------------------------------------------------
# The study's networks, reduced, on this machine: FP, BP and WU with both exchanges, predicted and measured


MOST_MISSING = 0.01
"""Largest allowed difference of the sum of the parts from the step, as a share of it."""

MOST_RECORDING = 0.02
"""Largest allowed cost of recording, as a share of the step."""

_COLUMNS = (
    ("FP", "forward_s"),
    ("BP", "backward_s"),
    ("exposed", "exposed_s"),
    ("update", "update_s"),
    ("other", "overhead_s"),
    ("step", "step_s"),
    ("overlapped", "overlapped_s"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredExchange:
    """One network with one exchange.

    Attributes:
        sync: "all-reduce" or "p2p"
        calls: collectives of gradients and weights in a step
        measured: split of the step
        predicted: the same, simulated
        recording: time that recording adds to a step, as a share of it
        steps: recorded
    """

    sync: str
    calls: int
    measured: SplitTerms
    predicted: SplitTerms
    recording: float
    steps: int

    def error(self, term: str) -> float:
        """Predicted minus measured, as a share of the measured step.

        Args:
            term: of `TERMS`, or "step" or "overlapped"
        """
        name = f"{term}_s"
        difference: float = getattr(self.predicted, name) - getattr(self.measured, name)
        return difference / self.measured.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredNetwork:
    """One network with both exchanges.

    Attributes:
        network: its name
        form: how it was reduced, for people
        devices: ranks
        local_batch: samples of a rank
        gradient_bytes: of all gradients [bytes]
        tensors: trained parameters
        exchanges: all-reduce, then P2P
    """

    network: str
    form: str
    devices: int
    local_batch: int
    gradient_bytes: int
    tensors: int
    exchanges: tuple[MeasuredExchange, ...]


def measured_document(networks: Sequence[MeasuredNetwork]) -> dict[str, Any]:
    """All figures as plain data, in seconds; `error` by term is (predicted - measured) / measured step."""
    return {"networks": [_network_document(network) for network in networks]}


def _network_document(network: MeasuredNetwork) -> dict[str, Any]:
    plain = asdict(network)
    for entry, exchange in zip(plain["exchanges"], network.exchanges, strict=True):
        entry["measured"]["wu_s"] = exchange.measured.wu_s
        entry["predicted"]["wu_s"] = exchange.predicted.wu_s
        entry["missing"] = exchange.measured.missing
        entry["error"] = {term: exchange.error(term) for term in (*TERMS, "overlapped", "step")}
    return plain


def measured_table(network: MeasuredNetwork) -> Table:
    """Measured, predicted and error of each exchange, in milliseconds and shares of the step."""
    table = frame_table(
        f"{network.network}, {network.form}, {network.local_batch} samples a device; "
        f"{network.tensors} gradients of {network.gradient_bytes / 1e6:.1f} MB"
    )
    add_words(table, "exchange", "ms", no_wrap=True)
    for title, _ in _COLUMNS:
        table.add_column(title, justify="right", no_wrap=True)
    for exchange in network.exchanges:
        for label, terms in (("measured", exchange.measured), ("predicted", exchange.predicted)):
            cells = [f"{1e3 * getattr(terms, name):.2f}" for _, name in _COLUMNS]
            table.add_row(exchange.sync if label == "measured" else "", label, *cells)
        errors = [f"{100 * exchange.error(name.removesuffix('_s')):+.0f} %" for _, name in _COLUMNS]
        table.add_row("", "error", *errors, style="dim")
    return table


def measured_lines(networks: Sequence[MeasuredNetwork]) -> list[str]:
    """How to read the figures, and whether they are reliable."""
    exchanges = [exchange for network in networks for exchange in network.exchanges]
    missing = max((exchange.measured.missing for exchange in exchanges), key=abs)
    recording = max(exchange.recording for exchange in exchanges)
    return [
        "WU is exposed + update + other: communication while a rank waits, the optimizer, and loading, waiting for a "
        "peer and other work of the host. overlapped: communication while ranks compute; not part of the step. "
        "error: (predicted - measured) / measured step.",
        "all-reduce: DDP's buckets, every rank updates all parameters. p2p: every parameter has an owner, which sums "
        "its gradients, updates it and sends it out, as in MXNet's KVStore. Networks are reduced: all layers, narrow.",
        f"The parts sum to the step within {100 * abs(missing):.2f} % "
        f"({'within' if abs(missing) <= MOST_MISSING else 'NOT within'} the allowed {100 * MOST_MISSING:.0f} %). "
        f"Recording costs up to {100 * recording:.1f} % of a step, {_count(exchanges)}.",
    ]


def _count(exchanges: Sequence[MeasuredExchange]) -> str:
    slow = sum(exchange.recording > MOST_RECORDING for exchange in exchanges)
    return f"more than {100 * MOST_RECORDING:.0f} % in {slow} of {len(exchanges)} measurements"


STEPS = 18
"""Timed steps of each exchange, with the record on, by default."""

_LEAST_STEPS = 8


def measure_dgx1(
    *,
    networks: str | None = None,
    devices: int = 2,
    steps: int = STEPS,
    progress: Progress = ignore_progress,
) -> tuple[MeasuredNetwork, ...]:
    """Measure the study's networks, reduced, on this machine.

    Args:
        networks: some of them, such as "lenet,resnet50"; None: all
        devices: processes, or GPUs where there are as many
        steps: timed, of each exchange
        progress: told what is being done

    Raises:
        InputError: an unknown network, fewer than two devices, more than there are, or too few steps
        ExecutionError: a rank failed
    """
    from trimaran.launch.supervise import launch
    from trimaran_studies.reproduce.dgx1_rank import measure_exchanges

    names = _names(networks)
    _check(devices, steps)

    def on_event(rank: int, event: Mapping[str, object]) -> None:
        if "measuring" in event and rank == 0 and event["measuring"] in names:
            progress(f"measuring {event['measuring']}", int(str(event["done"])), int(str(event["total"])))

    ranks = launch(measure_exchanges, (names, steps), ranks=devices, on_event=on_event)
    return _report(names, ranks, devices)


def _names(networks: str | None) -> tuple[str, ...]:
    names = tuple(STUDIED_FORMS) if networks is None else tuple(part.strip() for part in networks.split(","))
    for name in names:
        if name not in STUDIED_FORMS:
            raise InputError(f'"{name}" is not measured here; there are {", ".join(STUDIED_FORMS)}', network=name)
    return tuple(dict.fromkeys(names))


def _check(devices: int, steps: int) -> None:
    available = detect_machine().devices
    if not 2 <= devices <= available:
        raise InputError(
            f"an exchange needs from 2 devices to the {available} of this machine, got {devices}", devices=devices
        )
    if steps < _LEAST_STEPS:
        raise InputError(f"a median needs at least {_LEAST_STEPS} steps, got {steps}", steps=steps)


def _report(
    names: Sequence[str], ranks: "Sequence[Sequence[RankFindings]]", devices: int
) -> tuple[MeasuredNetwork, ...]:
    """Predict what was measured, and put both together.

    Links were measured with every network, and are the same for all: what is in the middle counts.
    """
    of_networks = list(zip(*ranks, strict=True))
    tables = [_table(of_ranks, devices) for of_ranks in of_networks]
    links = middle_curves([table.curves for table in tables])
    return tuple(
        _network(name, of_ranks, replace(table, curves=links))
        for name, of_ranks, table in zip(names, of_networks, tables, strict=True)
    )


def middle_curves(measured: Sequence[Mapping[CurveKey, Curve]]) -> dict[CurveKey, Curve]:
    """The median of several measurements, size by size where all have it; of two, the shorter.

    On a busy machine the time for a curve may be over before its largest sizes are measured.
    """
    found = {}
    for key in measured[0]:
        at = [dict(curves[key]) for curves in measured]
        found[key] = tuple(
            (size, sorted((costs[size] for costs in at), key=lambda cost: cost.seconds)[(len(at) - 1) // 2])
            for size in at[0]
            if all(size in costs for costs in at)
        )
    return found


def _table(of_ranks: "Sequence[RankFindings]", devices: int) -> CostTable:
    from trimaran.measure.costs import fingerprint_here
    from trimaran.measure.findings import assemble

    graph = of_ranks[0].graph
    findings = [rank.findings for rank in of_ranks]
    return assemble(findings, None, graph, job=graph.digest, fingerprint=fingerprint_here(devices))


def _network(name: str, of_ranks: "Sequence[RankFindings]", table: CostTable) -> MeasuredNetwork:
    from trimaran_studies.reproduce.dgx1_rank import strategies

    graph, devices = of_ranks[0].graph, len(of_ranks)
    trained = [parameter for parameter in graph.parameters if parameter.trainable]
    return MeasuredNetwork(
        network=name,
        form=STUDIED_FORMS[name].text,
        devices=devices,
        local_batch=BATCH,
        gradient_bytes=sum(parameter.nbytes for parameter in trained),
        tensors=len(trained),
        exchanges=tuple(_exchange(strategy, of_ranks, table) for strategy in strategies(devices)),
    )


def _exchange(strategy: Strategy, of_ranks: "Sequence[RankFindings]", table: CostTable) -> MeasuredExchange:
    from trimaran.runtime.record import WATCH_EVERY

    graph, batch = of_ranks[0].graph, BATCH * strategy.dp
    program = lower(graph, strategy, batch=batch)
    costs = price(program, graph, strategy, table, detect_machine(strategy.dp).allocate(), batch=batch)
    steps = [rank.steps[strategy.sync] for rank in of_ranks]
    timeline = steps[0].timeline
    return MeasuredExchange(
        sync=strategy.sync,
        calls=sum(item.segment is not None and bool(item.group) for item in program.ranks[0]),
        measured=measured_terms(
            program,
            timeline,
            [rank.recorded for rank in steps],
            watched={number for number in timeline.steps if number % WATCH_EVERY == 0},
        ),
        predicted=predicted_terms(program, simulate(program, costs)),
        recording=recording_cost(steps[0].recorded, steps[0].plain, every=WATCH_EVERY),
        steps=sum(map(len, steps[0].recorded)),
    )
