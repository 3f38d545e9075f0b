"""Reproduces a study of data parallelism on a DGX-1: five networks, three batches, 1 to 8 V100, two exchanges.

The setting of the study is public, its figures are not: MXNet with copies between devices or with NCCL, 32-bit, each
device with its own batch. A ratio is public for the same machine and software: the speed of NCCL by the speed of copies
on eight devices. Ours is judged by it.

The published ratio, on eight V100 of one machine: Apache's wiki gives the speedup of MXNet's tree over NCCL and over
copies, for training on synthetic data. Their quotient is the speedup of NCCL over copies. The only batch that the page
states is 4 samples a device (its figure 7), and its subject is small batches, so 4 is taken for all networks, in the
form of MXNet's examples. Two constants are fitted to these ratios, where MXNet's copies and its calls are between the
ends of what is known of them (docs/decisions/0054): to those of `FITTED_RATIOS`, and the others judge them; and, for
each network, to the three others, which judges it.

Source:
    cwiki.apache.org, MXNET: Single machine All Reduce Topology-aware Communication (2018).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

from rich.table import Table

from trimaran.base.errors import InputError
from trimaran.base.progress import Progress, ignore_progress
from trimaran.features.scaling import predict_scaling
from trimaran.machine.find import find_machine
from trimaran.planning.data_parallel_job import DataParallelJob
from trimaran.planning.requests import default_software
from trimaran.pricing.exchange.frameworks import mxnet_recipes
from trimaran.pricing.exchange.step import Sync
from trimaran.pricing.kernels.software import Software
from trimaran.program.json_files import to_plain
from trimaran.report.scaling import ScalingRow
from trimaran.report.tables import add_figures, add_words, frame_table
from trimaran.simulator.data_parallel import DataParallelSetup, step_seconds
from trimaran.simulator.exchange_comparison import Ratio, speed_ratio, step_ends


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRatio:
    """Speedups of MXNet's tree on a network.

    Attributes:
        over_copies: speed of the tree by the speed of the copies
        over_nccl: speed of the tree by the speed of NCCL
    """

    over_copies: float
    over_nccl: float

    @property
    def nccl_over_copies(self) -> float:
        """Speed of NCCL by the speed of the copies.

        Example:
            >>> round(PublishedRatio(over_copies=6.60, over_nccl=1.42).nccl_over_copies, 2)
            4.65
        """
        return self.over_copies / self.over_nccl


RATIO_BATCH = 4
"""Samples of a device in the runs with a published ratio, as declared before any prediction."""

MXNET_FORMS = {"alexnet": "alexnet-mxnet"}
"""Networks whose form in MXNet's examples differs from the usual one."""

PUBLISHED_RATIOS = {
    "alexnet": PublishedRatio(over_copies=6.60, over_nccl=1.42),
    "inception_v3": PublishedRatio(over_copies=1.15, over_nccl=1.34),
    "resnet50": PublishedRatio(over_copies=1.19, over_nccl=1.33),
    "vgg16": PublishedRatio(over_copies=5.89, over_nccl=1.06),
}
"""Published ratios, by network."""

FITTED_RATIOS = ("alexnet", "resnet50")
"""Networks that the constants of the package are fitted to; the others judge them."""


# ---------------------------------------------------------------------------------------------------------------------
# Tables and JSON of the study: FP, BP and WU of each set-up, published ratios


@dataclass(frozen=True, slots=True, kw_only=True)
class StudiedNetwork:
    """One network on every set-up.

    Attributes:
        network: its name
        rows: by batch, method and devices
        published: its public ratio; None: there is none
        predicted: speed of NCCL by that of copies at the batch and in the form of the public ratio, between the ends of
            what nobody has measured; None: there is no public ratio
    """

    network: str
    rows: tuple[ScalingRow, ...]
    published: PublishedRatio | None
    predicted: Ratio | None = None

    def ratio(self, batch: int, devices: int) -> float | None:
        """Speed of NCCL by the speed of copies; None where one of them is missing."""
        found = {
            row.sync: row.samples_per_s for row in self.rows if row.local_batch_size == batch and row.devices == devices
        }
        return found["nccl"] / found["kvstore"] if {"nccl", "kvstore"} <= found.keys() else None

    @property
    def batches(self) -> tuple[int, ...]:
        """Batches of a device, in order."""
        return tuple(dict.fromkeys(row.local_batch_size for row in self.rows))


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
    """FP, BP and WU in milliseconds: a line for each batch and number of devices, with both methods."""
    table = frame_table(network.network)
    add_figures(table, "batch", "GPUs", "FP")
    for sync in ("kvstore", "nccl"):
        for name in ("BP", "WU", "samples/s"):
            table.add_column(f"{name}\n{sync}" if name != "BP" else f"BP\n{sync}", justify="right", no_wrap=True)
    add_figures(table, "nccl/kvstore")
    pairs: dict[tuple[int, int], dict[str, ScalingRow]] = {}
    for row in network.rows:
        pairs.setdefault((row.local_batch_size, row.devices), {})[row.sync] = row
    for (batch, devices), rows in pairs.items():
        cells = [str(batch), str(devices), _ms(rows["kvstore"].forward_s)]
        for sync in ("kvstore", "nccl"):
            row = rows[sync]
            cells += [_ms(row.backward_s), _ms(row.wu_exposed_s), f"{row.samples_per_s:,.0f}"]
        ratio = network.ratio(batch, devices)
        table.add_row(*cells, "" if ratio is None or devices == 1 else f"{ratio:.2f}")
    return table


