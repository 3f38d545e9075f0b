"""Optimizer state on the host: an update goes through the parameters in buckets, whose state alone is on the device.

    h2d       load 0 ── load 1 ── load 2 ──
    compute            step 0 ── step 1 ── step 2 ──
    d2h                          save 0 ── save 1 ── save 2

While a bucket is updated, the state of the next one comes and that of the one before leaves: at most three buckets are
on the device. The user's own optimizer does the steps, each with its groups narrowed to a bucket, so that parameters
come out as without streaming, bit for bit. Its hooks run once a step; schedulers and gradient scalers see no
difference. `state_dict` has copies of the values on the host.

Refused: optimizers that do not treat parameters one by one, and sharded parameters, whose state FSDP2 can itself keep
on the host (its CPUOffloadPolicy). Loading a state dict brings all state to the device for a moment, as torch does it.

Each tensor of state has a slot on the host:

    host     slot ═══ load ══╗                 ╔══ save ═══▶ slot
    device                   ╚▶ storage, step ─╝             (let go once the copy has ended)

On the host the tensor is a view of its slot, so that whoever looks at the state finds its values there.
"""

import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import Any, Self

import torch
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes

from trimaran.base.errors import InputError
from trimaran.memory_hooks.arena import HostArena, Slot
from trimaran.memory_hooks.copies import Copy, CopyEngine
from trimaran.memory_hooks.optimizer_trial import check_place, plain_step, state_per_parameter_byte

# ---------------------------------------------------------------------------------------------------------------------
# Which parameters are updated together, and an optimizer whose groups have only those


Group = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class ParameterBucket:
    """Parameters that are updated together.

    Attributes:
        members: (group, its parameters in the bucket), in the order of the optimizer
        nbytes: of the parameters [bytes]
    """

    members: list[tuple[Group, list[torch.Tensor]]] = field(default_factory=list)
    nbytes: int = 0

    @property
    def parameters(self) -> list[torch.Tensor]:
        """All of them."""
        return [parameter for _, parameters in self.members for parameter in parameters]

    def add(self, group: Group, parameter: torch.Tensor) -> None:
        """Take one more."""
        if not self.members or self.members[-1][0] is not group:
            self.members.append((group, []))
        self.members[-1][1].append(parameter)
        self.nbytes += parameter.nbytes


def fill_buckets(groups: Sequence[Group], nbytes: int) -> list[ParameterBucket]:
    """Parameters that have a gradient, in order, in buckets.

    Args:
        groups: of the optimizer
        nbytes: parameters of a bucket [bytes]; a larger parameter has its own bucket

    Example:
        >>> parameters = [torch.zeros(size, requires_grad=True) for size in (2, 2, 8, 1)]
        >>> for parameter in parameters:
        ...     parameter.grad = torch.zeros_like(parameter)
        >>> [len(bucket.parameters) for bucket in fill_buckets([{"params": parameters}], 16)]
        [2, 1, 1]
    """
    buckets: list[ParameterBucket] = []
    for group in groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            if not buckets or buckets[-1].nbytes + parameter.nbytes > nbytes:
                buckets.append(ParameterBucket())
            buckets[-1].add(group, parameter)
    return buckets


@contextmanager
def narrowed(optimizer: Optimizer, bucket: ParameterBucket) -> Iterator[None]:
    """The optimizer's groups have only the parameters of a bucket; their options are the same objects as before.

    Args:
        optimizer: whose groups are narrowed
        bucket: of its parameters
    """
    groups = optimizer.param_groups
    whole = [group["params"] for group, _ in bucket.members]
    try:
        for group, parameters in bucket.members:
            group["params"] = parameters
        optimizer.param_groups = [group for group, _ in bucket.members]
        yield
    finally:
        optimizer.param_groups = groups
        for (group, _), parameters in zip(bucket.members, whole, strict=True):
            group["params"] = parameters


