"""From the trace of a step on meta tensors to its workload. Nothing here needs torch.

Operations become works in order; those that only take memory are left out. Products and convolutions know which
gradient they make; the update becomes one work a parameter.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from trimaran.base.precision import Precision
from trimaran.graph.kernels.operators import (
    CONVOLUTION_BACKWARDS,
    CONVOLUTIONS,
    ITEM_BYTES,
    PRODUCTS,
    attention,
    convolution,
    convolution_backward,
    elements,
    has_kernel,
    is_attention,
    is_recurrent,
    kind_of,
    moved_bytes,
    product,
    recurrent,
    short_name,
    work_of,
)
from trimaran.graph.kernels.optimizer import Updates, unscaling
from trimaran.graph.kernels.workload import Gradient, WeightGradient, Work, WorkKind, Workload
from trimaran.graph.trace.types import Role, StepTrace, TraceOp
from trimaran.graph.types import Phase

# ---------------------------------------------------------------------------------------------------------------------
# Which operations make which parameter's gradient, and which is the last of them


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


def workload_of(
    trace: StepTrace,
    *,
    name: str,
    batch: int,
    precision: Precision,
    input_bytes: int,
    items_per_sample: int = 1,
    like: Mapping[str, str] | None = None,
) -> Workload:
    """The workload of a traced step.

    Args:
        trace: the step, with the shapes of its operations
        name: of the network
        batch: samples of the step
        precision: see `Workload`
        input_bytes: of a batch [bytes]
        items_per_sample: see `Workload`
        like: by name of each parameter, the one whose update was traced for it; None: all were
    """
    wanted = makers(trace)
    works: list[Work] = []
    work_of: dict[int, int] = {}
    updates = Updates(trace)
    update = updates.works(like or {})
    for op in trace.ops:
        if op.phase is not Phase.UPDATE and has_kernel(op):
            works.extend(_works(op, makes_weight_gradient=any(number in wanted for number, _ in op.writes)))
            work_of[op.moment] = len(works) - 1
    gradients = weight_gradients(trace, work_of)
    if update and precision == "fp16":
        works.append(replace(unscaling(gradients), moments=update[0].moments))
    works.extend(update)
    return Workload(
        name=name,
        batch=batch,
        precision=precision,
        optimizer=trace.optimizer,
        works=tuple(works),
        gradients=gradients,
        parameter_bytes=_bytes(trace, Role.PARAMETER),
        buffer_bytes=_bytes(trace, Role.BUFFER),
        optimizer_bytes=_bytes(trace, Role.OPTIMIZER) + updates.untraced_bytes(like or {}),
        input_bytes=input_bytes,
        items_per_sample=items_per_sample,
    )


def _works(op: TraceOp, *, makes_weight_gradient: bool) -> Iterator[Work]:
    name = short_name(op)
    if name in CONVOLUTIONS:
        return convolution(op)
    if name in CONVOLUTION_BACKWARDS:
        return convolution_backward(op)
    if name in PRODUCTS:
        return product(op, makes_weight_gradient=makes_weight_gradient)
    if is_attention(op):
        return attention(op)
    if is_recurrent(op):
        return recurrent(op)
    return _other(op, makes_weight_gradient=makes_weight_gradient)


def _other(op: TraceOp, *, makes_weight_gradient: bool) -> Iterator[Work]:
    name = short_name(op)
    kind = kind_of(name)
    alone = op.phase is Phase.BACKWARD and makes_weight_gradient and kind is not WorkKind.NORMALIZATION
    yield work_of(
        op,
        kind,
        gradient=Gradient.WEIGHT if alone else Gradient.NONE,
        flops=op.flops,
        nbytes=moved_bytes(op),
        dims=(elements(op),),
        launches=2 if name in ("native_layer_norm_backward", "embedding_dense_backward") else 1,
    )


def _bytes(trace: StepTrace, role: Role) -> int:
    return sum(storage.nbytes for storage in trace.storages if storage.role is role)
