"""Records one training step, on meta tensors or for real.

    with Recorder(model) as recorder:
        loss(model(x), y).backward()
        optimizer.step()
    recorder.recording.trace

While it records, autograd holds no tensor that it packs: each is let go, and given back in another storage. So the
recorded step tells how long everything is there without autograd, and each time that autograd needs something again.
Gradients are those of an ordinary step, bit for bit.

What is left out: tensors that autograd does not pack (attributes of a custom function's context), kernels inside
compiled blocks, and steps on several threads.

Operations, as they come by below autograd: each becomes an event of the tape.

Operations that only make views are no events. The time of an operation is that of its call alone: what is done before
and after is not in it.

Runs one operation of a recorded step: how long it takes, and what memory it uses only while it runs.

On a GPU the time is that between two events on its stream, and the memory is what its allocator had at most beyond what
was there before and after: the workspace of a library, which belongs to no tensor. What a library takes once and keeps
is not in it. On a CPU and on meta tensors nothing of the kind can be seen.

The allocator's peak statistics are set back at each operation.

What autograd packs, while a step is recorded: it gets a handle, and the tensor is let go.

    pack     the storage's bytes are put aside, once for each version of it; autograd gets a handle
    unpack   a new storage takes the bytes; unpacks that overlap in time share it
    drop     autograd lets go of the handle: in the backward, as soon as its node has run

On meta tensors there are no bytes to put aside. Parameters, buffers and the optimizer's state stay where they are.

Autograd checks that a saved tensor was not changed before it is used, but not one that hooks have packed; so the
handle keeps the tensor's version counter, and makes the check.
"""

import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch import nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, is_traceable_wrapper_subclass

from trimaran.base.errors import ExecutionError
from trimaran.base.precision import dtype_name
from trimaran.graph.flops import bytes_of, flops_of
from trimaran.graph.trace.calls import (
    RUNNING_STATISTICS,
    UPDATING_STATISTICS,
    Call,
    Recording,
    Ref,
    is_repeatable,
    replaced,
    tensors_in,
)
from trimaran.graph.trace.in_place_changes import changed_error
from trimaran.graph.trace.live_bytes import WEIGHTS
from trimaran.graph.trace.storages import PERSISTENT, StorageRecord, covered_bytes, has_storage, look, view_of
from trimaran.graph.trace.tape import NOWHERE, CallSite, ModulePaths, Tape, in_backward
from trimaran.graph.trace.types import Role, Shape, StepTrace, Tick, TraceOp, TraceStorage, Value
from trimaran.graph.types import OUTSIDE, Phase

# ---------------------------------------------------------------------------------------------------------------------
# What autograd packs


class Aside(Protocol):
    """Bytes of a storage, put aside."""

    def restore(self) -> torch.UntypedStorage:
        """A new storage on the device, with the bytes."""


class ByteStore(Protocol):
    """Where bytes are put aside."""

    def put(self, storage: torch.UntypedStorage) -> Aside:
        """Copy the bytes of a storage; it may be written or freed when this returns."""


class HostStore:
    """Puts bytes aside in ordinary memory of the host; of meta tensors, nothing."""

    def put(self, storage: torch.UntypedStorage) -> Aside:
        """Copy the bytes of a storage."""
        return _HostBytes(storage)


class _HostBytes:
    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._device = storage.device
        self._nbytes = storage.nbytes()
        self._bytes: torch.UntypedStorage | None = None
        if storage.device.type != "meta":
            self._bytes = torch.UntypedStorage(self._nbytes)
            self._bytes.copy_(storage)

    def restore(self) -> torch.UntypedStorage:
        fresh = torch.UntypedStorage(self._nbytes, device=self._device)
        if self._bytes is not None:
            fresh.copy_(self._bytes)
        return fresh


