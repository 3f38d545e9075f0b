"""Writes down what a rank does: blocks of memory, kernels, collectives, streams, parts of the step.

A block is the storage of a tensor on the simulated device: it is taken when a kernel makes it and given back when the
last tensor on it is gone, which Python tells.
"""

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn
from zlib import crc32

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from trimaran.base.precision import dtype_name
from trimaran.rehearsal.lines import Lines
from trimaran.rehearsal.record import (
    Await,
    Collective,
    Empty,
    Enter,
    EventMark,
    Give,
    Invented,
    Issue,
    Kernel,
    Moves,
    Name,
    Part,
    Purpose,
    Record,
    Run,
    Step,
    Sync,
    Take,
    TensorForm,
    Use,
    Wait,
)
from trimaran.rehearsal.workspaces import is_product, product_bytes, scratch_bytes
from trimaran.simulator.allocator import Allocator, NoRoom, Settings


def nbytes_of(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def form_of(tensor: torch.Tensor) -> TensorForm:
    """A tensor without its data."""
    shape = tuple(int(size) for size in tensor.shape)
    strides = None if tensor.layout != torch.strided or tensor.is_contiguous() else tuple(map(int, tensor.stride()))
    return TensorForm(shape, dtype_name(tensor.dtype), tensor.device.type, strides)


_LOOKED_AT = 64, 4096
"""Elements of a tensor by which batches are told apart: more than what is logged, and at most."""


class ScriptRecorder:
    """What happens, in the order in which the host asks for it.

    Args:
        record: that takes it
        lines: tells where
        pool: the device's memory
    """

    def __init__(self, record: Record, lines: Lines, pool: Allocator) -> None:
        self.record = record
        self.lines = lines
        self.pool = pool
        self.steps = 0
        self.is_looking = False  # whether a session tries the job, before it trains
        self.has_refused = False  # whether memory ran out, and the script was told
        self.trained = False  # whether a forward with gradients has begun
        self._updating = 0
        self._purpose: Purpose | None = None
        self._part: Part = "setup"
        self._blocks: dict[int, int] = {}  # of a storage, by its address
        self._taken: dict[int, Take] = {}  # of a block that is not given back
        self.labels: dict[int, Any] = {}  # of a block, what `Gradients` keeps of it
        self.last_look: Callable[[], None] = lambda: None  # before the record is written
        self._late: deque[int] = deque()  # blocks that are gone and not given back yet
        self._asking = threading.Lock()  # held while the pool answers
        self._next = 0
        self._kernels: dict[Kernel | tuple[Any, ...], int] = {}
        self._invented: dict[tuple[str, str, str, int], int] = {}
        self._noted: set[str] = set()
        self._outstanding: list[int] = []
        self._streams: dict[int, list[Any]] = {}
        self._made_streams = 0
        self._sent = 0  # digest of what the host has given the device since the first step
        self._nodes: list[int] = []  # of autograd that were made at the end of each step
        self._compiling: int | None = None  # depth of calls that are compiled; None: the script compiles nothing
        self._compiled: set[int] = set()  # stacks of lines that were in such a call
        self._is_compiled = False  # the last kernel
        self.default_stream: Any = None
        self.capability: tuple[int, int] | None = None  # of the device; None: libraries take no workspace
        self._workspaces: dict[tuple[bool, int], int] = {}  # block by whether autograd calls, and stream

    # -----------------------------------------------------------------------------------------------------------------
    # Parts of the step

    @property
    def part(self) -> Part:
        """Part of the step that runs."""
        if torch._C._current_graph_task_id() != -1:
            part: Part = "backward"
        elif self._updating:
            part = "update"
        else:
            part = "forward" if self.trained else "setup"
        if part != self._part:
            self._part = part
            self.record.events.append(Enter(part))
        return part

    def begin_update(self) -> None:
        """An optimizer begins to step."""
        self._updating += 1

    def end_update(self) -> None:
        """An optimizer has stepped."""
        self._updating = max(0, self._updating - 1)

    @property
    def is_updating(self) -> bool:
        """Whether an optimizer steps."""
        return self._updating > 0

    def sent(self, source: Any) -> None:
        """The host gives the device values that it knows; after the first step they are of batches."""
        has_values = type(source) is torch.Tensor and source.layout == torch.strided
        if self.steps and has_values and source.numel() > _LOOKED_AT[0]:
            with _disable_current_modes():
                part = source.detach().flatten()[: _LOOKED_AT[1]].contiguous().view(torch.uint8)
                self._sent = crc32(part.numpy().tobytes(), self._sent)

    def stepped(self) -> None:
        """All optimizers of a step have stepped."""
        if self.steps:
            self.record.batches = f"sent {self._sent}" if self._sent else f"seed {torch.initial_seed()}"
        self.record.events.append(Step(self.steps))
        self.steps += 1
        self._nodes.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]

    # -----------------------------------------------------------------------------------------------------------------
    # Streams

    def new_stream(self) -> int:
        """The number of a stream; the first one is the default."""
        self._made_streams += 1
        return self._made_streams - 1

    @property
    def stream_stack(self) -> list[Any]:
        """Streams that this thread is in, the current one last. Threads of autograd are in those of the main one."""
        thread = threading.current_thread()
        if thread is threading.main_thread() or isinstance(thread, threading._DummyThread):
            key = 0
        else:
            key = thread.ident or 0
        stack = self._streams.get(key)
        if stack is None:
            stack = self._streams[key] = [self.default_stream]
        return stack

    @property
    def stream(self) -> int:
        """Number of the current stream."""
        return int(self.stream_stack[-1].number)

    def mark(self, event: int, stream: int) -> None:
        """An event is recorded on a stream."""
        self.record.events.append(EventMark(event, stream))

    def wait_event(self, event: int, stream: int) -> None:
        """A stream waits for an event."""
        self.record.events.append(Await(event, stream))

    def synchronize(self, stream: int = -1) -> None:
        """The host waits for a stream, or for all."""
        self.record.events.append(Sync(stream, self.lines.stack()))
        if stream < 0:
            self._ask(self.pool.synchronize)
        else:
            self._ask(self.pool.passed, stream)

    # -----------------------------------------------------------------------------------------------------------------
    # Memory

    def take(self, tensor: torch.Tensor, purpose: Purpose | None = None) -> None:
        """A tensor is on the device; its storage is a block, unless it is one already."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return  # sparse tensors hold two others, which are met by themselves
        key = storage._cdata
        if key in self._blocks:
            return
        part = self.part
        stream = self.stream
        purpose = purpose or self._purpose
        if purpose is None:
            if stream != self.default_stream.number and part in ("forward", "backward"):
                purpose = "communication"
            elif part == "setup":
                purpose = "other"
            else:
                purpose = "activation" if part == "forward" else "temporary"
        lines, module = self.lines.here()
        block = self._next
        self._next += 1
        self._blocks[key] = block
        self._grant(block, storage.nbytes(), stream, purpose, lines, module, part)
        weakref.finalize(storage, self._gone, key).atexit = False

    @contextmanager
    def taken_for(self) -> Iterator[None]:
        """What is allocated now is for one purpose."""
        before, self._purpose = self._purpose, "communication"
        try:
            yield
        finally:
            self._purpose = before

    def _grant(
        self, block: int, nbytes: int, stream: int, purpose: Purpose, lines: int, module: int, part: Part
    ) -> None:
        if not block:
            self._configure()
        events = self.record.events
        taken = self._taken[block] = Take(block, nbytes, stream, purpose, lines, module, part)
        events.append(taken)
        try:
            if nbytes:
                self._ask(self.pool.take, block, nbytes, stream)
        except NoRoom:
            events.remove(taken)
            self._refuse(block, nbytes)

    def _refuse(self, block: int, nbytes: int) -> NoReturn:
        """The script gets the error that it would get on the device, and no memory."""
        self.has_refused = True
        del self._taken[block]
        self._blocks = {key: other for key, other in self._blocks.items() if other != block}
        self.empty_cache()
        self.note("out of memory where the script catches it: it was told so, and went on")
        raise torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {nbytes / 2**30:.2f} GiB. "
            f"{self.pool.allocated / 2**30:.2f} GiB is allocated by PyTorch."
        )

    def _gone(self, key: int) -> None:
        block = self._blocks.pop(key, None)
        if block is not None:
            self._late.append(block)
            self._return_late()

    def _return(self, block: int) -> None:
        if self._forget(block):
            self._ask(self.pool.give, block)

    def _forget(self, block: int) -> bool:
        """A block is given back; whether it has bytes."""
        self.record.events.append(Give(block))
        self.labels.pop(block, None)
        taken = self._taken.pop(block, None)
        return taken is not None and taken.nbytes > 0

    def _ask(self, method: Callable[..., Any], *args: Any) -> Any:
        """Ask the pool, which answers one question at a time.

        Python collects garbage wherever it likes, in the middle of an answer too: what is gone meanwhile is given back
        after it.
        """
        with self._asking:
            found = method(*args)
        self._return_late()
        return found

    def _return_late(self) -> None:
        while self._late and self._asking.acquire(blocking=False):
            try:
                block = self._late.popleft()
                if self._forget(block):
                    self.pool.give(block)
            except IndexError:  # another thread was faster
                return
            finally:
                self._asking.release()

    def _configure(self) -> None:
        """Settings of the allocator are read when it is first asked, as a script may set them before."""
        text = Settings.text_of_environment()
        self.pool.configure(Settings.parse(text))
        self.record.allocator = text
        for note in self.pool.settings.notes:
            self.note(note)

    def empty_cache(self) -> None:
        """What is reserved and not allocated goes back to the device."""
        self.record.events.append(Empty())
        self._ask(self.pool.empty_cache)

    def _hold(self, nbytes: int, purpose: Purpose) -> int:
        """A block that is no tensor; its number."""
        lines, module = self.lines.here()
        block = self._next
        self._next += 1
        self._grant(block, nbytes, self.stream, purpose, lines, module, self.part)
        return block

    def scratch(self, kernel: Kernel) -> None:
        """What an operator takes after its results and gives back when it ends."""
        nbytes = scratch_bytes(kernel)
        if nbytes:
            self._return(self._hold(nbytes, "temporary"))

    def clear_workspaces(self) -> None:
        """Workspaces of the library of products are given back."""
        for block in self._workspaces.values():
            self._return(block)
        self._workspaces.clear()

    def resize(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        """A storage is resized in place: its block is given back, and another one taken."""
        block = self._blocks.get(storage._cdata)
        if block is None or self._taken[block].nbytes == nbytes:
            return
        self._return(block)
        again = self._next
        self._next += 1
        self._blocks[storage._cdata] = again
        lines, module = self.lines.here()
        self._grant(again, nbytes, self.stream, "communication", lines, module, self.part)

    def use(self, tensor: torch.Tensor, stream: int) -> None:
        """A tensor is used on another stream (`record_stream`)."""
        block = self._blocks.get(tensor.untyped_storage()._cdata)
        if block is not None:
            self.record.events.append(Use(block, stream))
            self._ask(self.pool.use, block, stream)

    def name(self, tensor: torch.Tensor, purpose: Purpose) -> None:
        """What a tensor is for has become known."""
        try:
            block = self._blocks.get(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):
            return
        if block is not None:
            self.record.events.append(Name(block, purpose))

    def places(self, index: int, tensor: torch.Tensor | None = None, *, trained: bool = False) -> None:
        """A device of the node is used by NCCL or, which tells more, for what is trained."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")  # a script may have said it for itself
        if index < len(visible) and visible[index].strip().isdecimal():
            index = int(visible[index])
        if trained or index not in self.record.devices:
            block = None if tensor is None else self._blocks.get(tensor.untyped_storage()._cdata)
            taken = (one.lines for one in self.record.events if type(one) is Take and one.block == block)
            self.record.devices[index] = next(taken, 0) or self.lines.stack()

    def block_of(self, tensor: torch.Tensor) -> Take | None:
        """The block that a tensor is in; None: it is not on the device, or has no storage."""
        try:
            return self._taken.get(self._blocks.get(tensor.untyped_storage()._cdata, -1))
        except (NotImplementedError, RuntimeError):
            return None

    # -----------------------------------------------------------------------------------------------------------------
    # Work

    def run(self, kernel: Kernel) -> None:
        """A kernel is launched."""
        if self.capability is not None and is_product(kernel):
            caller = (self.part == "backward", self.stream)
            if caller not in self._workspaces:
                nbytes = product_bytes(self.capability, os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
                self._workspaces[caller] = self._hold(nbytes, "workspace")
        index = self.kernel_index(kernel)
        lines, module = self.lines.here()
        self.record.events.append(Run(index, self.stream, lines, module, self.part))

    @contextmanager
    def compiled(self) -> Iterator[None]:
        """What runs now would be compiled; its backward is, too."""
        self._compiling = (self._compiling or 0) + 1
        try:
            yield
        finally:
            self._compiling -= 1

    def moves(self, args: Any, outs: Any) -> None:
        """The tensors of the last kernel, where a script compiles."""
        if self._compiling is None:
            return
        lines, _ = self.lines.here()
        if self._compiling:
            self._compiled.add(lines)
        if self._part != "backward":
            self._is_compiled = self._compiling > 0
        elif lines in self._compiled or lines != self.lines.backward:  # sums of gradients have no line
            self._is_compiled = lines in self._compiled
        reads, writes = (
            tuple(
                self._blocks.get(one.untyped_storage()._cdata, -1) for one in tree_leaves(each) if torch.is_tensor(one)
            )
            for each in (args, outs)
        )
        self.record.events.append(Moves(reads, writes, self._is_compiled))

    def kernel_index(self, kernel: Kernel) -> int:
        """Position of a kernel in the record's table."""
        key = (kernel.name, kernel.inputs, kernel.outputs, repr(kernel.arguments), kernel.tf32)
        index = self._kernels.get(key)
        if index is None:
            index = self._kernels[key] = len(self.record.kernels)
            self.record.kernels.append(kernel)
        return index

    def issue(self, collective: Collective) -> int:
        """A collective is issued; its number."""
        number = len(self.record.collectives)
        self.record.collectives.append(collective)
        self.record.events.append(Issue(number))
        if collective.asynchronous:
            self._outstanding.append(number)
        return number

    def wait(self, number: int) -> None:
        """The current stream waits for a collective."""
        self.record.events.append(Wait(number, self.stream))
        if number in self._outstanding:
            self._outstanding.remove(number)

    def wait_for_issued_below_python(self, numbers: Iterable[int]) -> None:
        """The current stream waits for collectives whose waits happen where Python does not see them."""
        for number in numbers:
            if number in self._outstanding:
                self.wait(number)

    # -----------------------------------------------------------------------------------------------------------------
    # What no data can tell

    def invent(self, what: str, asked: str, value: object) -> None:
        """A value is given that the script asked for."""
        key = (what, asked, str(value), self.lines.stack())
        self._invented[key] = self._invented.get(key, 0) + 1

    def note(self, text: str) -> None:
        """Something was taken instead of what the script asked for."""
        if text not in self._noted:
            self._noted.add(text)
            self.record.notes.append(text)

    def finish(self) -> None:
        """Put what was counted into the record."""
        self.last_look()
        if len(self._nodes) > 2:
            with suppress(RuntimeError):  # of a view whose base was written to, torch does not say what made it
                self.record.keeper = self.lines.of_keeper(self._nodes[-3])
        self.record.invented = [
            Invented(what, asked, value, lines, count) for (what, asked, value, lines), count in self._invented.items()
        ]
