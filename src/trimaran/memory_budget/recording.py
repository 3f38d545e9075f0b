"""The recorder, behind our own pair of hooks: it may be started and stopped at any end of a pass.

One pair of saved-tensor hooks for a thread, whose work can be changed while it is there.

Who packed a tensor also unpacks it, whatever the phase is by then: the packed value carries its own unpacker. A pair
can be parked, so that autograd saves plainly, as fast as ever and with its own checks. Hooks are a stack: only the top
can be taken away, and only where nobody else's lie above may ours be put down. So both are tried, and say whether they
did.

Pushing and popping at other places than the ends of a `with` block needs torch's own functions for it; they are those
that `torch.autograd.graph.saved_tensors_hooks` calls.

Transforms of `torch.func` that compute gradients allow no pair while they run: ours is parked for that long, and what
they save is kept.

Modes are a stack, and a loop may enter and leave its own at any time: ours lie below them.

    what was there before the context │ ours │ those that the loop has entered since

A mode is left by taking the top of the stack: one of ours on top of the loop's would be taken in its place.

What a batch looks like to a plan: the shapes that go into the outermost module, and how it is called.

A plan is for one such look. Two batches of the same look run the same operations, unless the model branches on values;
that is noticed tick by tick, when the step runs. Numbers among the arguments are left out, because a counter of steps
would make every batch look new.

The peak of each step as the device had it: what a GPU's allocator says; on a CPU counted, if that is wanted.

On a GPU the allocator's own peak is set back at each step: `torch.cuda.max_memory_allocated` is of the last one then.
"""

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._C import _autograd
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from trimaran.graph.trace.calls import Recording
from trimaran.graph.trace.in_place_changes import check_kept
from trimaran.graph.trace.live_bytes import WEIGHTS
from trimaran.graph.trace.record import ByteStore, Recorder
from trimaran.memory_budget.device import LoopDevice
from trimaran.memory_hooks.accountant import Accountant
from trimaran.memory_hooks.arena import PAGE_BYTES
from trimaran.memory_hooks.copies import ArenaStore
from trimaran.user_code.model import has_compiled

Pack = Callable[[torch.Tensor], Any]
Unpack = Callable[[Any], torch.Tensor]


_DISABLE, _ENABLE = _autograd._saved_tensors_hooks_disable, _autograd._saved_tensors_hooks_enable


class HookPair:
    """The pair of one thread. It does its work only between `push` and `park`.

    While operations are captured into a CUDA graph, which replays fixed addresses, all storages are kept.

    Args:
        capturing: tells whether they are
    """

    def __init__(self, capturing: Callable[[], bool] | None = None) -> None:
        self._capturing = is_capturing if capturing is None else capturing
        self._thread = threading.get_ident()
        self._is_disabled = False
        self._pack: Pack = _refuse
        self._unpack: Unpack = _refuse
        self._below: Any = None
        self.pushed = False
        self.unpacked = False
        # Bound once: the stack is compared by identity.
        self._hooks = (self._do_pack, self._do_unpack)

    def work(self, pack: Pack, unpack: Unpack) -> None:
        """Pack and unpack in this way from now on; what was packed before is unpacked as it was packed."""
        self._pack, self._unpack = pack, unpack

    def push(self) -> bool:
        """Put the pair on the stack; False where another's pair is there that was not there the first time."""
        if self.pushed:
            return True
        if self._is_disabled:
            return False
        top = _autograd._top_saved_tensors_default_hooks(False)
        if self._below is None:
            self._below = (top,)
        elif not _same(top, self._below[0]):
            return False
        _autograd._push_saved_tensors_default_hooks(*self._hooks)
        self.pushed = True
        return True

    def park(self) -> bool:
        """Take the pair from the stack; False where another's lies above."""
        if not self.pushed:
            return True
        if not _same(_autograd._top_saved_tensors_default_hooks(False), self._hooks):
            return False
        _autograd._pop_saved_tensors_default_hooks()
        self.pushed = False
        return True

    def open(self) -> None:
        """Push, and park from now on while torch's switch disables hooks of saved tensors."""
        self.push()
        _autograd._saved_tensors_hooks_disable, _autograd._saved_tensors_hooks_enable = self._disable, self._enable

    def _disable(self, message: str, fail_if_non_empty: bool = True) -> None:
        parked = fail_if_non_empty and self.pushed and threading.get_ident() == self._thread and self.park()
        try:
            _DISABLE(message, fail_if_non_empty)
        except RuntimeError:
            if parked:
                self.push()
            raise
        self._is_disabled |= parked

    def _enable(self) -> None:
        _ENABLE()
        if self._is_disabled and threading.get_ident() == self._thread:
            self._is_disabled = False
            self.push()

    def remove(self) -> None:
        """Take the pair from the stack, wherever in it: what lies above stays in its order."""
        _autograd._saved_tensors_hooks_disable, _autograd._saved_tensors_hooks_enable = _DISABLE, _ENABLE
        above = []
        while self.pushed and not self.park():
            above.append(_autograd._top_saved_tensors_default_hooks(False))
            _autograd._pop_saved_tensors_default_hooks()
        for pair in reversed(above):
            _autograd._push_saved_tensors_default_hooks(*pair)

    def _do_pack(self, tensor: torch.Tensor) -> tuple[Unpack, Any]:
        if self._capturing():
            return keep_unpack, keep_pack(tensor)
        packed = self._pack(tensor)  # which may begin a pass, and with it change who unpacks
        return self._unpack, packed

    def _do_unpack(self, packed: tuple[Unpack, Any]) -> torch.Tensor:
        if packed[0] is not keep_unpack or not self._capturing():
            self.unpacked = True
        return packed[0](packed[1])