class Dropped:
    """One version of a storage that autograd has packed: its bytes, and the storage that has them again while used."""

    def __init__(self, number: int, aside: Aside) -> None:
        self.number = number
        self.aside = aside
        self.users: list[int] = []  # moments of unpacks
        self._fresh: weakref.ref[torch.UntypedStorage] | None = None

    def storage(self, tape: Tape, tick: Tick | None) -> torch.UntypedStorage:
        """The storage that has the bytes again."""
        fresh = self._fresh() if self._fresh is not None else None
        if fresh is None:
            fresh = self.aside.restore()
            self._fresh = weakref.ref(fresh)
            if not tape.stopped:
                self.users = []
                tape.book.stand_in(fresh, self.number, _ender(tape, self.users))
        if tick is not None:
            self.users.append(tick.moment)
        return fresh


def _ender(tape: Tape, users: list[int]) -> Any:
    def gone() -> None:
        tape.ends.update(dict.fromkeys(users, tape.now()))

    return gone


class SavedHandle:
    """What autograd holds in the place of a tensor."""

    __slots__ = ("__weakref__", "_tape", "counter", "description", "dropped", "kept", "saved_version", "tick", "view")

    def __init__(self, tape: Tape, tensor: torch.Tensor, tick: Tick, dropped: Dropped | None) -> None:
        self._tape = tape
        self.tick = tick
        self.view = tick.view
        self.dropped = dropped
        self.saved_version = tensor._version
        self.description = tensor.shape, tensor.dtype, tick.node
        self.counter = tensor.detach()  # shares the version counter
        self.kept: torch.Tensor | None = None
        if dropped is None:
            self.kept = self.counter
        else:
            self.counter.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)

    def check(self) -> None:
        """Raise as autograd does if the tensor was changed after it was packed."""
        version = self.counter._version
        if version != self.saved_version:
            raise changed_error(*self.description, version=version, saved=self.saved_version)

    def __del__(self) -> None:
        if not self._tape.stopped:
            self._tape.ends[self.tick.moment] = self._tape.now()


class SavedTensors:
    """The pair of hooks.

    Args:
        tape: where ticks are noted
        meet: gives the number of a tensor's storage, also if it was not met yet
        store: where bytes are put aside
    """

    def __init__(self, tape: Tape, meet: Any, store: ByteStore) -> None:
        self._tape = tape
        self._meet = meet
        self._store = store
        self._dropped: weakref.WeakValueDictionary[tuple[int, int], Dropped] = weakref.WeakValueDictionary()

    def pack(self, tensor: torch.Tensor) -> Any:
        """Let go of a tensor."""
        tape = self._tape
        if tape.busy or tape.stopped or not _is_plain(tensor):
            return tensor
        node = tensor.grad_fn.name() if tensor.requires_grad and tensor.grad_fn is not None else ""
        tape.busy = True
        try:
            number = self._meet(tensor)
            record = tape.book.records[number]
            tick = Tick(
                moment=len(tape.events),
                kind="pack",
                index=tape.packs,
                pack=tape.packs,
                storage=number,
                version=record.version,
                view=view_of(tensor),
                node=node,
            )
            tape.packs += 1
            tape.events.append(tick)
            record.packed_at.add(record.version)
            return SavedHandle(tape, tensor, tick, self._drop(number, tensor))
        finally:
            tape.busy = False

    def unpack(self, handle: Any) -> torch.Tensor:
        """Give a tensor back."""
        if not isinstance(handle, SavedHandle):
            return handle  # type: ignore[no-any-return]
        tape, was_busy = self._tape, self._tape.busy
        handle.check()
        tape.busy = True
        try:
            tick = self._note(handle)
            if handle.dropped is None:
                return handle.kept  # type: ignore[return-value]
            return look(handle.dropped.storage(tape, tick), handle.view)
        finally:
            tape.busy = was_busy

    def changed(self, number: int, storage: torch.UntypedStorage) -> None:
        """An operation has changed a storage: what a later unpack gives must have the change, as autograd has it.

        Where autograd would not allow it, the check of the version says so.
        """
        record = self._tape.book.records[number]
        if not record.packed_at:
            return
        record.changed = True
        for version in record.packed_at:
            dropped = self._dropped.get((number, version))
            if dropped is not None:
                dropped.aside = self._store.put(storage)

    def held_bytes(self) -> int:
        """Storages of which autograd still has something that was packed [bytes]."""
        numbers = {dropped.number for dropped in self._dropped.values()}
        return sum(self._tape.book.records[number].nbytes for number in numbers)

    def _drop(self, number: int, tensor: torch.Tensor) -> Dropped | None:
        record = self._tape.book.records[number]
        if record.role in PERSISTENT:
            return None
        dropped = self._dropped.get((number, record.version))
        if dropped is None:
            dropped = Dropped(number, self._store.put(tensor.untyped_storage()))
            self._dropped[number, record.version] = dropped
        return dropped

    def _note(self, handle: SavedHandle) -> Tick | None:
        tape = self._tape
        if tape.stopped:
            return None
        tick = replace(handle.tick, moment=len(tape.events), kind="unpack", index=tape.unpacks)
        if handle.dropped is None:
            tape.ends[tick.moment] = tick.moment + 1
        tape.unpacks += 1
        tape.events.append(tick)
        return tick


