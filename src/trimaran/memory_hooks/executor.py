"""Executes a memory plan from inside autograd: one pair of hooks, called at every pack and every unpack.

    forward    pack 0   pack 1: OFF 3   pack 2: DEL 3, OFF 5   ...
    backward   unpack 0: PRE 5   unpack 1   unpack 2: PRE 3, RE 4   ...

The n-th pack and the n-th unpack are the program counter: what a step packs is the same each time, so a tick is known
by its number, and its tensor's shape, stride, offset and dtype say whether it really is the one that was planned for.
If not, the forward pass goes on without its plan, right but slow, and the owner of the executor is told.

Outside of the plan, autograd keeps tensors as usual: what a checkpoint packs while it recomputes inside a backward,
wrapper subclasses, sparse tensors, views with a conjugation or sign to be applied.

Two things cannot be combined with the hooks: `torch.func` transforms refuse hooks of saved tensors, and a CUDA graph is
replayed with the addresses of its capture, so that nothing may move. Errors say so, and what to do instead.
"""

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from trimaran.base.errors import ExecutionError, InputError
from trimaran.graph.trace.calls import Recording
from trimaran.graph.trace.in_place_changes import Witness
from trimaran.graph.trace.storages import has_storage
from trimaran.memory_hooks.arena import HostArena
from trimaran.memory_hooks.copies import CopyEngine, check_device
from trimaran.memory_hooks.planned import PlannedSteps
from trimaran.memory_hooks.reactive import LOOKS, Reactive
from trimaran.memory_hooks.recompute import repeat
from trimaran.memory_hooks.residence import Handle, MemoryStatistics, Repeat, Residence
from trimaran.memory_hooks.schedule import Externals, PackTick, Schedule, make_schedule, staying
from trimaran.memory_hooks.units import ForwardPass, KeptTensor
from trimaran.program.memory import KEEP_ALL, MemoryPlan

_TRANSFORM = (
    "A transform of torch.func (grad, vjp, jacrev, hessian) does not allow hooks of saved tensors, by which memory is "
    "virtualized. Compute it outside of the block, or use torch.autograd.grad."
)
_CAPTURE = (
    "Operations are being captured into a CUDA graph, whose replays use fixed addresses: nothing can be offloaded or "
    "recomputed in it. Capture outside of the block, or train without CUDA graphs (torch.compile: mode without "
    "'reduce-overhead')."
)


_PLAIN = (torch.Tensor, torch.nn.Parameter)
_task: Callable[[], int] = torch._C._current_graph_task_id
is_wrapper: Callable[[Any], bool] = is_traceable_wrapper_subclass


