"""Predicts published times of collectives: the meaning of a row's bytes, and the method of its timing.

Programs count bytes differently. nccl-tests counts the whole buffer, and its usual run launches on all devices from one
thread. Mist's and Aceso's tables are of their profiler: torch.distributed, timed by the host's clock with the device
idle before; the size of an all-gather is one rank's part; all-gather and reduce-scatter use lists of tensors, so torch
copies the gathered buffer once more. About a fifth of the sizes in those tables are not multiples of a vector's width;
NCCL's kernels of the time ran at half the rate for them on NVLink. The tables do not say which sizes these are, so only
the interval includes it.

Source: Aceso's profiler of communication (microsoft/Aceso, profiler/); nccl-tests doc/PERFORMANCE.md.
"""

from dataclasses import dataclass

from trimaran.base.errors import InputError
from trimaran.machine.types import Device, Machine
from trimaran.pricing.collectives.algorithms import collective_cost
from trimaran.pricing.collectives.formulas import OPERATIONS
from trimaran.pricing.collectives.links import family, group_of
from trimaran_studies.facts.machine_labels import MatchedMachine, match_machine
from trimaran_studies.validation.measurement import Answer, Row, cells_read

_NAMES = {
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
    "p2p": "send_recv",
    "point_to_point": "send_recv",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "bcast": "broadcast",
}
_COPY_LAUNCH_S = 5e-6

MISALIGNED = 2.0
"""Upper end of the interval where a buffer's parts may not be aligned to 16 bytes: half the rate. Cards on PCIe
are limited by their slots before that."""

_YEARS = {"k80": 2016.0, "titan": 2017.0, "p100": 2018.0, "v100": 2020.0, "t4": 2020.0, "a100": 2021.5}
_PROFILER_YEAR = 2022.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meaning:
    """The collective of a row.

    Attributes:
        op: the operation
        nbytes: whole buffer [bytes]
        library: that took the time
        year: of the library
        copied_bytes: read and written once more, in addition to the collective [bytes]
        copies: launches of these copies
        may_be_misaligned: whether parts of the buffer may not be aligned to vectors of memory
    """

    op: str
    nbytes: float
    library: str
    year: float
    copied_bytes: float = 0.0
    copies: int = 0
    may_be_misaligned: bool = False


def answer_collectives(row: Row) -> Answer:
    """Predict a published time of a collective.

    Args:
        row: of the family "collectives"; its figure in microseconds

    Returns:
        Time in microseconds with its 90 % interval.

    Raises:
        InputError: an unknown operation or machine, or a cell that is not a number
    """
    devices = _count(row, "n_gpus")
    found = match_machine(row.fields.get("machine", ""), row.fields.get("gpu", ""), devices=devices, nodes=_nodes(row))
    if found is None:
        raise InputError(
            f'{row.row_id}: no machine is known by "{row.fields.get("machine", "")}" '
            f'with "{row.fields.get("gpu", "")}"',
            code="collective-row.unknown-machine",
        )
    asked = _meaning(row, devices, found)
    cost = collective_cost(
        asked.op,
        asked.nbytes,
        machine=found.machine,
        devices=devices,
        nodes=found.machine.nodes,
        library=asked.library,
        year=asked.year,
    )
    more = _copy_time(asked, found.device)
    slower = MISALIGNED if asked.may_be_misaligned and _own_links(found.machine, devices) else 1.0
    return Answer(
        row=row,
        predicted=(cost.seconds + more) * 1e6,
        low=(cost.low + 0.9 * more) * 1e6,
        high=(slower * cost.high + 1.1 * more) * 1e6,
    )


def _meaning(row: Row, devices: int, found: MatchedMachine) -> _Meaning:
    op = row.fields.get("op", "").strip().lower().replace("-", "_")
    op = _NAMES.get(op, op)
    if op not in OPERATIONS:
        raise InputError(
            f'{row.row_id}: a collective is one of {", ".join(OPERATIONS)}, got "{op}"',
            code="collective-row.unknown-collective",
        )
    nbytes = float(_count(row, "bytes"))
    if "mist" in row.fields.get("source_file", "").lower() or "mist" in row.fields.get("source_repo", "").lower():
        gathered = nbytes * devices if op == "all_gather" else nbytes
        listed = op in ("all_gather", "reduce_scatter")
        return _Meaning(
            op=op,
            nbytes=gathered,
            library="torch.distributed by the host's clock",
            year=_PROFILER_YEAR,
            copied_bytes=gathered if listed else 0.0,
            copies=devices if listed else 0,
            may_be_misaligned=op in ("all_gather", "reduce_scatter", "all_to_all"),
        )
    year = next((year for name, year in _YEARS.items() if name in found.device.name), 2024.0)
    return _Meaning(op=op, nbytes=nbytes, library="nccl-tests", year=year)


def _own_links(machine: Machine, devices: int) -> bool:
    return family(group_of(machine, devices, machine.nodes)) == "links"


def _copy_time(asked: _Meaning, device: Device) -> float:
    """Time of the copies in addition to the collective, each byte read and written [s]."""
    bandwidth = device.sustained_bytes_per_s
    return 2 * asked.copied_bytes / bandwidth + asked.copies * _COPY_LAUNCH_S


def _nodes(row: Row) -> int | None:
    text = row.fields.get("n_nodes", "") or row.fields.get("nodes", "")
    with cells_read(row):
        return int(float(text)) if text else None


def _count(row: Row, name: str) -> int:
    text = row.fields.get(name, "")
    try:
        value = int(float(text))
    except ValueError as error:
        raise InputError(
            f'{row.row_id}: {name}: expected a number, got "{text}"', code="collective-row.not-a-number"
        ) from error
    if value < (0 if name == "bytes" else 1):
        raise InputError(f"{row.row_id}: {name}: {value} is too few", code="collective-row.too-few")
    return value
