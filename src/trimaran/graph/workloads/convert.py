"""From the trace of a step on meta tensors to its workload. Nothing here needs torch.

Operations become works in order; those that only take memory are left out. Products and convolutions know which
gradient they make; the update becomes one work a parameter.
"""

from collections.abc import Iterator, Mapping

from trimaran.graph.trace.types import Role, StepTrace, TraceOp
from trimaran.graph.types import Phase
from trimaran.graph.workload import Gradient, Work, WorkKind, Workload
from trimaran.graph.workloads.gradients import makers, weight_gradients
from trimaran.graph.workloads.kinds import elements, has_kernel, kind_of, moved_bytes, short_name
from trimaran.graph.workloads.layers import attention, is_attention, is_recurrent, recurrent
from trimaran.graph.workloads.products import (
    CONVOLUTION_BACKWARDS,
    CONVOLUTIONS,
    PRODUCTS,
    convolution,
    convolution_backward,
    product,
)
from trimaran.graph.workloads.updates import Updates, unscaling


def workload_of(
    trace: StepTrace,
    *,
    name: str,
    batch: int,
    precision: str,
    optimizer: str,
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
        optimizer: class name
        input_bytes: of a batch [bytes]
        items_per_sample: see `Workload`
        like: by name of each parameter, the one whose update was traced for it; None: all were
    """
    wanted = makers(trace)
    works: list[Work] = []
    work_of: dict[int, int] = {}
    updates = Updates(trace, optimizer)
    update = updates.works(like or {})
    for op in trace.ops:
        if op.phase is not Phase.UPDATE and has_kernel(op):
            works.extend(_works(op, makes_weight_gradient=any(number in wanted for number, _ in op.writes)))
            work_of[op.moment] = len(works) - 1
    gradients = weight_gradients(trace, work_of)
    if update and precision == "float16":
        works.append(unscaling(gradients))
    works.extend(update)
    return Workload(
        name=name,
        batch=batch,
        precision=precision,
        optimizer=optimizer,
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
    yield Work(
        kind=kind,
        phase=op.phase,
        gradient=Gradient.WEIGHT if alone else Gradient.NONE,
        module=op.module,
        name=op.name.rpartition(".")[0],
        dtype=op.dtype,
        flops=op.flops,
        nbytes=moved_bytes(op),
        dims=(elements(op),),
        launches=2 if name in ("native_layer_norm_backward", "embedding_dense_backward") else 1,
    )


def _bytes(trace: StepTrace, role: Role) -> int:
    return sum(storage.nbytes for storage in trace.storages if storage.role is role)
