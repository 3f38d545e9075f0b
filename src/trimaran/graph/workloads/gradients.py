"""Which operations make which parameter's gradient, and which is the last of them."""

from collections.abc import Mapping

from trimaran.graph.trace.types import Role, StepTrace
from trimaran.graph.types import Phase
from trimaran.graph.workload import WeightGradient
from trimaran.graph.workloads.kinds import ITEM_BYTES, short_name

_CARRIES = frozenset(["_to_copy", "add", "add_", "clone", "copy_"])
"""Bring what others made into a gradient, and change nothing but its precision or its place, or add to it."""


def makers(trace: StepTrace) -> frozenset[int]:
    """Storages of the backward that are gradients of parameters, or are added or converted to one."""
    wanted = set(trace.gradients.values())
    for op in reversed(trace.ops):
        if op.phase is Phase.BACKWARD and short_name(op) in _CARRIES:
            written = {number for number, _ in op.writes}
            if written & wanted:
                wanted |= {
                    number for number, _ in op.reads if trace.storages[number].role in (Role.ACTIVATION, Role.GRADIENT)
                }
    return frozenset(wanted)


def weight_gradients(trace: StepTrace, work_of: Mapping[int, int]) -> tuple[WeightGradient, ...]:
    """The gradients in the order in which they are complete.

    Args:
        trace: the step
        work_of: by moment of an operation, the index of its last work
    """
    owners = {gradient: parameter for parameter, gradient in trace.gradients.items()}
    last: dict[int, int] = {}
    shapes: dict[int, tuple[str, int]] = {}
    tables: dict[int, bool] = {}
    for op in trace.ops:
        if op.phase is not Phase.BACKWARD:
            continue
        for number, _ in op.writes:
            if number in owners and op.moment in work_of:
                last[number] = work_of[op.moment]
                shapes.setdefault(number, (op.dtype, trace.storages[number].nbytes))
                tables[number] = tables.get(number, True) and short_name(op) == "embedding_dense_backward"
    gradients = []
    for number, work in last.items():
        name = trace.names.get(owners[number], "")
        dtype, nbytes = shapes[number]
        gradients.append(
            WeightGradient(
                name=name,
                module=name.rpartition(".")[0],
                elements=nbytes // ITEM_BYTES.get(dtype, 4),
                nbytes=nbytes,
                work=work,
                sparse=tables[number],
            )
        )
    return tuple(sorted(gradients, key=lambda gradient: gradient.work))
