"""What a collective takes on a machine of the catalog.

Measured curves of that machine give the answer where there are some, and correct the answer elsewhere: the prior of
the group's links, times what the nearest measurements strayed from theirs (`kriging`). So a machine that was measured
is interpolated, one of a known kind is predicted well, and a strange one gets a wide interval. A user's own nccl-tests
log goes before all of it (`corrections`).
"""

from trimaran.cluster.machines import Machine
from trimaran.costs.collectives.boxes import as_measured
from trimaran.costs.collectives.closed_forms import check_group
from trimaran.costs.collectives.corrections import Correction
from trimaran.costs.collectives.groups import Timing
from trimaran.costs.collectives.prediction import group_cost
from trimaran.costs.collectives.wires import group_of
from trimaran.costs.types import Cost
from trimaran.errors import InputError

TIMINGS: dict[str, Timing] = {
    "": "stream",
    "stream": "stream",
    "nccl-tests": "single",
    "nccl-tests threads": "threads",
    "nccl-tests processes": "processes",
    "torch": "torch",
    "torch.distributed by the host's clock": "wall",
}
"""What one may call the way of timing, and what it is."""


def collective_cost(
    op: str,
    nbytes: float,
    *,
    machine: Machine,
    devices: int,
    nodes: int = 1,
    library: str = "",
    year: float = 2024.0,
    correction: Correction | None = None,
) -> Cost:
    """Time of a collective.

    Args:
        op: "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all" or "send_recv"
        nbytes: the whole buffer, as in `closed_forms` [bytes]
        machine: what the devices sit in
        devices: in the group, equally many on each node
        nodes: in use
        library: how the time is taken, one of `TIMINGS`; "" as in a training step, calls queued ahead
        year: of the library
        correction: what the user's own runs on this machine say

    Returns:
        Time with its 90 % interval [s].

    Raises:
        InputError: an unknown operation or way of timing, a size below zero, or a group that the machine has not
    """
    check_group(op, devices)
    if not nbytes >= 0:
        raise InputError(
            f"{op}: a buffer has at least 0 bytes, got {nbytes}", code="collective.negative-bytes", nbytes=nbytes
        )
    if library not in TIMINGS:
        raise InputError(
            f'{op}: the library is one of {", ".join(map(repr, TIMINGS))}, got "{library}"',
            code="collective.unknown-library",
        )
    if devices == 1:
        return Cost(0.0, 0.0, 0.0, "analytic: one device has nothing to exchange")
    group = as_measured(group_of(machine, devices, nodes))
    cost = group_cost(op, nbytes, group, timing=TIMINGS[library], year=year)
    return correction.apply(cost, op, nbytes, devices=devices, nodes=nodes) if correction else cost
