"""Records one training step, on meta tensors or for real.

    with Recorder(model) as recorder:
        loss(model(x), y).backward()
        optimizer.step()
    recorder.recording.trace

While it records, autograd holds no tensor that it packs: each is let go, and given back in a storage of its own. So the
recorded step tells how long everything is there without autograd, and each time that autograd needs something again.
Gradients are those of an ordinary step, bit for bit.

What is left out: tensors that autograd does not pack (attributes of a custom function's context), kernels inside
compiled blocks, and steps on several threads.
"""

import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import _get_current_dispatch_mode

from trimaran.errors import ExecutionError
from trimaran.graph.trace.calls import Recording
from trimaran.graph.trace.census import Census
from trimaran.graph.trace.finish import finished
from trimaran.graph.trace.liveness import WEIGHTS
from trimaran.graph.trace.modules import ModulePaths
from trimaran.graph.trace.operations import Operations
from trimaran.graph.trace.saved import HostStore, SavedTensors, Store
from trimaran.graph.trace.tape import Tape
from trimaran.graph.trace.types import Role


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