class MemoryExecutor:
    """The pair of hooks, and the forward passes that are under way.

    Args:
        recording: of the step; None: there is no plan, and each large storage is offloaded as it is packed
        plan: made from the recording's trace
        engine: copies; stays the caller's, as the arena does
        arena: memory on the host
        keep: tensors that must stay when there is no plan, in addition to those of the recording: parameters, buffers
        smallest_bytes: storages below it stay when there is no plan [bytes]
        observe: called at each tick of the plan with its moment, after its steps
        predicted_peak_bytes: for the statistics [bytes]

    Raises:
        InputError: the plan does not belong to the recording, or that was made on another device
    """

    def __init__(
        self,
        recording: Recording | None,
        plan: MemoryPlan,
        engine: CopyEngine,
        arena: HostArena,
        *,
        keep: Iterable[torch.Tensor] = (),
        smallest_bytes: int = 1 << 20,
        observe: Callable[[int], None] | None = None,
        predicted_peak_bytes: int | None = None,
    ) -> None:
        if recording is not None:
            check_device(recording.trace.device, engine)
        self._externals = None if recording is None else Externals(recording, plan)
        self._schedule = None if recording is None else make_schedule(recording.trace, plan, recording.externals)
        recipes: Repeat = _no_recipes if recording is None else functools.partial(repeat, recording)
        self._residence = Residence(engine, arena, recipes, self._externals)
        self._planned = PlannedSteps(self._residence, observe, self._externals)
        self._reactive = Reactive(self._residence, smallest_bytes)
        self._kept = weakref.WeakSet(tensor.untyped_storage() for tensor in keep)
        if recording is not None:
            self._kept.update(staying(recording))
        self._observe = observe
        self._predicted = predicted_peak_bytes
        self._verify = False
        self._in_backward: ForwardPass | None = None
        self._current = self._begin()
        self._residence.done = MemoryStatistics()

    @classmethod
    def without_plan(cls, engine: CopyEngine, arena: HostArena, **options: Any) -> "MemoryExecutor":
        """An executor that offloads each large storage as it is packed."""
        return cls(None, KEEP_ALL, engine, arena, **options)

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """A block in which autograd's packs and unpacks come here; put the forward and the backward inside.

        Raises:
            InputError: in a CUDA graph's capture, or in a transform of `torch.func`
        """
        if self._residence.engine.capturing():
            raise InputError(_CAPTURE, code="virtual-memory.cuda-graph")
        if torch._C._functorch.peek_interpreter_stack() is not None:
            raise InputError(_TRANSFORM, code="virtual-memory.torch-func")
        try:
            with torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack):
                yield
        except RuntimeError as error:
            if "saved tensor hooks" in str(error):
                error.add_note(_TRANSFORM)
            raise

    def begin_forward(self, *, verify: bool | None = None) -> ForwardPass:
        """Begin a new forward pass. One begins by itself when packs follow unpacks, or when all were packed.

        Args:
            verify: whether recipes are compared with the real bytes; None: as before
        """
        if verify is not None:
            self._verify = verify
        self._current = self._begin()
        return self._current

    def finish_step(self, accounted_peak_bytes: int | None = None) -> MemoryStatistics:
        """Counts since the last call.

        Args:
            accounted_peak_bytes: peak of the device as it was seen [bytes]
        """
        done, self._residence.done = self._residence.done, MemoryStatistics()
        done.arena = self._residence.arena.use()
        done.predicted_peak_bytes, done.accounted_peak_bytes = self._predicted, accounted_peak_bytes
        self._residence.arena.start_peak()
        return done

    def confirm(self) -> None:
        """See that recipes made the bytes that were there, before gradients are used: on a GPU this is known late.

        Raises:
            ExecutionError: one did not
        """
        self._residence.confirm()

    def pack(self, tensor: torch.Tensor) -> Any:
        """Autograd saves a tensor for the backward."""
        if (type(tensor) not in _PLAIN and is_wrapper(tensor)) or not has_storage(tensor):
            return self._kept_handle(tensor, None, -1)
        inside = _task() != -1
        forward = self._in_backward if inside else self._current
        if forward is None:
            return self._kept_handle(tensor, None, -1)
        if not forward.handles and forward.given_up(tensor) and not inside:
            forward = self._current = self._begin()
        index = forward.packs
        if forward.schedule is None or index >= len(forward.schedule.packs) or forward.reactive:
            return self._pack_beyond(tensor, forward, inside)
        tick = forward.schedule.packs[index]
        if forward.position != tick.before or not tick.matches(tensor):
            return self._pack_beyond(tensor, forward, inside)
        if not index and not inside and self._externals is not None and self._externals.lost:
            return self._leave(tensor, forward)  # what recipes read is no more there
        forward.packs = index + 1
        if tick.unit is None and not tick.steps and self._observe is None:
            return KeptTensor(tensor.detach(), tensor._version, forward, index)
        return self._pack_planned(tensor, forward, tick, index, inside)

    def unpack(self, packed: Any) -> torch.Tensor:
        """Autograd needs a saved tensor."""
        forward, index = packed.forward, packed.pack
        if forward is None:
            kept: torch.Tensor = packed.give("")
            return kept
        if _task() != -1:
            self._in_backward = forward
            first, forward.backward_begun = not forward.backward_begun, True
            schedule = forward.schedule
            if schedule is not None and not forward.reactive:
                position = forward.position
                if position < len(schedule.order) and schedule.order[position] == index:
                    forward.position = position + 1
                    self._residence.moment = schedule.moments[position]
                    if schedule.steps[position] or self._observe is not None:
                        self._planned.run(forward, schedule.steps[position], schedule.moments[position])
                else:
                    self._planned.jump(forward, schedule, index)
            elif forward.pending or forward.waiting:
                needed = packed.unit if type(packed) is Handle else None
                self._reactive.sweep(forward, looks=None if first else LOOKS, needed=needed)
        tensor: torch.Tensor
        if type(packed) is KeptTensor:
            schedule = forward.schedule
            planned = schedule is not None and index < len(schedule.packs)
            tensor = packed.give(schedule.packs[index].node if planned and schedule is not None else "")
        else:
            tensor = packed.give()
        self._residence.moment = -1
        return tensor

    def _pack_planned(
        self, tensor: torch.Tensor, forward: ForwardPass, tick: PackTick, index: int, inside: bool
    ) -> Any:
        handle = None
        if tick.unit is not None:
            unit = self._planned.bind(tensor, forward, tick.unit, tick.node)
            if unit is None:
                forward.packs = index
                if inside:
                    return self._kept_handle(tensor, None, -1)
                return self._leave(tensor, forward)
            handle = Handle(unit, tick.view, Witness(tensor, tick.node), forward, index, self._residence)
            if forward.deferred:
                self._planned.release_late(forward)
        self._planned.run(forward, tick.steps, tick.moment)
        self._residence.moment = -1
        return handle or self._kept_handle(tensor, forward, index)

    def _pack_beyond(self, tensor: torch.Tensor, forward: ForwardPass, inside: bool) -> Any:
        """A pack that is not the next one of its forward pass."""
        if inside:
            return self._kept_handle(tensor, None, -1)
        schedule = forward.schedule
        done = schedule is not None and not forward.reactive and forward.packs >= len(schedule.packs)
        if schedule is not None and done and self._is_extra(tensor, schedule):
            return self._kept_handle(tensor, None, -1)
        if forward.backward_begun or done:
            self._current = self._begin()
            return self.pack(tensor) if self._current.schedule is not None else self._pack_free(tensor, self._current)
        if forward.reactive:
            return self._pack_free(tensor, forward)
        return self._leave(tensor, forward)

    def _is_extra(self, tensor: torch.Tensor, schedule: Schedule) -> bool:
        """Whether a pack behind the last planned one is no new forward: something small, such as a metric of a loss."""
        begins = bool(schedule.packs) and schedule.packs[0].matches(tensor)
        return not begins and not self._reactive.wants(tensor.untyped_storage())

    def _leave(self, tensor: torch.Tensor, forward: ForwardPass) -> Any:
        """This forward pass has left its plan. Perhaps a new one has begun after one that was abandoned."""
        schedule = forward.schedule
        if schedule is not None and forward.packs and forward.may_restart and schedule.packs[0].matches(tensor):
            self._current = self._begin()
            self._current.restarts = forward.restarts + 1
            return self.pack(tensor)
        self._residence.done.mismatches += 1
        if schedule is not None and forward.packs < len(schedule.packs):
            self._residence.done.strangers += schedule.packs[forward.packs].looks_like(tensor)
        self._reactive.give_up(forward)
        return self._pack_free(tensor, forward)

    def _pack_free(self, tensor: torch.Tensor, forward: ForwardPass) -> Any:
        index = forward.packs
        forward.packs += 1
        storage = tensor.untyped_storage()
        if storage in self._kept or isinstance(tensor, torch.nn.Parameter) or not self._reactive.wants(storage):
            return self._kept_handle(tensor, forward, index)
        return self._reactive.pack(forward, tensor, index)

    def _kept_handle(self, tensor: torch.Tensor, forward: ForwardPass | None, index: int) -> KeptTensor:
        return KeptTensor(tensor.detach(), tensor._version, forward, index)

    def _begin(self) -> ForwardPass:
        self._residence.done.forward_passes += 1
        return ForwardPass(self._schedule, verify=self._verify)


def _no_recipes(*_: Any) -> Any:
    raise ExecutionError("There is no recording whose recipes could be run.")
