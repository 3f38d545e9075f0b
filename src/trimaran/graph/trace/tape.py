"""The events of a step while it runs.

A hook on a user's module that its copies do not carry on.

A model may be copied or saved at any time, with the hooks that it has. A bound method as a hook would take its whole
object along; this one is left behind: in a copy, or a file, lies a function of the standard library that takes anything
and does nothing. So a file can be read where this project is not installed.

Where the step is in the model: the call of a module, and the torch function in it, that run in the forward; in the
backward, those that made the node of autograd that runs.

Autograd numbers its nodes in the order in which the forward makes them. Noting that number whenever a module or a
function begins or ends tells, in the backward, where a node came from.

A module that is called in the backward runs again what it ran in the forward, as checkpoints do: the last call first.
It has the places of that call.
"""

import bisect
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as hooks

from trimaran.graph.trace.calls import Call
from trimaran.graph.trace.storages import StorageBook
from trimaran.graph.trace.types import Tick, TraceOp
from trimaran.graph.types import OUTSIDE, ROOT, Phase

_RANKS = {"cpu": 0, "meta": 1}
"""Which device a step is on that has tensors on several; not named: above these."""


def in_backward() -> bool:
    """Whether autograd runs a backward on this thread."""
    return torch._C._current_graph_task_id() != -1


@dataclass
class Tape:
    """What has happened so far in the step.

    Attributes:
        events: operations and ticks in order; the `end` of a tick and times of a GPU are set when the step has ended
        ends: `Tick.end` by moment, of those that have ended
        calls: operations that can be run again, by moment
        intervals: events before and after an operation on a GPU, by moment
        packs: number of packs
        unpacks: number of unpacks
        running: whether an operation runs now, whose event comes when it has ended
        busy: whether operations now are our own, and are no events
        stopped: whether nothing is noted any more
        updating: whether an optimizer steps now
        place: device of the step, as far as known; None: no tensor was seen
        real: whether the step is known to be none on meta tensors, although autograd may use some in forward mode
        waiting: whether no forward has begun yet; then no more than `patience` events are noted
        patience: see `waiting`
        loaded: moment at which a batch was last made, unseen; 0: none was, or before the first event
        gradients: storage of the gradient by that of its parameter
        optimizer: class name of the first optimizer that steps
        repeats: see `StepTrace`
    """

    events: list[TraceOp | Tick] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    calls: dict[int, Call] = field(default_factory=dict)
    intervals: dict[int, tuple[torch.cuda.Event, torch.cuda.Event]] = field(default_factory=dict)
    packs: int = 0
    unpacks: int = 0
    running: bool = False
    busy: bool = False
    stopped: bool = False
    updating: bool = False
    place: torch.device | None = None
    real: bool = False
    waiting: bool = False
    patience: int = 10_000
    loaded: int = 0
    gradients: dict[int, int] = field(default_factory=dict)
    optimizer: str = ""
    repeats: bool = False
    book: StorageBook = field(init=False)

    def __post_init__(self) -> None:
        self.book = StorageBook(self.now)

    @property
    def device(self) -> str:
        """Kind of the device: "cpu", "meta" or "cuda"; "" before any tensor was seen."""
        return "" if self.place is None else self.place.type

    @property
    def tired(self) -> bool:
        """Whether so much has come without a forward, as in an evaluation, that the tape is of no use any more."""
        return self.waiting and len(self.events) >= self.patience

    def see(self, device: torch.device) -> None:
        """A tensor is on a device. Batches are made on the host: any other device that is seen is the step's."""
        if self.real and device.type == "meta":
            return
        if self.place is None or _RANKS.get(device.type, 2) > _RANKS.get(self.place.type, 2):
            self.place = device

    def now(self) -> int:
        """First moment at which what goes now is no more there: the operation that runs still has it."""
        return len(self.events) + self.running

    def phase(self) -> Phase:
        """Part of the step that runs.

        What runs without gradients between the backward and the optimizer, as the clipping of gradients does, is part
        of the update.
        """
        if in_backward():
            return Phase.BACKWARD
        if self.updating or (self.unpacks and not torch.is_grad_enabled()):
            return Phase.UPDATE
        return Phase.FORWARD


