"""Operations, as they come by below autograd: each becomes an event of the tape.

Operations that only make views are no events. The time of an operation is that of its call alone: what this module
does before and after is not in it.

Runs one operation of a recorded step: how long it takes, and what memory it uses only while it runs.

On a GPU the time is that between two events on its stream, and the memory is what its allocator had at most beyond what
was there before and after: the workspace of a library, which belongs to no tensor. What a library takes once and keeps
is not in it. On a CPU and on meta tensors nothing of the kind can be seen.

The allocator's peak statistics are set back at each operation.
"""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from trimaran.graph.flops import bytes_of, flops_of
from trimaran.graph.trace.calls import (
    RUNNING_STATISTICS,
    UPDATING_STATISTICS,
    Call,
    Ref,
    is_repeatable,
    replaced,
    tensors_in,
)
from trimaran.graph.trace.saved_tensors import SavedTensors
from trimaran.graph.trace.storages import dtype_name, has_storage, view_of
from trimaran.graph.trace.tape import NOWHERE, ModulePaths, Place, Tape
from trimaran.graph.trace.types import Role, Shape, TraceOp, Value
from trimaran.graph.types import OUTSIDE, Phase

Interval = tuple[torch.cuda.Event, torch.cuda.Event]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """An operation that has run.

    Attributes:
        out: what it gave
        duration_s: on the host's clock [s]; None: no clock knows, or the interval does
        interval: events before and after it, on a GPU
        scratch_bytes: memory that was there only while it ran [bytes]
    """

    out: Any
    duration_s: float | None = None
    interval: Interval | None = None
    scratch_bytes: int = 0