def is_capturing() -> bool:
    """Whether the current stream of a GPU is being captured into a CUDA graph."""
    return torch.cuda.is_initialized() and bool(torch.cuda.is_current_stream_capturing())


def keep_pack(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Keep a tensor as autograd does. Its version goes along: under hooks, autograd compares none."""
    return tensor, tensor._version


def keep_unpack(packed: tuple[torch.Tensor, int]) -> torch.Tensor:
    """Give a kept tensor back.

    Raises:
        RuntimeError: it was changed in place since
    """
    tensor, version = packed
    check_kept(tensor, version)
    return tensor


def _same(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return bool(one[0] == other[0] and one[1] == other[1])


def _refuse(_value: Any) -> Any:
    raise RuntimeError("the pair of hooks was given no work")


Kinds = tuple[type[TorchDispatchMode], ...]


class ModePlace:
    """The place of our modes: above what is on the stack now.

    Args:
        kinds: of our modes
    """

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._depth = len(_get_current_dispatch_mode_stack())

    @contextlib.contextmanager
    def on_top(self) -> Iterator[None]:
        """Take what the loop has entered off the stack, and put it back afterwards."""
        others: list[TorchDispatchMode] = []
        stack = _get_current_dispatch_mode_stack()
        while len(stack) > self._depth and not isinstance(stack[-1], self._kinds):
            others.append(_pop_mode())
            stack = stack[:-1]
        try:
            yield
        finally:
            for mode in reversed(others):
                _push_mode(mode)


Signature = tuple[Any, ...]
"""Hashable look of a batch: nested tuples of shapes, dtypes, flags."""

WITHOUT_MODULE = "without module"
_DEPTH = 6

_serials: dict[int, tuple["weakref.ref[torch.Tensor]", int]] = {}
_count = itertools.count(1)


def look_at(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Signature:
    """The look of a call of an outermost module.

    Args:
        module: that is called
        args: positional arguments
        kwargs: arguments by name
    """
    kind = f"{type(module).__module__}.{type(module).__qualname__}"
    which = _which(module)
    return (kind, module.training, _autocast(), _look(tuple(args), _DEPTH), _look(dict(kwargs), _DEPTH), which)


def look_at_tensor(tensor: torch.Tensor) -> Signature:
    """The look of a step of which no module is known: the first tensor that autograd packs."""
    return (WITHOUT_MODULE, True, _autocast(), _look(tensor, 1), ())


def is_within(small: Any, large: Any) -> bool:
    """Whether a batch looks like another one, with no dimension larger: then it needs no more memory.

    Example:
        >>> is_within((("T", "float32", (3, 8)),), (("T", "float32", (4, 8)),))
        True
        >>> is_within((("T", "float32", (5, 8)),), (("T", "float32", (4, 8)),))
        False
    """
    if isinstance(small, tuple) and isinstance(large, tuple):
        if len(small) != len(large):
            return False
        if len(small) == 3 and small[0] == "T" == large[0]:
            return (
                small[1] == large[1]
                and len(small[2]) == len(large[2])
                and all(one <= other for one, other in zip(small[2], large[2], strict=True))
            )
        return all(is_within(one, other) for one, other in zip(small, large, strict=True))
    return bool(small == large)


def _which(module: torch.nn.Module) -> tuple[int, int]:
    """Which model it is, by its first parameter, and which of its parameters are trained.

    Not by the module itself: a loop may put the same parts into a new module at each step.
    """
    parameters = list(module.parameters())
    if not parameters:
        return 0, 0
    return _serial_of(parameters[0]), hash(tuple(parameter.requires_grad for parameter in parameters))


def _serial_of(parameter: torch.Tensor) -> int:
    """A number of a parameter that no later one gets, as it may get the same address."""
    known = _serials.get(id(parameter))
    if known is not None and known[0]() is parameter:
        return known[1]
    key, serial = id(parameter), next(_count)
    _serials[key] = weakref.ref(parameter, lambda _: _forget(key, serial)), serial
    return serial


def _forget(key: int, serial: int) -> None:
    if key in _serials and _serials[key][1] == serial:
        del _serials[key]


def _autocast() -> tuple[str, ...]:
    return tuple(
        f"{kind}:{torch.get_autocast_dtype(kind)}" for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)
    )


def _look(value: Any, depth: int) -> Signature | str | bool | None:
    if isinstance(value, torch.Tensor):
        return ("T", str(value.dtype), tuple(value.shape))
    if value is None or isinstance(value, bool | str):
        return value
    if depth and isinstance(value, Mapping):
        return tuple((str(name), _look(part, depth - 1)) for name, part in value.items())
    if depth and isinstance(value, list | tuple):
        return tuple(_look(part, depth - 1) for part in value)
    return type(value).__qualname__


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A pass that was recorded.

    Attributes:
        recording: what happened
        outside_bytes: on the device all the time, and no part of it [bytes]: what autograd holds of passes before it,
            and what a GPU's allocator knows of
        carried_bytes: part of it that autograd holds of passes before it, as far as these run without a plan [bytes]
        seen: looks of the batches in it
    """

    recording: Recording
    outside_bytes: int = 0
    carried_bytes: int = 0
    seen: frozenset[Signature] = frozenset()


class StepRecorder:
    """At most one recording at a time.

    Modules are followed once their root is known, and unless parts of it are compiled: torch.compile would compile them
    again when the hooks of the recording come, and again when they go.

    Args:
        place: of our modes
        elsewhere: tells which storages count as memory of the host
        device_of: the device of a recording, with its copies
    """

    def __init__(
        self,
        place: ModePlace,
        elsewhere: Callable[[torch.UntypedStorage], bool],
        device_of: Callable[[Recording], LoopDevice],
    ) -> None:
        self._place = place
        self._elsewhere = elsewhere
        self._device_of = device_of
        self._last: Recording | None = None
        self._root: nn.Module | None = None
        self._allocated_bytes = 0
        self._carried_bytes = 0
        self._earlier: list[Recorder] = []
        self._recorder: Recorder | None = None

    def knows(self, root: nn.Module | None) -> bool:
        """Whether the last recording knew the outermost module that is known now."""
        return root is self._root

    @property
    def is_recording(self) -> bool:
        """Whether a recording runs."""
        return self._recorder is not None

    @property
    def hooks(self) -> tuple[Pack, Unpack] | None:
        """How to pack and unpack in the recording that runs; None where none does."""
        return None if self._recorder is None else (self._recorder.saved.pack, self._recorder.saved.unpack)

    def start(self, root: nn.Module | None, optimizers: Iterable[Optimizer], *, waiting: bool) -> None:
        """Record from now on, or go on. What has noted too much before a forward, as in an evaluation, starts over.

        Args:
            root: outermost module, whose parameters get names; None: not known yet
            optimizers: whose state is there
            waiting: whether no forward has begun yet
        """
        if self._recorder is not None and self._recorder.tired and not waiting:
            self.abandon()
        if self._recorder is not None:
            self._recorder.wait(waiting)
            return
        opaque = root is not None and has_compiled(root)
        self._root = root
        self._allocated_bytes = torch.cuda.memory_allocated() if torch.cuda.is_initialized() else 0
        recorder = Recorder(
            root,
            hooks=False,
            follow=root is not None and not opaque,
            opaque=opaque,
            elsewhere=self._elsewhere,
            store=self._store(),
            real=True,
        )
        with self._place.on_top():
            recorder.start()
        for optimizer in optimizers:
            recorder.count(optimizer)
        recorder.wait(waiting)
        self._carried_bytes = sum(one.saved.held_bytes() for one in self._earlier)
        for one in self._earlier:
            recorder.meet_left(one)
        self._recorder = recorder

    def stop(self) -> "Recorded | None":
        """End the recording, if one runs, and take it."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return None
        with self._place.on_top():
            recording = recorder.stop()
        self._earlier.append(recorder)
        outside_bytes = self._carried_bytes  # not on the device while recording, but while a plan runs
        if recording.trace.device == "cuda":
            self._last = recording
            seen = sum(one.nbytes for one in recording.trace.storages if one.birth < 0)
            outside_bytes += max(0, self._allocated_bytes - seen)
        return Recorded(recording=recording, outside_bytes=outside_bytes, carried_bytes=self._carried_bytes)

    def end_step(self) -> None:
        """Passes of the next step do not find what autograd holds of this one's."""
        self._earlier.clear()

    def abandon(self) -> None:
        """End the recording, if one runs, and forget it."""
        recorder, self._recorder = self._recorder, None
        self._root = None
        if recorder is not None:
            with self._place.on_top():
                recorder.abandon()

    def _store(self) -> ByteStore | None:
        """Page-locked memory for what a GPU packs, once a recording has told how much that is; else ordinary memory.

        Copies to ordinary memory keep the host waiting, and the times of operations are those of a GPU that waits.
        """
        recording, self._last = self._last, None
        if recording is None:
            return None
        device = self._device_of(recording)
        packed_bytes = sum(one.nbytes for one in recording.trace.storages if one.packs and one.role not in WEIGHTS)
        room = packed_bytes + packed_bytes // 16 + PAGE_BYTES
        return ArenaStore(device.engine, device.own_arena(min(room, device.host_bytes)))


class AllocatorLimit:
    """Limits a GPU's allocator to a number of bytes, from `hold` to `release`. What others allocate is not counted."""

    def __init__(self) -> None:
        self._held: int | None = None

    def hold(self, nbytes: int) -> None:
        """More than this is an out-of-memory error from now on.

        Args:
            nbytes: most that may be reserved [bytes]
        """
        self._held = torch.cuda.current_device()
        total = torch.cuda.get_device_properties(self._held).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, nbytes / total), self._held)

    def release(self) -> None:
        """As much as there is."""
        if self._held is not None:
            torch.cuda.set_per_process_memory_fraction(1.0, self._held)
            self._held = None


class Gauge:
    """Measures from `start` to `stop`.

    Args:
        place: of our modes
        account: whether live bytes are counted on a CPU, operation by operation
    """

    def __init__(self, place: ModePlace, *, account: bool) -> None:
        self._place = place
        self._account = account
        self._accountant: Accountant | None = None

    def start(self, device: str) -> None:
        """A step begins; nothing happens if one is measured already.

        Args:
            device: "cpu" or "cuda"
        """
        if self._accountant is None and (self._account or device == "cuda"):
            self._accountant = Accountant(device)
            with self._place.on_top():
                self._accountant.__enter__()

    def stop(self) -> int | None:
        """It has ended; its peak [bytes], None where nothing measured."""
        accountant, self._accountant = self._accountant, None
        if accountant is None:
            return None
        with self._place.on_top():
            accountant.__exit__(None, None, None)
        return accountant.peak_bytes