def _is_plain(tensor: torch.Tensor) -> bool:
    return has_storage(tensor) and not is_traceable_wrapper_subclass(tensor)


# ---------------------------------------------------------------------------------------------------------------------
# Operations


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


@contextmanager
def loading() -> Iterator[None]:
    """Around what makes a batch: no recorder takes it for a part of the step, and the batch is there from then on.

    The rows of a data set that it reads are memory of the loader.
    """
    mode = _get_current_dispatch_mode()
    tape = mode.tape if isinstance(mode, Operations) else None
    if tape is None or tape.busy:
        yield
        return
    tape.busy = True
    try:
        yield
    finally:
        tape.busy = False
        tape.loaded = len(tape.events)


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
        if phase is Phase.UPDATE and self.tape.updating:
            return book.add(storage, Role.OPTIMIZER, -1)
        return book.add(storage, Role.INPUT, self.tape.loaded or -1)

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
        phase = tape.phase()
        tape.repeats |= phase is Phase.BACKWARD and torch.is_grad_enabled()
        call = None if template is None else self._call(func, template, made, changed)
        if call is not None:
            tape.calls[moment] = call
        if ran.interval is not None:
            tape.intervals[moment] = ran.interval
        operation = TraceOp(
            moment=moment,
            name=f"{func.namespace}.{func._opname}.{func._overloadname}",
            phase=phase,
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

    def _place(self) -> CallSite:
        """Where the operation that runs is called from."""
        place = self.paths.current
        node = torch._C._current_autograd_node() if place is NOWHERE else None
        if node is None:
            return place
        if node.name() == ACCUMULATION:
            number = self.tape.book.find(node.variable.untyped_storage())  # type: ignore[attr-defined]
            name = self.tape.book.names.get(number, "") if number is not None else ""
            return CallSite(name.rpartition(".")[0], name or OUTSIDE)
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


# ---------------------------------------------------------------------------------------------------------------------
# What each storage is to the step: parameters and buffers of modules, gradients, the state of optimizers


class Census:
    """Tells the storages of a tape what they are.

    Args:
        tape: of the step
    """

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._parameters: list[weakref.ref[torch.Tensor]] = []
        self._handles: list[Any] = []

    def install(self) -> None:
        """Follow optimizers: their steps are the update."""
        self._handles = [
            register_optimizer_step_pre_hook(self._begin_update),
            register_optimizer_step_post_hook(self._end_update),
        ]

    def remove(self) -> None:
        """Follow them no more."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def meet_module(self, root: nn.Module, prefix: str) -> None:
        """Learn the parameters and buffers of a module."""
        prefix = f"{prefix}." if prefix else ""
        for name, parameter in root.named_parameters(remove_duplicate=False):
            self._meet_parameter(parameter, prefix + name)
        for name, buffer in root.named_buffers(remove_duplicate=False):
            self._declare(buffer, Role.BUFFER, prefix + name)

    def meet_optimizer(self, optimizer: Optimizer) -> None:
        """Learn the parameters and the state of an optimizer."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._meet_parameter(parameter, "")
        self._meet_state(optimizer)

    def find_gradients(self) -> None:
        """Learn the gradients that parameters have now."""
        for reference in self._parameters:
            parameter = reference()
            if parameter is not None:
                self._meet_gradient(parameter)

    def _begin_update(self, optimizer: Optimizer, _: Any, __: Any) -> None:
        self._tape.updating = True
        self._tape.optimizer = self._tape.optimizer or type(optimizer).__name__
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._meet_gradient(parameter)
        self._meet_state(optimizer)

    def _end_update(self, optimizer: Optimizer, _: Any, __: Any) -> None:
        self._tape.updating = False
        self._meet_state(optimizer)

    def _meet_parameter(self, parameter: torch.Tensor, name: str) -> None:
        self._parameters.append(weakref.ref(parameter))
        self._declare(parameter, Role.PARAMETER, name)
        # What a `functional_call` puts in its place may be no leaf, which has no gradient.
        if parameter.is_leaf and parameter.grad is not None:
            self._declare(parameter.grad, Role.GRADIENT)

    def _meet_gradient(self, parameter: torch.Tensor) -> None:
        """Learn the gradient that the step has made for a parameter."""
        if not parameter.is_leaf or parameter.grad is None:
            return
        self._declare(parameter.grad, Role.GRADIENT)
        find = self._tape.book.find
        for plain, gradient in zip(_plain(parameter), _plain(parameter.grad), strict=False):
            owner, made = find(plain.untyped_storage()), find(gradient.untyped_storage())
            if owner is not None and made is not None:
                self._tape.gradients[owner] = made

    def _meet_state(self, optimizer: Optimizer) -> None:
        for state in optimizer.state.values():
            for tensor in tensors_in(state):
                self._declare(tensor, Role.OPTIMIZER)

    def _declare(self, tensor: torch.Tensor, role: Role, name: str = "") -> None:
        """Say what a tensor's storage is. What a module says of its parameters and buffers goes first."""
        book = self._tape.book
        for plain in _plain(tensor):
            storage = plain.untyped_storage()
            self._tape.see(storage.device)
            number = book.find(storage)
            if number is None:
                number = book.add(storage, role, -1)
            elif role in (Role.PARAMETER, Role.BUFFER) or book.records[number].role not in PERSISTENT:
                book.records[number].role = role
            if name:
                book.names.setdefault(number, name)


def _plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with storages inside a tensor: itself, or those that a subclass wraps."""
    wrapper: Any = tensor
    if is_traceable_wrapper_subclass(wrapper):
        names, _ = wrapper.__tensor_flatten__()
        for part in (getattr(wrapper, name) for name in names):
            if isinstance(part, torch.Tensor):
                yield from _plain(part)
    elif has_storage(tensor):
        yield tensor


# ---------------------------------------------------------------------------------------------------------------------
# From the tape of a step to its trace: plain data, every life closed


def finished(tape: Tape) -> Recording:
    """The recording of a tape that has stopped."""
    length = len(tape.events)
    for record in tape.book.records:
        _settle(record)
    events = tuple(
        replace(event, end=min(tape.ends.get(event.moment, length), length)) if isinstance(event, Tick) else event
        for event in (_timed(tape, event) for event in tape.events)
    )
    ticks: list[list[Tick]] = [[] for _ in tape.book.records]
    for event in events:
        if isinstance(event, Tick):
            ticks[event.storage].append(event)
    storages = tuple(
        _storage(number, record, ticks[number], length, on_device=_is_on_device(tape, record))
        for number, record in enumerate(tape.book.records)
    )
    externals = {
        number: record.reference
        for number, record in enumerate(tape.book.records)
        if record.role in (Role.PARAMETER, Role.BUFFER) and record.reference() is not None
    }
    trace = StepTrace(
        events=events,
        storages=storages,
        names=dict(tape.book.names),
        device=tape.device,
        gradients=dict(tape.gradients),
        optimizer=tape.optimizer,
        repeats=tape.repeats,
    )
    return Recording(trace=trace, calls=tape.calls, externals=externals)


def _settle(record: StorageRecord) -> None:
    """What no operation made, and what stays, was there before the step: a bucket of gradients, met as it is filled."""
    if record.unseen and record.end is None and record.role is Role.ACTIVATION:
        record.role, record.birth = Role.GRADIENT, -1


def _storage(number: int, record: StorageRecord, ticks: list[Tick], length: int, *, on_device: bool) -> TraceStorage:
    """The storage of a record. What is on another device takes no memory of this one, and no plan can move it."""
    outside_end = length if record.end is None else min(record.end, length)
    packs = [tick for tick in ticks if tick.kind == "pack"]
    single = len(record.packed_at) == 1 and not record.changed
    return TraceStorage(
        number=number,
        nbytes=record.nbytes if on_device else 0,
        role=record.role,
        birth=record.birth,
        outside_end=outside_end,
        keep_end=max(outside_end, *(tick.end for tick in ticks)) if ticks else outside_end,
        copy_bytes=covered_bytes([tick.view for tick in packs]) if on_device else 0,
        packs=tuple(tick.moment for tick in packs),
        unpacks=tuple(tick.moment for tick in ticks if tick.kind == "unpack"),
        version=next(iter(record.packed_at)) if single else None,
        module=record.module,
    )


def _is_on_device(tape: Tape, record: StorageRecord) -> bool:
    return not record.elsewhere and tape.place in (None, record.device)


def _timed(tape: Tape, event: TraceOp | Tick) -> TraceOp | Tick:
    """An operation with the time that the device needed; none where all that it touches is on the host."""
    if isinstance(event, Tick) or tape.device == "cpu":
        return event
    if tape.device == "meta":
        return event if event.duration_s is None else replace(event, duration_s=None)
    numbers = {number for number, _ in (*event.reads, *event.writes)}
    if numbers and all(tape.book.records[number].device.type == "cpu" for number in numbers):
        return replace(event, duration_s=0.0)
    if event.moment not in tape.intervals:
        return event
    start, end = tape.intervals[event.moment]
    end.synchronize()
    return replace(event, duration_s=float(start.elapsed_time(end)) / 1000.0)  # milliseconds


class Recorder:
    """Records what runs between `start` and `stop`, or inside a `with` block.

    Args:
        model: whose parameters and buffers get names; None: modules are met as they run
        store: where the bytes of packed tensors are put aside; None: ordinary memory of the host
        hooks: whether it installs its hooks of saved tensors; otherwise the caller's hooks call those of `saved`
        follow: whether it follows modules; torch.compile compiles again when hooks of all modules come and go
        opaque: whether blocks are compiled, so that what they make is first seen when autograd packs it; otherwise it
            is taken for something that was there before
        elsewhere: tells which storages count as memory of the host, as the state of an optimizer that is kept there
        real: whether the step is known to be none on meta tensors
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        *,
        store: ByteStore | None = None,
        hooks: bool = True,
        follow: bool = True,
        opaque: bool = False,
        elsewhere: Callable[[torch.UntypedStorage], bool] | None = None,
        real: bool = False,
    ) -> None:
        self._real = real
        self._elsewhere = elsewhere
        self._model = weakref.ref(model) if model is not None else None
        self._own_hooks = hooks
        self._follow = follow
        self._opaque = opaque
        self._store = store or HostStore()
        self._recording: Recording | None = None
        self._tape: Tape | None = None

    @property
    def recording(self) -> Recording:
        """What was recorded.

        Raises:
            ExecutionError: nothing was recorded yet
        """
        if self._recording is None:
            raise ExecutionError(
                "nothing is recorded yet: run a step inside the block, and ask after it has ended",
                code="recorder.nothing-recorded",
            )
        return self._recording

    @property
    def is_recording(self) -> bool:
        """Whether a recording runs."""
        return self._tape is not None

    def start(self) -> None:
        """Record from now on.

        Raises:
            ExecutionError: it records already
        """
        if self._tape is not None:
            raise ExecutionError("this recorder records already: stop it first")
        self._tape = tape = Tape(real=self._real)
        tape.book.elsewhere = self._elsewhere
        self._thread = threading.get_ident()
        self._census = Census(tape)
        self.paths = ModulePaths(self._model() if self._model is not None else None, self._census.meet_module)
        self._operations = Operations(tape, self.paths, opaque=self._opaque)
        self.saved = self._operations.saved = SavedTensors(tape, self._operations.meet, self._store)
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self.saved.pack, self.saved.unpack)
        self._census.install()
        if self._follow:
            self.paths.install()
        if self._own_hooks:
            self._hooks.__enter__()
        self._operations.__enter__()  # type: ignore[no-untyped-call]

    def meet_left(self, earlier: "Recorder") -> None:
        """Count what is still there of an earlier recording, also if nothing reads it while this one records."""
        book = self._operations.tape.book
        for one in earlier._operations.tape.book.records:
            storage = one.reference() if one.end is None else None
            if storage is not None and book.find(storage) is None:
                book.add(storage, one.role if one.role in WEIGHTS else Role.INPUT, -1)

    @property
    def tired(self) -> bool:
        """Whether it notes nothing any more, as too much came before a forward; see `wait`."""
        return self._tape is not None and self._tape.tired

    def wait(self, waiting: bool) -> None:
        """Say whether no forward has begun yet. What is noted until then is limited."""
        if self._tape is not None:
            self._tape.waiting = waiting

    def count(self, optimizer: Optimizer) -> None:
        """Count an optimizer's parameters and state, also if it does not step while this records."""
        if self._tape is not None:
            self._census.meet_optimizer(optimizer)

    def stop(self) -> Recording:
        """Record no more.

        It may be called anywhere between two operations, also from a hook of a module or of an optimizer.

        Returns:
            What happened since `start`.

        Raises:
            ExecutionError: it does not record, or a mode or a pair of hooks that was entered later is still there
        """
        tape = self._uninstall()
        self._census.find_gradients()
        self._recording = finished(tape)
        tape.book.close()
        return self._recording

    def abandon(self) -> None:
        """Record no more, and forget what was recorded.

        Raises:
            ExecutionError: as for `stop`
        """
        self._uninstall().book.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self.abandon()

    def _uninstall(self) -> Tape:
        tape = self._tape
        if tape is None:
            raise ExecutionError("this recorder does not record: start it first", code="recorder.not-started")
        self._check_place()
        self._operations.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        if self._own_hooks:
            self._hooks.__exit__(None, None, None)
        self.paths.remove()
        self._census.remove()
        tape.stopped = True
        self._tape = None
        return tape

    def _check_place(self) -> None:
        if threading.get_ident() != self._thread or in_backward():
            raise ExecutionError(
                "a recording must be stopped by the thread that started it and outside of the backward: "
                "stop it after backward() has returned"
            )
        top = _get_current_dispatch_mode()
        if top is not self._operations:
            raise ExecutionError(
                f"a recording cannot stop inside {type(top).__name__}, which was entered after the recording began: "
                "stop it where that has ended",
                code="recorder.mode-inside",
                mode=type(top).__name__,
            )