def run_timed(tape: Tape, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ran:
    """Run an operation; the tape learns the devices of its tensors.

    Args:
        tape: of the step
        func: the operation
        args: by place
        kwargs: by name
    """
    for tensor in tensors_in((args, kwargs)):
        tape.see(tensor.device)
    if kwargs.get("device") is not None:
        tape.see(_whole(torch.device(kwargs["device"])))
    if tape.device == "cuda":
        return _run_on_gpu(tape, func, args, kwargs)
    started = time.perf_counter()
    out = func(*args, **kwargs)
    duration_s = time.perf_counter() - started
    for tensor in tensors_in(out):
        tape.see(tensor.device)
    return Ran(out=out, duration_s=None if tape.device == "meta" else duration_s)


def _whole(device: torch.device) -> torch.device:
    """The device with its number, as tensors have it."""
    return torch.device("cuda", torch.cuda.current_device()) if device == torch.device("cuda") else device


def _run_on_gpu(tape: Tape, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ran:
    before = torch.cuda.memory_allocated(tape.place)
    torch.cuda.reset_peak_memory_stats(tape.place)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    out = func(*args, **kwargs)
    end.record()
    most, after = torch.cuda.max_memory_allocated(tape.place), torch.cuda.memory_allocated(tape.place)
    return Ran(out=out, interval=(start, end), scratch_bytes=max(0, most - max(before, after)))


Template = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments with references in the place of tensors."""

ACCUMULATION = "torch::autograd::AccumulateGrad"
_ACCUMULATING = frozenset({"aten::detach", "aten::clone", "aten::add", "aten::add_"})
"""What autograd does with a gradient that has arrived: takes it, copies it, or adds it."""

_NORMS = frozenset(RUNNING_STATISTICS) | frozenset(UPDATING_STATISTICS)
"""Run again without their running statistics."""

UNSEEN = frozenset({"aten::lift_fresh", "aten::lift", "aten::lift_fresh_copy"})
"""Give a tensor that Python has just made to the dispatcher."""


class Operations(TorchDispatchMode):
    """Notes every operation.

    Args:
        tape: where
        paths: which module runs
        saved: the hooks, told of changes in place
        opaque: whether what is met in the forward was just made by a compiled block
    """

    def __init__(self, tape: Tape, paths: ModulePaths, *, opaque: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tape = tape
        self.paths = paths
        self.opaque = opaque
        self.saved: SavedTensors | None = None

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Compiled blocks run as they are."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and note it."""
        kwargs = kwargs or {}
        tape = self.tape
        if tape.busy or tape.stopped or tape.tired or not isinstance(func, OpOverload):
            return func(*args, **kwargs)
        if FakeTensor in types:
            return func(*args, **kwargs)  # shapes are worked out, as sharded tensors do; nothing is computed
        if any(_has_own_dispatch(kind) for kind in types):
            return NotImplemented  # its own operations come by one by one
        return self._note(func, args, kwargs)

    def meet(self, tensor: torch.Tensor, op: str = "") -> int:
        """Number of a tensor's storage, which gets one if it was not met yet."""
        storage, book = tensor.untyped_storage(), self.tape.book
        number = book.find(storage)
        if number is not None:
            if type(tensor) is nn.Parameter and book.records[number].role in (Role.INPUT, Role.ACTIVATION):
                book.records[number].role = Role.PARAMETER  # was filled before it was used, as FSDP does
            return number
        phase = self.tape.phase()
        if isinstance(tensor, nn.Parameter):
            number = book.add(storage, Role.PARAMETER, -1)
            gradient = tensor.grad
            if gradient is not None and has_storage(gradient) and book.find(gradient.untyped_storage()) is None:
                book.add(gradient.untyped_storage(), Role.GRADIENT, -1)
            return number
        opaque = self.opaque and phase is not Phase.UPDATE
        made_unseen = opaque or op in UNSEEN or tensor.grad_fn is not None or phase is Phase.BACKWARD
        if made_unseen:
            return book.add(storage, Role.ACTIVATION, len(self.tape.events), self.paths.current.module, unseen=True)
        role = Role.OPTIMIZER if phase is Phase.UPDATE and self.tape.updating else Role.INPUT
        return book.add(storage, role, -1)

    def _note(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tape, book = self.tape, self.tape.book
        inputs = [tensor for tensor in tensors_in((args, kwargs)) if has_storage(tensor)]
        numbers = [self.meet(tensor, func._schema.name) for tensor in inputs]
        reads = tuple((number, book.records[number].version) for number in dict.fromkeys(numbers))
        template = self._template(args, kwargs) if is_repeatable(func, args, kwargs) else None
        tape.running = True
        try:
            ran = run_timed(tape, func, args, kwargs)
        finally:
            tape.running = False
        out = ran.out
        outputs = [tensor for tensor in tensors_in(out) if has_storage(tensor)]
        place = self._place()
        made, changed = self._made(outputs, place.module), self._changed(func, args, kwargs)
        if func._schema.name in _ACCUMULATING:
            self._mark_gradients(outputs)
        if not made and not changed and (outputs or not inputs or torch.Tag.inplace_view in func.tags):
            return out  # a view
        moment = len(tape.events)
        call = None if template is None else self._call(func, template, made, changed)
        if call is not None:
            tape.calls[moment] = call
        if ran.interval is not None:
            tape.intervals[moment] = ran.interval
        operation = TraceOp(
            moment=moment,
            name=f"{func.namespace}.{func._opname}.{func._overloadname}",
            phase=tape.phase(),
            module=place.module,
            origin=place.origin,
            reads=reads,
            writes=(*((number, 0) for number in made), *self._next_versions(changed)),
            flops=flops_of(func, args, kwargs, out),
            nbytes=bytes_of(inputs, outputs),
            dtype=dtype_name((outputs or inputs)[0].dtype) if outputs or inputs else "",
            repeatable=call is not None,
            duration_s=ran.duration_s,
            scratch_bytes=ran.scratch_bytes,
            operands=tuple((number, tuple(tensor.shape)) for number, tensor in zip(numbers, inputs, strict=True)),
            results=_shapes(out),
        )
        tape.events.append(operation)
        return out

    def _call(
        self, func: OpOverload, template: Template, made: dict[int, int], changed: dict[int, torch.Tensor]
    ) -> Call | None:
        """What can be run again; None for a change in place of what was there before the step."""
        records = self.tape.book.records
        if func._schema.name not in _NORMS and any(records[number].birth == -1 for number in changed):
            return None
        return Call(op=func, args=template[0], kwargs=template[1], made=made, grad=torch.is_grad_enabled())

    def _template(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Template | None:
        if not all(map(has_storage, tensors_in((args, kwargs)))):
            return None

        def reference(tensor: torch.Tensor) -> Ref:
            number = self.meet(tensor)
            return Ref((number, self.tape.book.records[number].version), view_of(tensor))

        return replaced(args, torch.Tensor, reference), replaced(kwargs, torch.Tensor, reference)

    def _made(self, outputs: list[torch.Tensor], module: str) -> dict[int, int]:
        """New storages, and the place of an output in each."""
        tape, made = self.tape, {}
        for place, tensor in enumerate(outputs):
            storage = tensor.untyped_storage()
            if tape.book.find(storage) is None:
                number = tape.book.add(storage, Role.ACTIVATION, len(tape.events), module)
                made[number] = place
        return made

    def _changed(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, torch.Tensor]:
        """Storages that the operation has written in place."""
        changed = {}
        for place, name in _written(func):
            value = args[place] if place < len(args) else kwargs.get(name)
            for tensor in tensors_in(value):
                if has_storage(tensor):
                    changed[self.meet(tensor)] = tensor
        statistics = RUNNING_STATISTICS.get(func._schema.name)
        if statistics is not None and args[statistics[2]]:
            for place in statistics[:2]:
                if args[place] is not None:
                    changed[self.meet(args[place])] = args[place]
        return changed

    def _next_versions(self, changed: dict[int, torch.Tensor]) -> list[Value]:
        values = []
        for number, tensor in changed.items():
            record = self.tape.book.records[number]
            record.version += 1
            record.nbytes = max(record.nbytes, tensor.untyped_storage().nbytes())
            values.append((number, record.version))
            if self.saved is not None:
                self.tape.busy = True
                try:
                    self.saved.changed(number, tensor.untyped_storage())
                finally:
                    self.tape.busy = False
        return values

    def _mark_gradients(self, outputs: list[torch.Tensor]) -> None:
        """What autograd accumulates is a gradient."""
        node = torch._C._current_autograd_node()
        if node is None or node.name() != ACCUMULATION:
            return
        for tensor in outputs:
            number = self.tape.book.find(tensor.untyped_storage())
            if number is not None and self.tape.book.records[number].role is Role.ACTIVATION:
                self.tape.book.records[number].role = Role.GRADIENT

    def _place(self) -> Place:
        """Where the operation that runs is called from."""
        place = self.paths.current
        node = torch._C._current_autograd_node() if place is NOWHERE else None
        if node is None:
            return place
        if node.name() == ACCUMULATION:
            number = self.tape.book.find(node.variable.untyped_storage())  # type: ignore[attr-defined]
            name = self.tape.book.names.get(number, "") if number is not None else ""
            return Place(name.rpartition(".")[0], name or OUTSIDE)
        return self.paths.of_node(node._sequence_nr())


def _shapes(out: Any) -> tuple[Shape | None, ...]:
    """Shapes of results, in order."""
    if isinstance(out, torch.Tensor):
        return (tuple(out.shape),)
    if out is None:
        return (None,)
    return tuple(shape for part in out for shape in _shapes(part)) if isinstance(out, tuple | list) else ()


@functools.cache
def _has_own_dispatch(kind: type) -> bool:
    own = getattr(kind, "__torch_dispatch__", None)
    return own is not None and own not in (torch.Tensor.__torch_dispatch__, torch._C._disabled_torch_dispatch_impl)


@functools.cache
def _written(func: OpOverload) -> tuple[tuple[int, str], ...]:
    """Places and names of the arguments that an operation writes in place."""
    if torch.Tag.inplace_view in func.tags or func._opname == "record_stream":
        return ()
    return tuple(
        (place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