def ratio_table(networks: Sequence[StudiedNetwork]) -> Table:
    """Speed of NCCL by the speed of copies on eight devices, by batch; and as published, with whether it agrees."""
    table = frame_table("speed of NCCL by that of copies, 8 GPUs")
    add_words(table, "network", no_wrap=True)
    for batch in networks[0].batches:
        add_figures(table, str(batch))
    add_figures(table, f"at {RATIO_BATCH}", "interval", "public")
    add_words(table, "faster", no_wrap=True)
    for network in networks:
        ours = ["" if ratio is None else f"{ratio:.2f}" for ratio in (network.ratio(b, 8) for b in network.batches)]
        judged = ["", "", "", ""]
        if network.predicted is not None and network.published is not None:
            found = network.predicted
            judged = [
                f"{found.value:.2f}",
                f"{found.low:.2f}-{found.high:.2f}",
                f"{network.published.nccl_over_copies:.2f}",
                faster_words(found),
            ]
        table.add_row(network.network, *ours, *judged)
    return table


def faster_words(ratio: Ratio) -> str:
    """Which method is faster, by the speed of NCCL by that of copies.

    Example:
        >>> faster_words(Ratio(value=1.2, low=0.8, high=1.5)), faster_words(Ratio(value=2.0, low=1.5, high=3.0))
        ('not sure', 'nccl')
    """
    return "not sure" if ratio.faster is None else "nccl" if ratio.faster else "kvstore"


def ratio_lines(networks: Sequence[StudiedNetwork]) -> list[str]:
    """Whether predictions agree with what is published."""
    judged = [one for one in networks if one.predicted is not None and one.published is not None]
    if not judged:
        return []
    inside = sum(one.predicted.covers(one.published.nccl_over_copies) for one in judged)  # type: ignore[union-attr]
    wrong = [
        one.network
        for one in judged
        if one.predicted.faster not in (None, one.published.nccl_over_copies > 1.0)  # type: ignore[union-attr]
    ]
    return [
        f"{inside} of {len(judged)} published ratios are within the interval, which goes from one method with all that "
        "nobody has measured at its best to the other. Where it has 1 in it, it is not sure which is faster; "
        + ("no other winner is wrong." if not wrong else f"wrong: {', '.join(wrong)}."),
    ]


def exchange_document(found: ReproducedExchange) -> dict[str, Any]:
    """The study as plain data."""
    return {
        "cluster": found.cluster,
        "software": found.software,
        "networks": [
            {
                "network": network.network,
                "published_nccl_over_kvstore": None
                if network.published is None
                else network.published.nccl_over_copies,
                "predicted_nccl_over_kvstore": None
                if network.predicted is None
                else _ratio_document(network.predicted),
                "nccl_over_kvstore": {str(batch): network.ratio(batch, 8) for batch in network.batches},
                "rows": to_plain(network.rows),
            }
            for network in found.networks
        ],
    }


def _ratio_document(ratio: Ratio) -> dict[str, Any]:
    return {
        "local_batch_size": RATIO_BATCH,
        "ratio": ratio.value,
        "interval": [ratio.low, ratio.high],
        "faster": None if ratio.faster is None else faster_words(ratio),
    }


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}"


STUDIED_NETWORKS = ("lenet", "alexnet", "googlenet", "inception_v3", "resnet50")
"""The study's networks; ResNet in the size of the public ratio."""

BATCHES = (16, 32, 64)
DEVICES = (1, 2, 4, 8)
_CLUSTER = "dgx1-v100"
_METHODS: tuple[Sync, Sync] = ("nccl", "kvstore")


