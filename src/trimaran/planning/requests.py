"""Request of a user for a plan: number of devices, memory, links, objective.

A memory budget as people give it: a size, or a share of the job's memory without offload or recompute.

A share is for experiments: it is known only once a step was recorded. A size counts everything that a step holds on the
device: parameters, gradients, optimizer state, activations.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from trimaran.base.errors import InputError, did_you_mean
from trimaran.base.precision import AS_ASKED, ASKED_PRECISIONS, Precision, parse_precision
from trimaran.base.units import (
    MOST_COUNTED,
    MOST_SEQUENCE,
    parse_bytes,
    parse_large,
    parse_memory,
    parse_rate,
    whole_number,
)
from trimaran.machine.find import find_machine, grown_cluster
from trimaran.machine.prices import Price, parse_price
from trimaran.machine.types import Link
from trimaran.planner.pins import NO_PINS, Pins
from trimaran.planner.target_estimates import LEAST_SAVED
from trimaran.planning.measured_jobs import MeasuredJob, read_measured
from trimaran.pricing.analytical.fits_device import Reserve
from trimaran.pricing.analytical.lengths import Documents, parse_documents
from trimaran.pricing.analytical.programs import FRAMEWORK_NAMES
from trimaran.pricing.exchange.step import Sync
from trimaran.pricing.failures import ASSUMED, DAY_S, Reliability, parse_reliability
from trimaran.pricing.kernels.software import FRAMEWORKS, Software
from trimaran.program.plan_file import Objective
from trimaran.program.strategy import read_strategy

# ---------------------------------------------------------------------------------------------------------------------
# Options of a scaling study, as users write them


SYNCS: tuple[Sync, ...] = ("nccl", "kvstore", "server", "byteps")
_LARGEST = 1 << 20


def parse_counts(text: str, *, what: str) -> tuple[int, ...]:
    """Counts as a list, or as powers of two between two numbers.

    Args:
        text: such as "1,2,4,8" or "8..1024"
        what: name of the counted items, for the message

    Raises:
        InputError: not counts, or a range that ends before it starts

    Example:
        >>> parse_counts("1,2,6", what="devices"), parse_counts("8..64", what="devices")
        ((1, 2, 6), (8, 16, 32, 64))
        >>> parse_counts("1..6", what="devices")
        (1, 2, 4, 6)
    """
    counts: list[int] = []
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        least, most = (whole_number(one, least=1, most=_LARGEST) for one in (first, last if dots else first))
        if least is None or most is None:
            raise InputError(
                f'expected {what} such as "1,2,4,8" or "8..1024", at most {_LARGEST:,}, got "{text}"',
                code="scaling.bad-batches",
                text=text,
            )
        if most < least:
            raise InputError(f'{what}: "{part}" ends before it starts', code="scaling.range-backwards", text=text)
        counts += _doubled(least, most) if dots else [least]
    return tuple(dict.fromkeys(counts))


def devices_given(given: int | Sequence[int] | None, *, cluster: str, usual: str) -> tuple[int, ...]:
    """Numbers of devices; where nobody says them the usual ones, as far as a cluster has them.

    Args:
        given: one or several numbers; None: nobody says them
        cluster: a machine of the catalog or a file; without a number of nodes it grows
        usual: as of `parse_counts`

    Raises:
        InputError: not counts, or no such machine

    Example:
        >>> devices_given(None, cluster="dgx-h100:2", usual="8..64")
        (8, 16)
        >>> devices_given(64, cluster="dgx-h100:2", usual="8..64")
        (64,)
    """
    if given is not None:
        return counts_given(given, what="devices")
    counts = parse_counts(usual, what="devices")
    most = find_machine(grown_cluster(cluster, max(counts))).devices
    return tuple(count for count in counts if count <= most) or (most,)


def parse_scaled_batches(
    batch: str | None, local_batch: str | None, *, global_batch: str | None = None, strong: bool = False
) -> tuple[tuple[int, ...], Literal["weak", "strong"], tuple[str, ...]]:
    """Batches of a scaling study, whether they are of each device or of all, and notes on their spelling.

    Args:
        batch: of all devices together, such as "512" or "512..4096"
        local_batch: of each device, such as "16,32"; 64 where nothing is said
        global_batch: old spelling of `batch`
        strong: old spelling, which `batch` implies

    Raises:
        InputError: batches of both kinds, or a strong scaling without a batch

    Example:
        >>> parse_scaled_batches(None, "16,32")
        ((16, 32), 'weak', ())
        >>> parse_scaled_batches("512", None)[:2]
        ((512,), 'strong')
    """
    together = batch or global_batch
    if together is None and not strong:
        return parse_counts(local_batch or "64", what="local batches"), "weak", ()
    if together is None or local_batch is not None or (batch and global_batch):
        raise InputError(
            "give one of --batch, samples of all devices together (strong scaling), and --local-batch, samples of each "
            "device (weak scaling)",
            code="scaling.not-one-batch",
        )
    if global_batch is not None or strong:
        old = "--strong" if global_batch is None else "--global-batch"
        note = f"{old} is an old spelling: --batch is of all devices together"
    else:
        note = (
            f"--batch {together} is of all devices together, as in every command; for {together} samples on each "
            f"device ask for --local-batch {together}"
        )
    return parse_counts(together, what="batches"), "strong", (note,)


def parse_syncs(text: str) -> tuple[Sync, ...]:
    """Methods of exchange, such as "kvstore,nccl".

    Raises:
        InputError: an unknown one; "p2p" too, which is the exchange of plans

    Example:
        >>> parse_syncs("kvstore, nccl")
        ('kvstore', 'nccl')
    """
    found: list[Sync] = []
    for part in text.split(","):
        asked = part.strip().lower()
        known = [sync for sync in SYNCS if sync == asked]
        if not known:
            meant = (
                ': MXNet\'s exchange, tensor by tensor, is "kvstore"; "p2p" is that of plans (`trimaran plan`), with '
                "buckets that are summed and updated at their owners"
            )
            raise InputError(
                f'gradients are exchanged by {", ".join(SYNCS)}; got "{part.strip()}"{meant if asked == "p2p" else ""}',
                code="scaling.unknown-sync",
                sync=part,
            )
        found += known
    return tuple(dict.fromkeys(found))


def parse_software(text: str) -> Software:
    """A framework and, after a colon, its year; "trimaran" is Trimaran's runtime, on PyTorch of the year.

    Raises:
        InputError: a year that is none, or a framework without figures

    Example:
        >>> parse_software("mxnet:2018.5").year, parse_software("trimaran").framework
        (2018.5, 'pytorch')
    """
    framework, colon, year = text.strip().lower().partition(":")
    if not framework or (colon and not re.fullmatch(r"20[1-4]\d(\.\d+)?", year)):
        raise InputError(f'expected a framework such as "pytorch" or "mxnet:2018.5", got "{text}"', text=text)
    ours = framework == "trimaran"
    if not ours and framework not in (*FRAMEWORKS, *FRAMEWORK_NAMES):
        raise InputError(
            f'no figures of the framework "{framework}"'
            + did_you_mean(framework, ("trimaran", *FRAMEWORKS, *FRAMEWORK_NAMES)),
            code="software.unknown",
            framework=framework,
        )
    return Software(
        framework="pytorch" if ours else framework,
        year=float(year) if colon else Software().year,
        gradient_views=ours,
        source="as asked for",
    )


def parse_measured(text: str) -> tuple[float, int | None]:
    """A figure of one device: samples a second, and the batch it was measured at where that is said.

    Raises:
        InputError: not a figure such as "363 images/s"

    Example:
        >>> parse_measured("363 images/s"), parse_measured("1.2e3 samples/s at 64")
        ((363.0, None), (1200.0, 64))
    """
    pattern = r"\s*([0-9]*\.?[0-9]+(?:e[+]?[0-9]+)?)\s*(?:\w+\s*/\s*s(?:ec)?)?\s*(?:(?:at|@)\s*([0-9]+))?\s*"
    match = re.fullmatch(pattern, text, flags=re.IGNORECASE)
    if match is None or float(match[1]) <= 0.0 or match[2] == "0":
        raise InputError(f'expected a figure such as "363 images/s" or "363 images/s at 64", got "{text}"', text=text)
    return float(match[1]), int(match[2]) if match[2] else None


def parse_figures(text: str) -> tuple[tuple[float, int | None], ...]:
    """One figure of one device, or several of different batches: samples a second, and the batch.

    Raises:
        InputError: not a figure; several of which one does not say its batch, or two of one batch

    Example:
        >>> parse_figures("251 images/s at 16, 364 images/s at 128")
        ((251.0, 16), (364.0, 128))
    """
    figures = tuple(parse_measured(part) for part in text.split(","))
    batches = [batch for _, batch in figures]
    if len(figures) > 1 and (None in batches or len(set(batches)) < len(batches)):
        raise InputError(
            'several figures need a batch each, all different, such as "251 images/s at 16, 364 images/s at 128"; '
            f'got "{text}"',
            text=text,
        )
    return figures


def check_spread(spread: float) -> float:
    """A spread of the work of batches, as it is.

    Raises:
        InputError: not a share of the mean

    Example:
        >>> check_spread(0.1)
        0.1
    """
    if not 0.0 <= spread < 1.0:
        raise InputError(
            f"the spread of batches is their standard deviation by their mean, from 0 to below 1, got {spread:g}; "
            "batches of sentences as they come have about 0.1",
            length_spread=spread,
        )
    return spread


def check_traced(software: Software) -> Software:
    """Software whose kernels are priced one by one, as those of traced networks are; others are refused.

    Args:
        software: as asked for

    Raises:
        InputError: its figures are of decoders by their shape
    """
    if software.framework not in FRAMEWORKS:
        raise InputError(
            f"--software {software.text}: it has figures of decoders by their shape, which `trimaran plan` "
            f"takes; kernels of a traced network are known of {', '.join(FRAMEWORKS)}, or trimaran",
            code="software.not-of-kernels",
            software=software.text,
        )
    return software


def counts_given(given: int | Sequence[int], *, what: str) -> tuple[int, ...]:
    """One or several whole numbers from 1 on, in the given order.

    Args:
        given: by a program
        what: they count, for the message

    Raises:
        InputError: something else, or nothing

    Example:
        >>> counts_given(8, what="devices"), counts_given((1, 2), what="devices")
        ((8,), (1, 2))
    """
    found = tuple(given) if isinstance(given, Sequence) else (given,)
    if not found or any(type(count) is not int or not 1 <= count <= MOST_COUNTED for count in found):
        raise InputError(
            f"{what}: expected a whole number from 1 to {MOST_COUNTED:,}, or several, got {given!r}",
            code="request.bad-count",
            what=what,
        )
    return found


def default_software(syncs: tuple[Sync, ...]) -> Software:
    """Software for some methods of exchange: copies between devices are MXNet's, so the rest is compared within it.

    Example:
        >>> default_software(("kvstore", "nccl")).framework, default_software(("nccl",)).framework
        ('mxnet', 'pytorch')
    """
    if "kvstore" in syncs or "server" in syncs:
        return Software(framework="mxnet", year=2018.5, source="assumed: MXNet of 2018, whose KVStore copies so")
    return Software()


def _doubled(first: int, last: int) -> list[int]:
    counts = []
    while first < last:
        counts.append(first)
        first *= 2
    return [*counts, last]


# ---------------------------------------------------------------------------------------------------------------------
# The input pipeline of a target cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """How each node of a target cluster loads data, as users write it; nothing: data are always ready.

    Attributes:
        loader: a rate of a node ("1070 images/s"), of a worker ("135 images/s per worker"), of a published row ("1070
            images/s with 8 workers"); a library ("torchvision"); or "measured": the job's data set on this machine
        decode: work of a core for a sample, such as "7.4 ms"
        disk: rate of the disk of a node, which its devices share, such as "500 MB/s"
        sample_size: what a sample takes on that disk, such as "110 kB"
        host_cores: cores of a node that load; None: all, less one for each of its devices
        copies_ahead: microbatches that are copied to a device before they are asked for; 0: when asked for; None: 1
    """

    loader: str | None = None
    decode: str | None = None
    disk: str | None = None
    sample_size: str | None = None
    host_cores: int | None = None
    copies_ahead: int | None = None

    @property
    def is_given(self) -> bool:
        """Whether anything is said."""
        return self != NO_LOADING


NO_LOADING = Loading()


def check_loading(loading: Loading, *, workers: int | None) -> None:
    """Refuse options of an input pipeline that contradict each other, or that nothing would depend on.

    Args:
        loading: the options
        workers: of each rank; None: not said

    Raises:
        InputError: naming them
    """
    for option, count, least in (("host-cores", loading.host_cores, 1), ("copies-ahead", loading.copies_ahead, 0)):
        if count is not None and count < least:
            raise InputError(
                f"--{option}: expected {least} or more, got {count}", code="loading.bad-count", option=option
            )
    loads = any(one is not None for one in (loading.loader, loading.decode, loading.disk))
    for option, value in (("--workers", workers), ("--host-cores", loading.host_cores)):
        if value is not None and not loads:
            raise InputError(
                f"{option} {value} with --cluster needs the cost of loading: give --loader or --decode",
                code="loading.no-cost",
                option=option,
            )
    for option, given, needed in (
        ("--disk", loading.disk, loading.sample_size),
        ("--sample-size", loading.sample_size, loading.disk),
    ):
        if given is not None and needed is None:
            raise InputError(
                f"{option} {given}: what a sample takes of a disk follows from --disk and --sample-size together; give "
                "both",
                code="loading.disk-and-size",
                option=option,
            )
    if loading.sample_size is not None and parse_bytes(loading.sample_size) <= 0:
        raise InputError(
            f"--sample-size {loading.sample_size}: a sample takes some bytes of the disk; leave --disk and "
            "--sample-size out where nothing is read from it",
            code="loading.no-sample-size",
            option="sample-size",
        )
    if loading.loader is not None and loading.decode is not None:
        raise InputError(
            f"--loader {loading.loader} and --decode {loading.decode} say the same, how long a sample takes: leave one "
            "of them out",
            code="loading.loader-and-decode",
        )


# ---------------------------------------------------------------------------------------------------------------------
# Request for a training to a target: a curve, batches, limits, prices


def _check_amount(given: float | None, *, option: str, unit: float = 1.0) -> None:
    """Refuse a figure that is none above 0, in the unit of its option."""
    is_number = isinstance(given, float | int)
    if given is not None and not (is_number and 0.0 < given < math.inf):
        shown = f"{given / unit:g}" if is_number else repr(given)
        raise InputError(f"{option}: expected a number above 0, got {shown}", code="target.bad-amount", option=option)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRequest:
    """Request for a training to a target.

    Attributes:
        curve: name in the catalog, or a file; None: the job's own
        batches: global batches that may be taken; empty: those that the curve is known for
        most_local_batch: samples of a replica in one update; None: as memory allows
        price: of devices; None: that of the cluster file
        least_saved: a doubling of the devices that saves less than this share of the time is not worth it
        samples_per_epoch: of the data that is trained on; None: of the job's, or as the curve says
        tokens: to train on, in place of a curve; None: not said
        within_s: the training shall end within this time [s]; None: any
        budget: the training shall cost no more, in the currency of its price; None: any amount
        budget_currency: that the amount is in; "": not said, that of the price
        counts: numbers of devices that are compared; empty: as the objective needs
        reliability: failures, storage and repairs of the cluster, with `tokens`
    """

    curve: str | None = None
    batches: tuple[int, ...] = ()
    most_local_batch: int | None = None
    price: Price | None = None
    least_saved: float = LEAST_SAVED
    samples_per_epoch: int | None = None
    tokens: float | None = None
    within_s: float | None = None
    budget: float | None = None
    budget_currency: str = ""
    counts: tuple[int, ...] = ()
    reliability: Reliability = ASSUMED

    def __post_init__(self) -> None:
        if not 0.0 <= self.least_saved < 1.0:
            raise InputError(
                f"--least-saved is a share of the time, from 0 to below 1, got {self.least_saved:g}",
                code="accuracy.bad-least-saved",
                share=self.least_saved,
            )
        _check_amount(self.tokens, option="--tokens")
        _check_amount(self.within_s, option="--days", unit=DAY_S)
        _check_amount(self.budget, option="--budget")
        for what, given in (
            ("samples of a replica", self.most_local_batch),
            ("samples of an epoch", self.samples_per_epoch),
            ("batches", self.batches or None),
            ("devices", self.counts or None),
        ):
            if given is not None:
                counts_given(given, what=what)

    @property
    def compares(self) -> bool:
        """Whether several numbers of devices are to be compared."""
        return len(self.counts) > 1 or self.within_s is not None or self.budget is not None

    @property
    def is_asked(self) -> bool:
        """Whether anything is."""
        return self != NO_TARGET


NO_TARGET = TargetRequest()


def parse_target(
    *,
    curve: str | None = None,
    batches: str | None = None,
    most_local_batch: int | None = None,
    price: str | None = None,
    least_saved: float = LEAST_SAVED,
    samples_per_epoch: int | None = None,
    tokens: str | float | None = None,
    days: float | None = None,
    budget: str | float | None = None,
    counts: tuple[int, ...] = (),
    **failures: Any,
) -> TargetRequest:
    """A request as it is written on the command line.

    Args:
        curve: as in `TargetRequest`
        batches: such as "64,128" or "64..4096", doublings
        most_local_batch: as in `TargetRequest`
        price: such as "24.48 USD/node-hour"
        least_saved: as in `TargetRequest`
        samples_per_epoch: as in `TargetRequest`
        tokens: such as "15T"
        days: within which the training shall end
        budget: such as "1M USD" or "2e6"
        counts: as in `TargetRequest`
        failures: of the cluster, as of `parse_reliability`

    Raises:
        InputError: texts that mean nothing, or a share outside 0 to 1

    Example:
        >>> parse_target(batches="64..200").batches
        (64, 128, 200)
    """
    amount, currency = (None, "") if budget is None else _parse_budget(budget)
    return TargetRequest(
        curve=curve,
        batches=() if batches is None else tuple(sorted(parse_counts(batches, what="batches"))),
        most_local_batch=most_local_batch,
        price=None if price is None else parse_price(price),
        least_saved=least_saved,
        samples_per_epoch=samples_per_epoch,
        tokens=None if tokens is None else parse_large(tokens, what="tokens"),
        within_s=None if days is None else days * DAY_S,
        budget=amount,
        budget_currency=currency,
        counts=counts,
        reliability=parse_reliability(**failures),
    )


def _check_target(target: TargetRequest, *, batch: int | None) -> None:
    """Refuse options about a training whose length nobody says, and two that say the same.

    Args:
        target: as it was read
        batch: that the request fixes; None: it leaves it open

    Raises:
        InputError: naming the options
    """
    if batch is not None and target.batches:
        several = ",".join(map(str, target.batches))
        raise InputError(
            f"--batch {batch} fixes the batch, --batches {several} leaves it open: give one of them",
            code="accuracy.batch-and-batches",
        )
    if target.curve is not None and target.tokens is not None:
        raise InputError(
            f"--curve {target.curve} says how much training there is, and so does --tokens {target.tokens:g}: give one "
            "of them",
            code="tokens.and-curve",
        )
    if target.samples_per_epoch is not None and target.tokens is not None:
        raise InputError(
            f"--samples-per-epoch {target.samples_per_epoch}: a training of --tokens {target.tokens:g} does not count "
            "epochs; leave it out",
            code="tokens.and-epochs",
        )
    for option, given in (
        ("--days", target.within_s is not None),
        ("--budget", target.budget is not None),
        ("--mtbf and its like", target.reliability != ASSUMED),
    ):
        if given and target.tokens is None and (target.curve is None or option.startswith("--mtbf")):
            raise InputError(
                f"{option}: about a training of a given length; give --tokens, such as --tokens 15T",
                code="tokens.length-unknown",
                option=option,
            )


def _parse_budget(text: str | float) -> tuple[float, str]:
    """An amount of money, and its currency; "" where none is said.

    Example:
        >>> _parse_budget("1.5M USD"), _parse_budget("$2k"), _parse_budget(7)
        ((1500000.0, 'USD'), (2000.0, 'USD'), (7.0, ''))
    """
    signs = {"$": "USD", "€": "EUR", "£": "GBP"}
    plain = str(text).strip()
    named = ""
    for sign, currency in signs.items():
        if sign in plain:
            plain, named = plain.replace(sign, ""), currency
    found = re.fullmatch(r"(.*?)\s*([A-Za-z]{3})", plain)
    if found and found[1] and not named:
        plain, named = found[1], found[2].upper()
    return parse_large(plain, what="an amount"), named


Executions = Literal["any", "eager", "compiled"]
"""How segments may be run; "any" lets the plan decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportBinding:
    """The runtime that a plan is exported to.

    Attributes:
        target: its name, as `--to` says it
        asked: the request without it
        bind: gives a request for plans that the runtime can run
    """

    target: str
    asked: "PlanRequest"
    bind: Callable[["PlanRequest"], "PlanRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Request for a plan: objective, devices and limits.

    Attributes:
        cluster: machine of the catalog, such as "dgx1-v100" or "dgx1-v100:8@ethernet-25g"; "": this machine
        devices: most devices that may take part; None: all of the machine
        batch: samples of one update over all devices; None: the job's
        memory_bytes: memory that each device may use [bytes]; None: all of it
        reserve: of that, what stays free for what is not counted, where the analytical model plans; None: not said
        oversubscribe: allow more ranks than this machine has devices
        link: rate limit of the links between local ranks of this machine; None: not limited
        objective: to optimize; None: throughput, or the objective of a given plan
        execution: how segments may be run
        calibration: file of `trimaran doctor --measure` whose figures are used; None: the kept ones of this machine
        measured: a step of the job that was measured, from which predictions start on a machine of the catalog
        precision: of compute on a machine of the catalog; None: not said, and `planning.precision` chooses
        precision_source: who chose it
        software: framework and year, on a machine of the catalog; None: not said
        options: of the job, on a machine of the catalog
        pins: decisions of the user
        time_limit_s: work after which the search takes the best that it has, so that an answer repeats [s of an idle
            core of the reference]; None: it ends by itself
        gap: the search may stop when its best is within this share of the lower bound
        target: curve, batches and prices of a training to a target
        accept_inexact: plans by which something else would be trained than by one process are not refused
        loading: input pipeline of a machine of the catalog; nothing: data are always ready there
        documents: of which the sequences of a decoder consist; None: of one each, as long as the sequence
        expert_imbalance: visits to the experts of the busiest rank, by those of a rank if all had the same
        bound: runtime that the plan is exported to; None: none is named
    """

    cluster: str = ""
    devices: int | None = None
    batch: int | None = None
    memory_bytes: int | None = None
    reserve: Reserve | None = None
    oversubscribe: bool = False
    link: Link | None = None
    objective: Objective | None = None
    execution: Executions = "any"
    calibration: Path | None = None
    measured: MeasuredJob | None = None
    precision: Precision | None = None
    precision_source: str = AS_ASKED
    software: Software | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    pins: Pins = NO_PINS
    time_limit_s: float | None = None
    gap: float = 0.0
    target: TargetRequest = NO_TARGET
    accept_inexact: bool = False
    loading: Loading = NO_LOADING
    documents: Documents | None = None
    expert_imbalance: float = 1.0
    bound: ExportBinding | None = None

    @property
    def is_here(self) -> bool:
        """Whether the plan is for this machine."""
        return not self.cluster

    @property
    def asks_for_outlook(self) -> bool:
        """Whether batches are compared, or a training to a target is asked for."""
        return self.objective in ("time", "cost") or self.target.is_asked


EVERYTHING = PlanRequest()


def parse_request(
    *,
    cluster: str | None = None,
    memory: str | int | None = None,
    reserve: str | None = None,
    link: str | None = None,
    objective: str | None = None,
    execution: str = "any",
    precision: str | None = None,
    software: str | None = None,
    sequence: int | None = None,
    lengths: str | None = None,
    packing: str | None = None,
    measured: str | None = None,
    **given: Any,
) -> PlanRequest:
    """A request as it is written on the command line.

    Args:
        cluster: as in `PlanRequest`; None: this machine
        memory: such as "12GiB", or a number [bytes]
        reserve: such as "3GiB" or "5%"
        link: a rate such as "1Gb/s"
        objective: "throughput", "epoch", "time" or "cost"; None as in `PlanRequest`
        execution: "any", "eager" or "compiled"
        precision: "ieee", "fp32", "tf32", "bf16", "fp16" or "fp8", or a long name of one; None as in `PlanRequest`
        software: such as "pytorch:2022"; None as in `PlanRequest`
        sequence: tokens of a sequence, an option of the job; None: the job's
        lengths: of documents, such as "512:0.4,2048:0.6", or a file, as of `parse_documents`
        packing: how they become sequences: "packed", "causal" or "padded"; None: packed
        measured: what `read_measured` reads: here a file of `trimaran doctor --measure`, on a cluster a step of the job
        given: the other fields of `PlanRequest`, as they are

    Raises:
        InputError: a text that means nothing, or an option that means nothing there or here

    Example:
        >>> request = parse_request(memory="1KiB", link="1Gb/s")
        >>> request.memory_bytes, request.link.bytes_per_s
        (1024, 125000000.0)
    """
    for what in ("devices", "batch"):
        if given.get(what) is not None:
            counts_given(given[what], what=what)
    job_measured = None if measured is None else read_measured(measured)
    if job_measured is not None and job_measured.kind == "calibration":
        given["calibration"], job_measured = job_measured.file, None
    others = PlanRequest(cluster=cluster or "", measured=job_measured, **given)
    _check_target(others.target, batch=others.batch)
    gap, limit_s, imbalance = others.gap, others.time_limit_s, others.expert_imbalance
    if not 0.0 <= gap <= 1.0:
        raise InputError(
            f"--gap is a share from 0 to 1, such as 0.05 for 5 %, got {gap:g}", code="plan.bad-gap", gap=gap
        )
    if limit_s is not None and not 0.0 <= limit_s < math.inf:
        raise InputError(
            f"--time-limit is a duration of 0 s or more, got {limit_s:g}",
            code="plan.bad-time-limit",
            time_limit_s=limit_s,
        )
    _check_searched(others)
    if cluster is not None and others.devices is not None:
        cluster = grown_cluster(cluster, others.devices)
    said: dict[str, object] = {
        "link": link,
        "calibration": others.calibration,
        "measured": None if job_measured is None else job_measured.text,
        "oversubscribe": others.oversubscribe or None,
        "accept-inexact": others.accept_inexact or None,
    }
    said |= {"precision": precision, "software": software, "lengths": lengths, "packing": packing}
    said |= {"expert-imbalance": None if imbalance == 1.0 else imbalance, "sequence": sequence}
    said |= {name.replace("_", "-"): value for name, value in asdict(others.loading).items()}
    _check_place(said, objective=objective, is_here=cluster is None)
    if cluster is not None:
        find_machine(cluster)  # no name means this machine only where none is said
        check_loading(others.loading, workers=others.pins.workers)
        if packing is not None and lengths is None:
            raise InputError(
                f"--packing {packing}: of documents whose lengths are not given; say --lengths",
                code="lengths.packing-alone",
                packing=packing,
            )
        if not 1.0 <= imbalance <= _LARGEST:
            raise InputError(
                f"--expert-imbalance: by the balanced load the busiest rank has 1 to {_LARGEST:,}, got {imbalance:g}",
                code="experts.bad-imbalance",
                imbalance=imbalance,
            )
    return replace(
        others,
        cluster=cluster or "",
        memory_bytes=None if memory is None else parse_memory(memory),
        reserve=None if reserve is None else parse_reserve(reserve),
        link=None if link is None else parse_link(link),
        objective=None if objective is None else _one_of(objective, Objective, "objective"),
        execution=_execution_of(_one_of(execution, Executions, "execution"), others.pins),
        precision=None if precision is None else parse_precision(precision, known=ASKED_PRECISIONS),
        software=None if software is None else parse_software(software),
        options={} if sequence is None else {"sequence": str(sequence)},
        documents=None if lengths is None else parse_documents(lengths, packing or "packed"),
    )


def _check_searched(request: PlanRequest) -> None:
    """Refuse limits of a search with a whole strategy, where only a placement leaves something to search."""
    strategy = request.pins.strategy
    if not strategy or read_strategy(strategy).parts:
        return
    for option, given in (("--gap", request.gap > 0.0), ("--time-limit", request.time_limit_s is not None)):
        if given:
            raise InputError(
                f'{option} ends a search, and --strategy "{strategy}" leaves none: leave one of them out',
                code="pin.strategy-and-search",
                option=option,
            )


def cost_options(request: PlanRequest) -> tuple[str, ...]:
    """Options that the costs of a plan depend on and that its file says nowhere else, as the command line has them.

    Args:
        request: for a machine of the catalog

    Example:
        >>> cost_options(parse_request(cluster="dgx-h100", software="megatron:2023", reserve="5%"))
        ('--software megatron:2023', '--reserve 5.0%')
    """
    documents = request.documents
    said = {
        "software": request.software and request.software.text,
        "reserve": request.reserve and request.reserve.text,
        "lengths": documents and documents.text,
        "packing": documents and documents.packing,
        "expert-imbalance": None if request.expert_imbalance == 1.0 else repr(request.expert_imbalance),
        **request.options,
        **{name.replace("_", "-"): value for name, value in asdict(request.loading).items()},
    }
    return tuple(f"--{name} {value}" for name, value in said.items() if value is not None)


def with_cost_options(request: PlanRequest, options: tuple[str, ...]) -> PlanRequest:
    """A request with the options of `cost_options` that it does not say itself.

    Args:
        request: of the user
        options: of a plan

    Raises:
        InputError: one that means nothing

    Example:
        >>> with_cost_options(PlanRequest(cluster="dgx-h100"), ("--software megatron:2023",)).software.year
        2023.0
    """
    named = _values_of(options)
    given = parse_request(
        cluster=request.cluster,
        software=named.get("software"),
        reserve=named.get("reserve"),
        lengths=named.get("lengths"),
        packing=named.get("packing"),
        expert_imbalance=parse_large(named.get("expert-imbalance", "1"), what="an imbalance of experts"),
        sequence=whole_number(named.get("sequence", ""), most=MOST_SEQUENCE),
        loading=loading_of(options),
    )
    if unread := named.keys() - {one.split(" ")[0].removeprefix("--") for one in cost_options(given)}:
        raise InputError(
            f"the plan names the options {', '.join(sorted(unread))} with values that mean nothing here: plan again",
            code="plan.unread-options",
            options=tuple(sorted(unread)),
        )
    return replace(
        request,
        software=request.software or given.software,
        reserve=request.reserve or given.reserve,
        documents=request.documents or given.documents,
        expert_imbalance=given.expert_imbalance if request.expert_imbalance == 1.0 else request.expert_imbalance,
        options={**given.options, **request.options},
        loading=request.loading if request.loading.is_given else given.loading,
    )


def loading_of(options: tuple[str, ...], given: Loading = NO_LOADING) -> Loading:
    """The input pipeline among the options of `cost_options`, with what is said anew.

    Args:
        options: of a plan
        given: by the user; what says how long a sample takes is in the place of all that the plan says of that

    Example:
        >>> loading_of(("--decode 7ms", "--host-cores 4"), Loading(host_cores=8))
        Loading(loader=None, decode='7ms', disk=None, sample_size=None, host_cores=8, copies_ahead=None)
    """
    named = _values_of(options)
    texts = {one.name: named.get(one.name.replace("_", "-")) for one in fields(Loading)}
    if any((given.loader, given.decode, given.disk, given.sample_size)):
        texts |= dict.fromkeys(("loader", "decode", "disk", "sample_size"))
    said: dict[str, Any] = dict(texts)
    said |= {name: whole_number(texts[name] or "") for name in ("host_cores", "copies_ahead")}
    return Loading(**said | {name: value for name, value in asdict(given).items() if value is not None})


def _values_of(options: tuple[str, ...]) -> dict[str, str]:
    """Values of options of `cost_options`, by name."""
    return {name.removeprefix("--"): value for name, _, value in (words.partition(" ") for words in options)}


def _execution_of(asked: Executions, pins: Pins) -> Executions:
    """How segments may run, where a pinned strategy says it.

    Raises:
        InputError: the strategy runs otherwise than is asked
    """
    says: Executions = "compiled" if "compiled" in pins.strategy.split() else "eager"
    if pins.strategy and asked not in ("any", says):
        other = "is compiled" if says == "compiled" else "runs eager"
        raise InputError(
            f'--execution {asked}: --strategy "{pins.strategy}" {other}, as it says; leave --execution out, or '
            f'{"leave the word out" if says == "compiled" else "add the word"} "compiled" '
            f"{'of' if says == 'compiled' else 'to'} the strategy",
            code="plan.execution-and-strategy",
            strategy=pins.strategy,
        )
    return "compiled" if asked == "any" and says == "compiled" else asked


def check_not_analytical(request: PlanRequest) -> None:
    """Refuse what only the analytical model knows: types of gradients and of the optimizer's state, and a reserve.

    Args:
        request: for a plan with a program

    Raises:
        InputError: with the option
    """
    given = [f"--{option} {value}" for option, value in request.pins.types.items()]
    given += ["--reserve"] if request.reserve is not None else []
    if given:
        raise InputError(
            f"{given[0]} is for transformers that the analytical model plans: here the job's own optimizer and "
            "gradients are counted, as they are; leave it out",
            code="plan.option-analytical",
            option=given[0],
        )


_OF_THIS_MACHINE = ("link", "calibration", "oversubscribe", "accept-inexact")
_OLD_NAMES = {"calibration": "measured FILE of `trimaran doctor --measure`"}
_INSTEAD = {
    "precision": "here a job computes as `Job.precision` says",
    "software": "here its operations are measured",
    "measured": "here its operations are measured, or taken from a file of `trimaran doctor --measure`",
    "sequence": "here a job is trained on its data; a published one takes JOB:sequence=N",
    **dict.fromkeys(("lengths", "packing", "expert-imbalance"), "here steps of the job's own data are measured"),
}
"""What is in the place of options of catalog machines here; loading is measured."""


def _check_place(said: Mapping[str, object], *, objective: str | None, is_here: bool) -> None:
    """Refuse options of this machine in a request for one of the catalog, and the other way round.

    Args:
        said: options with their values; None: not said
        objective: of the request; None: not said
        is_here: it is for this machine
    """
    given = [option for option, value in said.items() if value is not None]
    wrong = next((option for option in given if (option in _OF_THIS_MACHINE) is not is_here), None)
    if wrong is not None and is_here:
        raise InputError(
            f"--{wrong} is for plans with --cluster: {_INSTEAD.get(wrong, 'here loading is measured')}; leave it out",
            code="plan.option-needs-cluster",
            option=wrong,
        )
    if wrong is not None:
        raise InputError(
            f"--{_OLD_NAMES.get(wrong, wrong)} is for plans of this machine and means nothing on a cluster: leave it "
            "out",
            code="plan.option-of-this-machine",
            option=wrong,
        )
    if objective == "epoch" and not is_here:
        raise InputError(
            "--objective epoch is for plans of this machine, where evaluation is measured, and means nothing on a "
            "cluster: leave it out",
            code="target.epoch-objective",
        )


def parse_reserve(text: str) -> Reserve:
    """Memory that stays free, as it is written on the command line.

    Args:
        text: a size, or a share such as "5%"

    Raises:
        InputError: neither, or a share that leaves nothing

    Example:
        >>> parse_reserve("3GiB").nbytes // 2**30, parse_reserve("5%").share
        (3, 0.05)
    """
    number, percent, rest = text.strip().partition("%")
    if not percent:
        return Reserve(nbytes=0 if number == "0" else parse_bytes(number))
    if rest or not re.fullmatch(r"[0-9]+(\.[0-9]*)?", number.strip()) or float(number) >= 100.0:
        raise InputError(
            f'--reserve is a size such as "3GiB" or a share from 0% to below 100%, got "{text}"',
            code="plan.bad-reserve",
            text=text,
        )
    return Reserve(share=float(number) / 100.0)


def parse_link(text: str) -> Link:
    """A link between local ranks as it is written on the command line.

    Args:
        text: a rate such as "1Gb/s"

    Raises:
        InputError: a text that means no rate
    """
    return Link(bytes_per_s=parse_rate(text), latency_s=0.0, source=f"asked: {text}")


def _one_of(text: str, choices: object, what: str):  # type: ignore[no-untyped-def]  # the literal it was checked against
    if text not in get_args(choices):
        raise InputError(f'{what} must be one of {", ".join(get_args(choices))}, got "{text}"', value=text)
    return text