class StateSlot:
    """A tensor of state and its slot on the host.

    Args:
        tensor: on the device, alone in its storage
        arena: has room for it, or makes some

    Attributes:
        host: the tensor as it is on the host; its values are there when no copy is under way
    """

    def __init__(self, tensor: torch.Tensor, arena: HostArena) -> None:
        self._dtype = tensor.dtype
        self._layout = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        self._slot: Slot = arena.allocate(tensor.untyped_storage().nbytes())
        with _disable_current_modes():  # the host's memory is none of what a mode follows on the device
            self.host = self._view(self._slot.tensor().untyped_storage(), torch.device("cpu"))

    @property
    def nbytes(self) -> int:
        """Bytes on the host."""
        return self._slot.nbytes

    def is_at(self, address: int) -> bool:
        """Whether its bytes on the host begin there."""
        return self._slot.address == address

    def suits(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor fits without another slot."""
        layout = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        return layout == self._layout and tensor.dtype == self._dtype

    def load(self, engine: CopyEngine) -> tuple[torch.Tensor, Copy]:
        """Start to bring it to the device."""
        storage = engine.allocate(self._slot.nbytes)
        copy = engine.load(self._slot, storage)
        return self._view(storage, engine.device), copy

    def save(self, tensor: torch.Tensor, engine: CopyEngine) -> Copy:
        """Start to take its values back to the host."""
        return engine.save(tensor.untyped_storage(), self._slot)

    def free(self) -> None:
        """Give the slot back; no copy may be under way."""
        self._slot.free()

    def _view(self, storage: torch.UntypedStorage, device: torch.device) -> torch.Tensor:
        shape, stride, offset = self._layout
        tensor: torch.Tensor = torch.empty(0, dtype=self._dtype, device=device).set_(storage, offset, shape, stride)
        return tensor


def can_leave(value: Any, device: torch.device) -> bool:
    """Whether a value of the state is worth a copy: a plain tensor on the device, alone in its storage.

    Args:
        value: of the state of a parameter
        device: that the copies leave from
    """
    if type(value) is not torch.Tensor or value.layout != torch.strided or value.dim() == 0:
        return False
    if not _same(value.device, device) or value.numel() == 0:
        return False
    return value.untyped_storage().nbytes() == value.nbytes and value.storage_offset() == 0


def _same(one: torch.device, other: torch.device) -> bool:
    return one.type == other.type and (one.index or 0) == (other.index or 0)


Key = tuple[torch.Tensor, Any]
"""A parameter and the name of a tensor of its state."""

Leaving = tuple[torch.Tensor, Copy]
"""A tensor on the device, and its copy to the host: it must stay until the operations come after the copy."""


def stream_optimizer_state(
    optimizer: Optimizer, *, engine: CopyEngine, arena: HostArena, bucket_bytes: int = 64 * 2**20
) -> "HostState":
    """Keep an optimizer's state on the host from now on.

    Args:
        optimizer: the user's own, with or without state
        engine: copies between the device and the host
        arena: where the state lives
        bucket_bytes: state that is brought at a time [bytes]; one parameter's state may be more

    Returns:
        The handle that undoes it.

    Raises:
        InputError: the optimizer does not treat its parameters one by one, its step was replaced, or its parameters are
            sharded
    """
    if bucket_bytes <= 0:
        raise InputError(
            f"Buckets of {bucket_bytes} bytes cannot hold state: give more than 0",
            code="host-state.empty-buckets",
            nbytes=bucket_bytes,
        )
    check_place(optimizer)
    share = state_per_parameter_byte(optimizer)
    return HostState(optimizer, engine, arena, bucket_bytes, share)


class HostState:
    """An optimizer whose state lives on the host. Made by `stream_optimizer_state`.

    Args:
        optimizer: whose step is taken over until `close`
        engine: copies
        arena: where the state lives
        bucket_bytes: state that is brought at a time [bytes]
        share: bytes of state for a byte of parameter
    """

    def __init__(
        self, optimizer: Optimizer, engine: CopyEngine, arena: HostArena, bucket_bytes: int, share: float
    ) -> None:
        self._optimizer = optimizer
        self._engine = engine
        self._arena = arena
        self._parameter_bytes = max(1, int(bucket_bytes / share)) if share else bucket_bytes
        self._places: dict[Key, StateSlot] = {}
        self._plain = plain_step(optimizer)
        self._before = vars(optimizer).get("step")
        self._ours = _as_method(optimizer, self)
        self._open = True
        optimizer.step = self._ours  # type: ignore[method-assign]
        self._hooks = [
            optimizer.register_state_dict_post_hook(self._copy_values),
            optimizer.register_load_state_dict_post_hook(lambda _: self._stow_all()),
        ]
        self._stow_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def host_bytes(self) -> int:
        """State on the host [bytes]."""
        return sum(place.nbytes for place in self._places.values())

    def holds(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage is one of the host's, with state in it."""
        return any(place.is_at(storage.data_ptr()) for place in self._places.values())

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """One update of all parameters, bucket by bucket.

        Args:
            closure: computes the loss again, as for any optimizer
            options: for the optimizer's own step
        """
        if not self._open:
            return self._plain(self._optimizer, closure, **options)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        buckets = fill_buckets(self._optimizer.param_groups, self._parameter_bytes)
        older: list[Leaving] = []
        leaving: list[Leaving] = []
        coming = self._load(buckets[0]) if buckets else []
        try:
            for number, bucket in enumerate(buckets):
                here, coming = coming, []
                # One bucket may still be leaving while the next one comes.
                _wait(older)
                if number + 1 < len(buckets):
                    coming = self._load(buckets[number + 1])
                self._arrive(here)
                here = []
                try:
                    with narrowed(self._optimizer, bucket):
                        self._plain(self._optimizer, **options)
                finally:
                    older, leaving = leaving, self._stow(bucket.parameters)
        finally:
            for _, _, copy in coming:
                copy.wait()
            _wait(older)
            _wait(leaving)
        return loss

    def close(self) -> None:
        """Bring all state back to the device and let the optimizer step by itself. Closing twice is allowed."""
        if not self._open:
            return
        self._open = False
        for hook in self._hooks:
            hook.remove()
        self._arrive([entry for key, place in self._current() for entry in [(key, *place.load(self._engine))]])
        self._settle()
        for place in self._places.values():
            place.free()
        self._places.clear()
        if vars(self._optimizer).get("step") is self._ours:
            del self._optimizer.step
            if self._before is not None:
                self._optimizer.step = self._before  # type: ignore[method-assign]

    def _current(self) -> Iterator[tuple[Key, StateSlot]]:
        """State on the host that is still the optimizer's; the user has discarded the rest."""
        for key, place in list(self._places.items()):
            parameter, name = key
            if self._optimizer.state.get(parameter, {}).get(name) is place.host:
                yield key, place
            else:
                self._settle()
                self._places.pop(key).free()

    def _load(self, bucket: ParameterBucket) -> list[tuple[Key, torch.Tensor, Copy]]:
        found = []
        for parameter in bucket.parameters:
            for name, value in self._optimizer.state.get(parameter, {}).items():
                place = self._places.get((parameter, name))
                if place is not None and value is place.host:
                    found.append(((parameter, name), *place.load(self._engine)))
        return found

    def _arrive(self, entries: list[tuple[Key, torch.Tensor, Copy]]) -> None:
        """The state is on the device for what is issued from now on."""
        for (parameter, name), tensor, copy in entries:
            copy.wait()
            self._optimizer.state[parameter][name] = tensor

    def _stow(self, parameters: list[torch.Tensor]) -> list[Leaving]:
        """Start to take the state of some parameters to the host."""
        copies = []
        for parameter in parameters:
            state = self._optimizer.state.get(parameter, {})
            for name, value in list(state.items()):
                place = self._places.get((parameter, name))
                on_host = place is not None and value is place.host
                if can_leave(value, self._engine.device) and not on_host:
                    place = self._place((parameter, name), value)
                    copies.append((value, place.save(value, self._engine)))
                    state[name] = place.host
        return copies

    def _stow_all(self) -> None:
        _wait(self._stow([parameter for group in self._optimizer.param_groups for parameter in group["params"]]))
        for _ in self._current():
            pass  # gives back the slots of what was thrown away

    def _place(self, key: Key, value: torch.Tensor) -> StateSlot:
        place = self._places.get(key)
        if place is None or not place.suits(value):
            if place is not None:
                self._settle()
                place.free()
            place = self._places[key] = StateSlot(value, self._arena)
        return place

    def _settle(self) -> None:
        """The host may read what was copied."""
        if self._engine.device.type == "cuda":
            torch.cuda.synchronize(self._engine.device)

    def _copy_values(self, optimizer: Optimizer, found: dict[str, Any]) -> dict[str, Any]:
        """A state dict keeps its values when the next step changes the slots."""
        self._settle()
        hosts = {id(place.host) for place in self._places.values()}
        states = {
            key: {name: value.clone() if id(value) in hosts else value for name, value in state.items()}
            for key, state in found["state"].items()
        }
        return {**found, "state": states}


def _as_method(optimizer: Optimizer, handle: HostState) -> Any:
    """The step that takes the place of the optimizer's, as a method: schedulers wrap it as they wrap any other."""

    def step(self: Optimizer, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        self._opt_called = True  # type: ignore[attr-defined] # what a scheduler looks for
        return handle.step(closure, **options)

    update_wrapper(step, optimizer.step)
    return types.MethodType(Optimizer.profile_hook_step(step), optimizer)


def _wait(leaving: list[Leaving]) -> None:
    """Later operations come after the copies; then the memory that the copies read may be used again."""
    for _, copy in leaving:
        copy.wait()
    leaving.clear()
