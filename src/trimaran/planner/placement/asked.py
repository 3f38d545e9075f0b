"""Whether a placement problem is one."""

import math

from trimaran.errors import InputError
from trimaran.planner.placement.types import PlacementProblem


def check_problem(problem: PlacementProblem) -> None:
    """Refuse what no placement could answer.

    Raises:
        InputError: no nodes or devices, two nodes of one name, a time or size that is negative or no number, an edge
            that goes backwards, a wire between devices that are not there, a pin on one
    """
    names = [node.name for node in problem.nodes]
    if not names or not problem.memory_bytes:
        raise InputError(
            f"a placement needs nodes and devices, got {len(names)} and {problem.devices}", code="placement.empty"
        )
    twice = next((name for name, other in zip(sorted(names), sorted(names)[1:], strict=False) if name == other), None)
    if twice is not None:
        raise InputError(f'two nodes of the placement are named "{twice}"', code="placement.node-twice", node=twice)
    for node in problem.nodes:
        for field in ("forward_s", "backward_s", "nbytes", "backward_nbytes", "saved_bytes", "state_bytes"):
            value = getattr(node, field)
            if not math.isfinite(value) or value < 0:
                raise InputError(
                    f'"{node.name}".{field}: expected a number that is not negative, got {value}',
                    code="placement.negative-number",
                )
    for producer, consumer in problem.edges:
        if not 0 <= producer < consumer < len(names):
            raise InputError(
                f"edge ({producer}, {consumer}) must go from an earlier to a later one of {len(names)} nodes",
                code="placement.bad-edge",
                edge=(producer, consumer),
            )
    _check_machine(problem)


def _check_machine(problem: PlacementProblem) -> None:
    for device, memory in enumerate(problem.memory_bytes):
        if math.isnan(memory) or memory < 0:
            raise InputError(f"memory of device {device}: expected bytes, got {memory}", device=device)
    for (source, target), wire in problem.wires.items():
        inside = 0 <= source < problem.devices and 0 <= target < problem.devices
        rated = wire.bytes_per_s > 0 and math.isfinite(wire.latency_s) and wire.latency_s >= 0
        if source == target or not inside or not rated:
            raise InputError(
                f"wire ({source}, {target}): expected two of {problem.devices} devices, a rate above 0 and a latency, "
                f"got {wire.bytes_per_s} bytes/s and {wire.latency_s} s",
                code="placement.bad-wire",
                wire=(source, target),
            )
        if (target, source) not in problem.wires:
            raise InputError(
                f"there is a wire from {source} to {target}, and none back for the gradients",
                code="placement.one-way-wire",
            )
    known = {node.name for node in problem.nodes}
    for name, device in problem.pinned.items():
        if name not in known or not 0 <= device < problem.devices:
            raise InputError(
                f'"{name}" is pinned on device {device}: there is no such node, or no such device',
                code="placement.bad-pin",
                node=name,
            )
