"""The recorder, behind our own pair of hooks: it may be started and stopped at any end of a flight."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from trimaran.graph.trace.calls import Recording
from trimaran.graph.trace.liveness import WEIGHTS
from trimaran.graph.trace.record import Recorder
from trimaran.graph.trace.saved import Store
from trimaran.runtime.memory.arena import PAGE_BYTES
from trimaran.runtime.memory.store import ArenaStore
from trimaran.session.virtual.batches import Signature
from trimaran.session.virtual.device import Device
from trimaran.session.virtual.hooks import Pack, Unpack
from trimaran.session.virtual.modes import ModePlace


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A flight that was recorded.

    Attributes:
        recording: what happened
        outside_bytes: on the device all the time, and no part of it [bytes]: what autograd holds of flights before it,
            and what a GPU's allocator knows of
        carried_bytes: part of it that autograd holds of flights before it, as far as these run without a plan [bytes]
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
        device_of: Callable[[Recording], Device],
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
        return None if self._recorder is None else (self._recorder.pack, self._recorder.unpack)

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
        self._carried_bytes = sum(one.held_bytes for one in self._earlier)
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
        """Flights of the next step do not find what autograd holds of this one's."""
        self._earlier.clear()

    def abandon(self) -> None:
        """End the recording, if one runs, and forget it."""
        recorder, self._recorder = self._recorder, None
        self._root = None
        if recorder is not None:
            with self._place.on_top():
                recorder.abandon()

    def _store(self) -> Store | None:
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


def has_compiled(root: nn.Module) -> bool:
    """Whether a module, or one inside it, is compiled."""
    return any(
        module._compiled_call_impl is not None or hasattr(module, "_torchdynamo_orig_callable")
        for module in root.modules()
    )
