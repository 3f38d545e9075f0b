"""What a person asks of a crossover, and the machine that it needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trimaran.base.errors import InputError
from trimaran.machine.find import find_machine
from trimaran.machine.types import Machine
from trimaran.pricing.kernels.software import Software


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossoverRequest:
    """What is asked.

    Attributes:
        cluster: machine, such as "dgx1-v100" (as many nodes as are needed) or "dgx-a100:64"
        devices: numbers of devices
        widths: devices of a worker
        curve: name in the catalog or file; None: the job's own, if it has one
        local_batch: samples of a worker in paper mode; None: the job's batch
        precision: in which is computed
        software: framework and year
        options: of the job
    """

    cluster: str
    devices: tuple[int, ...]
    widths: tuple[int, ...] = (2, 4, 8)
    curve: str | None = None
    local_batch: int | None = None
    precision: str = "float32"
    software: Software = field(default_factory=Software)
    options: Mapping[str, str] = field(default_factory=dict)


def machine_for(name: str, devices: int) -> tuple[str, Machine]:
    """A machine with enough nodes.

    Args:
        name: of a machine; where it gives no number of nodes, it has the number that is needed
        devices: that it must have

    Returns:
        Its name with the number of nodes, and the machine.

    Raises:
        InputError: no such machine, or its nodes are counted and too few

    Example:
        >>> machine_for("dgx1-v100", 64)[0]
        'dgx1-v100:8'
    """
    machine = find_machine(name)
    if machine.devices >= devices:
        return name, machine
    base, at, fabric = name.partition("@")
    if base.rpartition(":")[2].strip().isdigit():
        raise InputError(
            f'"{name}" has {machine.devices} devices, and {devices} are asked for: ask for '
            f'"{base.rpartition(":")[0]}:{-(-devices // machine.node.devices)}{at}{fabric}" or for fewer devices',
            code="crossover.too-few-devices",
            cluster=name,
            devices=devices,
        )
    grown = f"{base.strip()}:{-(-devices // machine.node.devices)}{at}{fabric}"
    return grown, find_machine(grown)


def counts_of(devices: tuple[int, ...], width: int) -> tuple[int, ...]:
    """The numbers of devices that have equal workers of a width, rising.

    Args:
        devices: as asked for
        width: devices of a worker

    Raises:
        InputError: none has

    Example:
        >>> counts_of((16, 8, 18), 4)
        (8, 16)
    """
    found = tuple(sorted({count for count in devices if count >= width and count % width == 0}))
    if not found:
        raise InputError(
            f"workers of {width} devices need a multiple of {width} devices, got {', '.join(map(str, devices))}: ask "
            f"for --devices {width}..{8 * width} or for another --widths",
            code="crossover.width-does-not-divide",
            devices=list(devices),
            width=width,
        )
    return found


def check_request(request: CrossoverRequest) -> None:
    """Refuse what cannot be answered.

    Raises:
        InputError: a width below 2, a local batch below 1, or too few devices
    """
    if not request.widths or min(request.widths) < 2:
        raise InputError(
            f"a hybrid has workers of two devices or more, got --widths {','.join(map(str, request.widths))}",
            code="crossover.width-too-small",
            widths=list(request.widths),
        )
    if request.local_batch is not None and request.local_batch < 1:
        raise InputError(
            f"a worker has at least one sample, got --local-batch {request.local_batch}",
            code="crossover.empty-worker",
            local_batch=request.local_batch,
        )
    for width in request.widths:
        counts_of(request.devices, width)
