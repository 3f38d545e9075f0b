"""Numbers of devices and machines of a crossover, checked before anything is calculated."""

from trimaran.base.errors import InputError
from trimaran.machine.find import find_machine, grown_cluster
from trimaran.machine.types import Machine


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
    grown = grown_cluster(name, devices)
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


def check_request(devices: tuple[int, ...], widths: tuple[int, ...], local_batch: int | None = None) -> None:
    """Refuse what cannot be answered.

    Args:
        devices: numbers of devices
        widths: devices of a worker
        local_batch: samples of a worker; None: the job's batch

    Raises:
        InputError: a width below 2, a local batch below 1, or too few devices
    """
    if not widths or min(widths) < 2:
        raise InputError(
            f"a hybrid has workers of two devices or more, got --widths {','.join(map(str, widths))}",
            code="crossover.width-too-small",
            widths=list(widths),
        )
    if local_batch is not None and local_batch < 1:
        raise InputError(
            f"a worker has at least one sample, got --local-batch {local_batch}",
            code="crossover.empty-worker",
            local_batch=local_batch,
        )
    for width in widths:
        counts_of(devices, width)
