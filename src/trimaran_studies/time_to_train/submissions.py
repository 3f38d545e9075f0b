"""Submissions to a benchmark round: reads lines of results, and selects the submissions that another is predicted from.

A line names the submitter and a label of the system, such as "NVIDIA dgxa100_n8_ngc22.04_mxnet". Facts without a column
(nodes, devices of processors, the generation of a TPU) are read from the label.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trimaran.base.errors import InputError
from trimaran.machine.catalog import find_link
from trimaran.machine.types import Machine
from trimaran_studies.facts.machine_labels import match_machine
from trimaran_studies.published.rows import figure
from trimaran_studies.validation.measurement import Row

_NODES = (
    r"_n(\d+)(?:_|$)",
    r"^(\d+)x(?=[A-Z])",
    r"_(\d+)N(?:_|$)",
    r"-N(\d+)$",
    r"(\d+)[-_]nodes?",
    r"_N(\d+)$",
    r"^(\d+)(?=R\d{4})",
)
"""Patterns of the number of nodes in labels."""

_SOCKETS = r"-(\d+)s(?:-|_|$)"
"""Pattern of the number of processors in labels of processors."""

_SERVERS = {"C4140": 4, "DSS8440": 8, "XE8545": 4, "R750xa": 4, "XE9680": 8, "HLS-1H": 4}
"""Devices of a node by the name of the server."""

_FRAMEWORKS = ("mxnet", "pytorch", "hugectr", "tensorflow", "jax", "paddle", "mindspore", "popart")
_SHORT = {"TF": "tensorflow", "TF1": "tensorflow", "TF2.0": "tensorflow", "PT": "pytorch"}

_OPEN = ("open", "-methods", "-baseline", "shampoo")
"""Words of open entries, which change the network or the recipe."""

_OWN_CARDS = ("nvidia", "azure", "samsung", "baidu", "hazyresearch", "azure-hazyresearch", "google")
"""Submitters with a network card for one or two devices: DGX, ND clouds, pods. Others have one for four devices."""

_STAND_IN = "NVIDIA A100-SXM4-80GB"
"""Device whose curves and links stand for devices missing in the catalog; one measured run gives their speed."""

_MOST = 10**6
"""Upper limit of the devices of a submission, above every published one."""

_MOST_SAMPLES = 10**9
"""Upper limit of the samples of a step, likewise."""

_ONE_DEVICE = 512
"""Samples up to which a batch of round 0.5 is one device's, above which it is global: its logs have both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A line of results, as understood.

    Attributes:
        row: the line
        submitter: in small letters
        software: framework; "" where the label does not name it
        round: such as "v2.1"
        benchmark: name in the row
        kind: of device: name in the catalog, or the words of its label
        devices: in use
        batch: samples of a step, all devices together
        minutes: to the target
        logged: amount of training in its log, in a unit that depends on the code; None where there is none
        open: whether it is an open entry, with other rules
        machine: nodes and fabric; a stand-in where `known` is False
        known: whether the catalog has the device
    """

    row: Row
    submitter: str
    software: str
    round: str
    benchmark: str
    kind: str
    devices: int
    batch: int
    minutes: float
    logged: float | None
    open: bool
    machine: Machine
    known: bool

    @property
    def version(self) -> float:
        """The round as a number: 2.1 of "v2.1"; 0 where it has none."""
        return figure(self.round.lstrip("v")) or 0.0


def read_submission(row: Row) -> Submission:
    """Read a line of results.

    Args:
        row: with the columns model, machine, global_batch

    Raises:
        InputError: it has no time, batch or number of devices
    """
    if row.measured <= 0:
        raise InputError(f"row {row.row_id}: no time to train is published", code="submission.no-time", row=row.row_id)
    submitter, _, system = row.fields.get("machine", "").partition(" ")
    system = system or submitter
    devices = _devices(row, system)
    batch = int(figure(row.fields.get("global_batch", "")) or 0)
    if batch < 1:
        raise InputError(f"row {row.row_id}: no global batch is published", code="submission.no-batch", row=row.row_id)
    for name, count, most in (("devices", devices, _MOST), ("samples of a step", batch, _MOST_SAMPLES)):
        if count > most:
            raise InputError(
                f"row {row.row_id}: {count:.4g} {name} are not plausible: at most {most:.0g} are accepted",
                code="submission.impossible-count",
                row=row.row_id,
            )
    version = row.fields.get("round", "")
    if version.lstrip("v").startswith("0.5") and batch <= _ONE_DEVICE:
        batch *= devices
    accelerator = row.fields.get("gpu", "")
    nodes = _first(_NODES, system)
    named = accelerator if re.search(r"[a-zA-Z]\d{2}", accelerator) else f"{accelerator} {_plain(system)}"
    found = match_machine("", named, devices=devices, nodes=nodes)
    machine = found or match_machine("", _STAND_IN, devices=devices, nodes=nodes)
    if machine is None:
        raise InputError(f"row {row.row_id}: the catalog has no device to stand in", row=row.row_id)
    return Submission(
        row=row,
        submitter=submitter.lower(),
        software=_software(system),
        round=version,
        benchmark=row.fields.get("model", "").lower(),
        kind=found.device.name if found is not None else _kind(accelerator, system),
        devices=devices,
        batch=batch,
        minutes=row.measured,
        logged=figure(row.fields.get("to_target_mean", "")),
        open=any(word in system.lower() for word in _OPEN),
        machine=_joined(machine.machine, submitter),
        known=found is not None,
    )


def anchors_of(target: Submission, every: Sequence[Submission]) -> tuple[Submission, ...]:
    """The submissions that a target is predicted from: the smallest ones, of its submitter and software if possible.

    Args:
        target: to be predicted
        every: of all rows

    Returns:
        All with the same preference and number of devices; none where no smaller one is of the same kind.
    """
    smaller = [one for one in every if _alike(one, target) and one.devices < target.devices]
    if not smaller:
        return ()
    best = min(_standing(one, target) for one in smaller)
    return tuple(one for one in smaller if _standing(one, target) == best)


def _joined(machine: Machine, submitter: str) -> Machine:
    """The machine with the network of submitted machines: InfiniBand, also for plain servers."""
    if machine.fabric is None or submitter.lower() in _OWN_CARDS:
        return machine
    count, link = machine.fabric
    cards = max(1, machine.node.devices // 4)
    if "ib" in link.name:
        return replace(machine, fabric=(min(count, cards), link))
    return replace(machine, fabric=(cards, find_link("ib-hdr")))


def _alike(one: Submission, other: Submission) -> bool:
    same = one.round == other.round and one.benchmark == other.benchmark and one.open == other.open
    return same and one.kind == other.kind


def _standing(one: Submission, target: Submission) -> tuple[bool, bool, int]:
    known = one.software and target.software
    return one.submitter != target.submitter, bool(known and one.software != target.software), one.devices


def _devices(row: Row, system: str) -> int:
    if "multi" in system and _first(_NODES, system) is None:
        raise InputError(
            f'row {row.row_id}: "{system}" describes several sizes at once: how many devices took part is not said',
            code="submission.several-sizes",
            row=row.row_id,
        )
    cores = re.fullmatch(r"tpu-?v\d-(\d+)", row.fields.get("gpu", "").lower())
    if cores is not None:
        return int(cores.group(1))
    said = int(figure(row.fields.get("n_gpus", "")) or 0)
    if said > 0:
        return said
    nodes = _first(_NODES, system) or 1
    server = next((count for name, count in _SERVERS.items() if name in system), None)
    if server is not None:
        return nodes * server
    sockets = _first((_SOCKETS,), system)
    if sockets is not None:
        return sockets
    if nodes > 1:
        return nodes
    raise InputError(
        f"row {row.row_id}: how many devices took part is not published",
        code="submission.no-device-count",
        row=row.row_id,
    )


def _first(patterns: Sequence[str], text: str) -> int | None:
    for pattern in patterns:
        if (found := re.search(pattern, text)) is not None:
            return int(found.group(1))
    return None


def _plain(system: str) -> str:
    return re.sub(r"[_-]+", " ", system)


def _kind(accelerator: str, system: str) -> str:
    """The words of a device that the catalog does not have, without the number of devices."""
    if "tpu" in f"{accelerator} {system}".lower():
        found = re.search(r"v(\d)", f"{accelerator} {system}".lower())
        return f"tpu v{found.group(1)}" if found else "tpu"
    text = accelerator if accelerator.upper() not in ("", "NA", "N/A") else re.sub(r"\d+-nodes?|-\d+s\b", "", system)
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


def _software(system: str) -> str:
    plain = system.lower()
    for name in _FRAMEWORKS:
        if name in plain:
            return name
    words = re.split(r"[-_ ]", system)
    return next((name for short, name in _SHORT.items() if short in words), "")
