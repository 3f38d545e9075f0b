"""The study's networks, reduced, on the machine at hand: FP, BP and WU with both exchanges, predicted and measured."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from trimaran.report.framing import frame_table
from trimaran.report.reproduction.split_terms import TERMS, SplitTerms

MOST_MISSING = 0.01
"""By how much the parts of a step may differ from it."""

MOST_RECORDING = 0.02
"""By how much recording may lengthen a step."""

_COLUMNS = (
    ("FP", "forward_s"),
    ("BP", "backward_s"),
    ("exposed", "exposed_s"),
    ("update", "update_s"),
    ("other", "overhead_s"),
    ("step", "step_s"),
    ("hidden", "hidden_s"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredExchange:
    """One network with one exchange.

    Attributes:
        sync: "all-reduce" or "p2p"
        calls: collectives of gradients and weights in a step
        measured: where a step went
        predicted: the same as simulated
        recording: what recording adds to a step, as a share of it
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
            term: of `TERMS`, or "step" or "hidden"
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
        batch_per_device: samples of a rank
        gradient_bytes: of all gradients [bytes]
        tensors: trained parameters
        exchanges: all-reduce, then P2P
    """

    network: str
    form: str
    devices: int
    batch_per_device: int
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
        entry["error"] = {term: exchange.error(term) for term in (*TERMS, "hidden", "step")}
    return plain


def measured_table(network: MeasuredNetwork) -> Table:
    """Measured, predicted and error of each exchange, in milliseconds and shares of the step."""
    table = frame_table(
        f"{network.network}, {network.form}, {network.batch_per_device} samples a device; "
        f"{network.tensors} gradients of {network.gradient_bytes / 1e6:.1f} MB"
    )
    table.add_column("exchange", no_wrap=True)
    table.add_column("ms", no_wrap=True)
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
    """How the figures are meant, and whether they can be relied on."""
    exchanges = [exchange for network in networks for exchange in network.exchanges]
    missing = max((exchange.measured.missing for exchange in exchanges), key=abs)
    recording = max(exchange.recording for exchange in exchanges)
    return [
        "WU is exposed + update + other: communication while a rank waits, the optimizer, and loading, waiting for a "
        "peer and what the host does in between. hidden: communication while ranks compute; not part of the step. "
        "error: (predicted - measured) / measured step.",
        "all-reduce: DDP's buckets, every rank updates everything. p2p: every parameter has a home, which sums, "
        "updates and hands out, as MXNet's KVStore device. Networks are reduced: every layer is there, narrower.",
        f"The parts sum to the step within {100 * abs(missing):.2f} % "
        f"({'as they' if abs(missing) <= MOST_MISSING else 'NOT as they'} must, {100 * MOST_MISSING:.0f} %). Recording "
        f"costs up to {100 * recording:.1f} % of a step, {_count(exchanges)}.",
    ]


def _count(exchanges: Sequence[MeasuredExchange]) -> str:
    slow = sum(exchange.recording > MOST_RECORDING for exchange in exchanges)
    return f"more than {100 * MOST_RECORDING:.0f} % in {slow} of {len(exchanges)} measurements"
