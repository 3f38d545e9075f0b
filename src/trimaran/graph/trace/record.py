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
"""

import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _get_current_dispatch_mode, is_traceable_wrapper_subclass

from trimaran.base.errors import ExecutionError
from trimaran.graph.trace.calls import Recording, tensors_in
from trimaran.graph.trace.live_bytes import WEIGHTS
from trimaran.graph.trace.operations import Operations
from trimaran.graph.trace.saved_tensors import HostStore, SavedTensors, Store
from trimaran.graph.trace.storages import PERSISTENT, Record, covered_bytes, has_storage
from trimaran.graph.trace.tape import ModulePaths, Tape
from trimaran.graph.trace.types import Role, StepTrace, Tick, TraceOp, TraceStorage

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
        if parameter.grad is not None:
            self._declare(parameter.grad, Role.GRADIENT)

    def _meet_gradient(self, parameter: torch.Tensor) -> None:
        """Learn the gradient that the step has made for a parameter."""
        if parameter.grad is None:
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
    )
    return Recording(trace=trace, calls=tape.calls, externals=externals)


def _settle(record: Record) -> None:
    """What no operation made, and what stays, was there before the step: a bucket of gradients, met as it is filled."""
    if record.unseen and record.end is None and record.role is Role.ACTIVATION:
        record.role, record.birth = Role.GRADIENT, -1


def _storage(number: int, record: Record, ticks: list[Tick], length: int, *, on_device: bool) -> TraceStorage:
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


def _is_on_device(tape: Tape, record: Record) -> bool:
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
        hooks: whether it installs its hooks of saved tensors; otherwise the caller's hooks call `pack` and `unpack`
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
        store: Store | None = None,
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

    @property
    def pack(self) -> Callable[[torch.Tensor], Any]:
        """Hook for what autograd packs, while it records."""
        return self._saved.pack

    @property
    def unpack(self) -> Callable[[Any], torch.Tensor]:
        """Hook for what was packed with `pack`, also after the recording has ended."""
        return self._saved.unpack

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
        self._paths = ModulePaths(self._model() if self._model is not None else None, self._census.meet_module)
        self._operations = Operations(tape, self._paths, opaque=self._opaque)
        self._saved = self._operations.saved = SavedTensors(tape, self._operations.meet, self._store)
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._saved.pack, self._saved.unpack)
        self._census.install()
        if self._follow:
            self._paths.install()
        if self._own_hooks:
            self._hooks.__enter__()
        self._operations.__enter__()  # type: ignore[no-untyped-call]

    @property
    def paths(self) -> ModulePaths:
        """Which module runs, while it records: told of torch functions, it says these too."""
        return self._paths

    @property
    def held_bytes(self) -> int:
        """Storages of which autograd still has what was packed, also after the recording has ended [bytes]."""
        return self._saved.held_bytes()

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
        self._paths.remove()
        self._census.remove()
        tape.stopped = True
        self._tape = None
        return tape

    def _check_place(self) -> None:
        if threading.get_ident() != self._thread or torch._C._current_graph_task_id() != -1:
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
