"""A study of exchanges on one machine, for people and programs: FP, BP and WU of each set-up, published ratios."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from trimaran.report.framing import frame_table
from trimaran.report.reproduction.exchange_figures import PublishedRatio
from trimaran.report.scaling.document import row_document
from trimaran.report.scaling.study import ScalingRow


@dataclass(frozen=True, slots=True, kw_only=True)
class StudiedNetwork:
    """One network on every set-up.

    Attributes:
        network: its name
        rows: by batch, method and devices
        published: what is public of it; None: nothing
    """

    network: str
    rows: tuple[ScalingRow, ...]
    published: PublishedRatio | None

    def ratio(self, batch: int, devices: int) -> float | None:
        """Speed of NCCL by that of copies; None where one of them is missing."""
        found = {
            row.step.sync: row.samples_per_s
            for row in self.rows
            if row.step.batch_per_device == batch and row.step.devices == devices
        }
        return found["nccl"] / found["p2p"] if {"nccl", "p2p"} <= found.keys() else None

    @property
    def batches(self) -> tuple[int, ...]:
        """Batches of a device, in order."""
        return tuple(dict.fromkeys(row.step.batch_per_device for row in self.rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproducedExchange:
    """All networks.

    Attributes:
        cluster: the machine
        software: framework and year
        networks: in order
    """

    cluster: str
    software: str
    networks: tuple[StudiedNetwork, ...]


def studied_table(network: StudiedNetwork) -> Table:
    """FP, BP and WU in milliseconds: a line for each batch and number of devices, both methods beside each other."""
    table = frame_table(network.network)
    for name in ("batch", "GPUs", "FP"):
        table.add_column(name, justify="right", no_wrap=True)
    for sync in ("p2p", "nccl"):
        for name in ("BP", "WU", "samples/s"):
            table.add_column(f"{name}\n{sync}" if name != "BP" else f"BP\n{sync}", justify="right", no_wrap=True)
    table.add_column("nccl/p2p", justify="right", no_wrap=True)
    pairs: dict[tuple[int, int], dict[str, ScalingRow]] = {}
    for row in network.rows:
        pairs.setdefault((row.step.batch_per_device, row.step.devices), {})[row.step.sync] = row
    for (batch, devices), rows in pairs.items():
        cells = [str(batch), str(devices), _ms(rows["p2p"].step.forward_s)]
        for sync in ("p2p", "nccl"):
            step = rows[sync].step
            cells += [_ms(step.backward_s), _ms(step.wu_exposed_s), f"{rows[sync].samples_per_s:,.0f}"]
        ratio = network.ratio(batch, devices)
        table.add_row(*cells, "" if ratio is None or devices == 1 else f"{ratio:.2f}")
    return table


def ratio_table(networks: Sequence[StudiedNetwork], devices: int = 8) -> Table:
    """NCCL by copies on eight devices, ours and what is published."""
    table = frame_table(f"speed of NCCL by that of copies, {devices} GPUs")
    table.add_column("network", no_wrap=True)
    batches = networks[0].batches
    for batch in batches:
        table.add_column(f"batch {batch}", justify="right", no_wrap=True)
    table.add_column("published", justify="right", no_wrap=True)
    for network in networks:
        ours = (network.ratio(batch, devices) for batch in batches)
        public = "" if network.published is None else f"{network.published.nccl_over_copies:.2f}"
        table.add_row(network.network, *("" if ratio is None else f"{ratio:.2f}" for ratio in ours), public)
    return table


def exchange_document(found: ReproducedExchange) -> dict[str, Any]:
    """The study as plain data."""
    return {
        "cluster": found.cluster,
        "software": found.software,
        "networks": [
            {
                "network": network.network,
                "published_nccl_over_p2p": None if network.published is None else network.published.nccl_over_copies,
                "nccl_over_p2p": {str(batch): network.ratio(batch, 8) for batch in network.batches},
                "rows": [row_document(row) for row in network.rows],
            }
            for network in found.networks
        ],
    }


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}"