def reproduce_dgx1(
    *,
    networks: str | None = None,
    batches: tuple[int, ...] = BATCHES,
    devices: tuple[int, ...] = DEVICES,
    progress: Progress = ignore_progress,
) -> ReproducedExchange:
    """Predict every network on every set-up, including the networks with a public ratio.

    Args:
        networks: some of them, such as "alexnet,resnet50"; None: all
        batches: of a device
        devices: sizes of the group
        progress: called with the current item

    Raises:
        InputError: a network that is neither of the study nor has a public ratio
    """
    known = tuple(dict.fromkeys((*STUDIED_NETWORKS, *PUBLISHED_RATIOS)))
    names = known if networks is None else tuple(part.strip() for part in networks.split(","))
    for name in names:
        if name not in known:
            raise InputError(f'"{name}" is not of this study; there are {", ".join(known)}', network=name)
    software = default_software(("kvstore", "nccl"))
    found = []
    for place, name in enumerate(dict.fromkeys(names)):
        progress(name, place, len(names))
        result = predict_scaling(name, cluster=_CLUSTER, devices=devices, local_batch=batches, sync=("kvstore", "nccl"))
        published = PUBLISHED_RATIOS.get(name)
        predicted = None if published is None else predicted_ratio(name, software)
        found.append(StudiedNetwork(network=name, rows=result.rows, published=published, predicted=predicted))
    return ReproducedExchange(cluster=_CLUSTER, software=software.text, networks=tuple(found))


def predicted_ratio(network: str, software: Software) -> Ratio:
    """Speed of NCCL by the speed of copies on eight devices, in the set-up of the published ratios.

    Args:
        network: with a published ratio
        software: framework and year
    """
    nccl, copies = (step_ends(setup) for setup in _setups(network, software))
    return speed_ratio(nccl, copies)


@cache
def _setups(network: str, software: Software) -> tuple[DataParallelSetup, ...]:
    reference = MXNET_FORMS.get(network, network)
    job = DataParallelJob(reference=reference, machine=find_machine(_CLUSTER), software=software)
    return tuple(job.setup(RATIO_BATCH, 8, sync=sync) for sync in _METHODS)


# ---------------------------------------------------------------------------------------------------------------------
# Two constants of MXNet's exchanges from some of the ratios, and the ratios that are left out


COPIES_PLACES = (0.0, 0.25, 0.5, 0.75, 1.0)
CALLS_PLACES = tuple(tenth / 10 for tenth in range(11))


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRatio:
    """A ratio by constants that were fitted to ratios of other networks.

    Attributes:
        network: that is judged
        fitted: networks that the constants were fitted to
        copies: place of copies between their ends, as `mxnet_recipes` has it
        calls: place of calls between theirs
        value: predicted ratio
    """

    network: str
    fitted: tuple[str, ...]
    copies: float
    calls: float
    value: float

    @property
    def error(self) -> float:
        """Predicted / published − 1."""
        return self.value / PUBLISHED_RATIOS[self.network].nccl_over_copies - 1.0


def fit_places(networks: Sequence[str], software: Software) -> tuple[float, float]:
    """Where copies and calls are between their ends: the least sum of squared logarithms of predicted / published.

    Args:
        networks: whose published ratios are fitted to
        software: framework and year
    """

    def squares(places: tuple[float, float]) -> float:
        return sum(
            math.log(_ratio_at(network, software, *places) / PUBLISHED_RATIOS[network].nccl_over_copies) ** 2
            for network in networks
        )

    return min(product(COPIES_PLACES, CALLS_PLACES), key=squares)


def judged_ratios(software: Software) -> tuple[JudgedRatio, ...]:
    """Each ratio from the three others, then the two that `FITTED_RATIOS` leave out.

    Args:
        software: framework and year
    """
    known = tuple(sorted(PUBLISHED_RATIOS))
    splits = [(name, tuple(other for other in known if other != name)) for name in known]
    splits += [(name, FITTED_RATIOS) for name in known if name not in FITTED_RATIOS]
    judged = []
    for network, fitted in splits:
        copies, calls = fit_places(fitted, software)
        value = _ratio_at(network, software, copies, calls)
        judged.append(JudgedRatio(network=network, fitted=fitted, copies=copies, calls=calls, value=value))
    return tuple(judged)


@cache
def _ratio_at(network: str, software: Software, copies: float, calls: float) -> float:
    recipes = mxnet_recipes(copies=copies, calls=calls)
    nccl_s, copies_s = (
        step_seconds(replace(setup, options=replace(setup.options, recipe=recipe, explain=False)))
        for setup, recipe in zip(_setups(network, software), recipes, strict=True)
    )
    return copies_s / nccl_s
