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
"""

import types
from collections.abc import Callable, Iterator
from functools import update_wrapper
from typing import Any, Self

import torch
from torch.optim import Optimizer

from trimaran.errors import InputError
from trimaran.runtime.host_state.buckets import Bucket, fill_buckets, narrowed
from trimaran.runtime.host_state.places import Place, can_leave
from trimaran.runtime.host_state.trial import check_place, plain_step, state_per_parameter_byte
from trimaran.runtime.memory.arena import HostArena
from trimaran.runtime.memory.engine import Copy, CopyEngine

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
        self._places: dict[Key, Place] = {}
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

    def _current(self) -> Iterator[tuple[Key, Place]]:
        """What is on the host and still the optimizer's state; the rest was thrown away by the user."""
        for key, place in list(self._places.items()):
            parameter, name = key
            if self._optimizer.state.get(parameter, {}).get(name) is place.host:
                yield key, place
            else:
                self._settle()
                self._places.pop(key).free()

    def _load(self, bucket: Bucket) -> list[tuple[Key, torch.Tensor, Copy]]:
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

    def _place(self, key: Key, value: torch.Tensor) -> Place:
        place = self._places.get(key)
        if place is None or not place.suits(value):
            if place is not None:
                self._settle()
                place.free()
            place = self._places[key] = Place(value, self._arena)
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
    """What is issued from now on comes after the copies; then the memory that they read may be used again."""
    for _, copy in leaving:
        copy.wait()
    leaving.clear()