class ModuleHook:
    """Passes what a module tells its hooks on.

    Args:
        call: takes it; the result, if any, is that of the hook

    Example:
        >>> import copy
        >>> watch = ModuleHook(lambda *given: len(given))
        >>> watch("module", (1, 2)), copy.deepcopy(watch)("module", (1, 2))
        (2, None)
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *given: Any) -> Any:
        """Pass it on."""
        return self._call(*given)

    def __reduce__(self) -> tuple[Any, ...]:
        """What a copy has in its place."""
        return getattr, (contextlib.nullcontext(), "__exit__")


class CallSite(NamedTuple):
    """Where an operation is called from.

    Attributes:
        module: path of the module; "" outside of all modules, and in the root
        origin: see `TraceOp`
    """

    module: str
    origin: str


NOWHERE = CallSite("", OUTSIDE)
"""Outside of all modules."""


class ModulePaths:
    """The call of a module, and the torch function in it, that run.

    Args:
        root: whose names to use; None: the first module that runs from outside is the root; others that do have the
            names of their classes
        met: told of each root with its name, "" for the first
    """

    def __init__(self, root: nn.Module | None, met: Callable[[nn.Module, str], None]) -> None:
        self._met = met
        self._names: dict[int, str] = {}
        self._roots: list[nn.Module] = []  # held, so that no other module gets the identity of one of theirs
        self._calls: dict[str, int] = {}  # of each module so far, in the forward
        self._repeats: dict[str, int] = {}  # of each module since its last call in the forward
        self._functions: dict[str, list[str]] = {}  # of each call, in order
        self._replayed: dict[str, Iterator[str]] = {}  # of each call that runs again, those to come
        self._stack: list[CallSite] = []
        self._function: CallSite | None = None
        self._numbers: list[int] = []
        self._places: list[CallSite] = []
        self._handles: list[Any] = []
        if root is not None:
            self._adopt(root, "")

    def install(self) -> None:
        """Follow modules from now on: those of the root where it is known, else whichever runs."""
        if not self._roots:
            self._handles = [
                hooks.register_module_forward_pre_hook(self._begin),
                hooks.register_module_forward_hook(self._end, always_call=True),
            ]
            return
        for module in dict.fromkeys(_not_compiled(self._roots[0])):
            self._handles.append(module.register_forward_pre_hook(ModuleHook(self._begin)))
            self._handles.append(module.register_forward_hook(ModuleHook(self._end), always_call=True))

    def remove(self) -> None:
        """Follow them no more, and let go of them."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._names.clear()
        self._roots.clear()

    @property
    def current(self) -> CallSite:
        """What runs."""
        return self._function or (self._stack[-1] if self._stack else NOWHERE)

    def of_node(self, number: int) -> CallSite:
        """What ran when autograd made the node of that number; `NOWHERE` where unknown."""
        place = bisect.bisect_right(self._numbers, number) - 1
        return self._places[place] if place >= 0 else NOWHERE

    def begin_function(self, name: str) -> None:
        """A torch function begins, called by the module that runs; one that a node of autograd calls has its place.

        Args:
            name: of the function, with its number; see `TraceOp.origin`
        """
        caller = self._stack[-1] if self._stack else NOWHERE
        if not in_backward():
            self._functions.setdefault(caller.origin, []).append(name)
        elif self._stack:
            name = next(self._replayed.get(caller.origin, iter(())), name)
        else:
            return
        self._function = CallSite(caller.module, f"{caller.origin}/{name}")
        self._mark()

    def end_function(self) -> None:
        """The torch function ends."""
        self._function = None
        self._mark()

    def _begin(self, module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if id(module) not in self._names:
            self._adopt(module, "" if not self._roots else type(module).__name__)
        path = self._names[id(module)]
        calls = self._calls.get(path, 0)
        repeats = self._repeats.get(path, 0)
        again = in_backward()
        number = -(repeats + 1) % (calls or 1) if again else calls
        self._calls[path], self._repeats[path] = (calls, repeats + 1) if again else (calls + 1, 0)
        origin = f"{path}@{number}" if number else path or ROOT
        if again:
            self._replayed[origin] = iter(self._functions.get(origin, ()))
        self._stack.append(CallSite(path, origin))
        self._mark()

    def _end(self, module: nn.Module, _: Any, __: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if self._stack:
            self._stack.pop()
        self._mark()

    def _mark(self) -> None:
        number = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        if self._numbers and number < self._numbers[-1]:
            return  # another thread numbers its own nodes
        if self._numbers and number == self._numbers[-1]:
            self._places[-1] = self.current  # no node was made since
            return
        self._numbers.append(number)
        self._places.append(self.current)

    def _adopt(self, root: nn.Module, prefix: str) -> None:
        self._roots.append(root)
        for path, module in root.named_modules(prefix=prefix):
            self._names.setdefault(id(module), path)
        self._met(root, prefix)


def _not_compiled(module: nn.Module) -> Iterator[nn.Module]:
    """A module and those below it, without compiled ones: hooks inside these would have them compiled again."""
    if type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None:
        return
    if isinstance(module, torch.jit.ScriptModule):
        return  # an interpreter runs it, and calls no hooks of Python inside
    yield module
    for child in module.children():
        yield from _not_compiled(child)
