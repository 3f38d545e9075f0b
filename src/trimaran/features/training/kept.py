"""What callbacks and loops keep in Python, as far as checkpoints have it, and what they have registered or replaced.

A checkpoint has plain values that modules of the model hold, and that callbacks keep in attributes and variables, where
all ranks have them alike. Of the rest, and of hooks, it is said that it is not kept.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.base.units import format_some
from trimaran.checkpoint_files.plain import encode
from trimaran.graph.capture.constants import count_hooks
from trimaran.runtime.executor import Executor
from trimaran.user_code.held_state import CONTAINERS, HeldState, Settable, Values, changed, held_tensors
from trimaran.user_code.model import class_name, count_gradient_hooks

_SCHEDULE = "a schedule on the optimizer"


class KeptByUser:
    """What the callbacks of a job, and the loop around its session, keep on one rank.

    Args:
        job: has the callbacks
        executor: trains it
        rank: number of this process
    """

    def __init__(self, job: Job, executor: Executor, rank: int) -> None:
        self._job, self._executor, self._rank = job, executor, rank
        named = {f"Job.{name}": getattr(job, name) for name in ("on_step", "on_epoch")}
        called = {name: one for name, one in named.items() if one is not None}
        self._held = HeldState(called, undoable=False, without=job.state)
        modules = {path or "the model": one for path, one in executor.model.named_modules()}
        self._in_model = HeldState({**modules, "the loss": job.loss}, undoable=False, without=job.state)
        # Those in which the last step of a loop has ended, as the loop may evaluate when it saves.
        self._modes_after: list[bool] = []
        self.note_modes()
        self._held_before = self._values()
        self._first = self._replaceable()
        self._hooked_before = self._hooked()

    def note_modes(self) -> None:
        """A step has ended, in these modes of modules."""
        self._modes_after = [one.training for one in self._executor.model.modules()]

    def names(self) -> tuple[str, ...]:
        """What callbacks keep in Python, or have set in modules, or the loop has, that is not as at the start."""
        return tuple(changed(self._held_before, self._values()))

    def plain(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """What a checkpoint has of that: plain values that all ranks have alike; every rank calls it.

        Returns:
            By path the values of modules of the model, or of objects of settings that these hold, and what callbacks
            keep in attributes and variables; and the paths of what is left.
        """
        kept, found = self.names(), dict[str, Any]()
        values = self._in_modules()
        # Not those of other classes, such as of an enum, which a checkpoint does not know.
        found |= {one: values[one] for one in kept if type(values.get(one)) in (bool, int, float, str)}
        model = self._executor.model
        of_model = {_place(one) for one in (*model.parameters(), *model.buffers())}
        for one in self._own():
            if not _is_within(one.path, found) and any(_is_within(path, [one.path]) for path in kept):
                value = one.get()
                # What is the model's stays its own.
                if of_model.isdisjoint(_place(held) for held in held_tensors(value)):
                    found[one.path] = value
        own = dict[str, str]()
        for path, one in found.items():
            with suppress(InputError):
                own[path] = repr(encode(one, path))
        told = self._executor.agreement.gather_objects(own, "what callbacks keep")
        alike = {path: found[path] for path, one in own.items() if all(other.get(path) == one for other in told)}
        return alike, tuple(one for one in kept if not _is_within(one, alike))

    def put_back(self, kept: Mapping[str, Any]) -> list[str]:
        """Put plain values back where they were.

        Args:
            kept: from `plain`

        Returns:
            The paths of those whose holder is not there.
        """
        modes = self._modes()
        for called in modes.keys() & kept.keys():
            modes[called].training = kept[called]
        self.note_modes()
        places = {one.path: one for one in (*self._settings(), *self._own())}
        objects, left = self._held.objects() | self._in_model.objects(), []
        for path, value in kept.items():
            if path in places:
                places[path].fill(value)
            elif path not in modes:
                # An attribute that is made when it is set, as where a class has a value for all.
                inner, _, root = path.partition(" of ")
                holder, _, name = inner.rpartition(".")
                one = objects.get(f"{holder} of {root}" if holder else root)
                if one is None or not name.isidentifier():
                    left.append(path)
                else:
                    one.__dict__[name] = value
        return left

    def _own(self) -> Iterator[Settable]:
        """Plain values and containers that callbacks keep in attributes and variables now, the outer first."""
        kinds = (bool, int, float, str, type(None), *CONTAINERS, torch.Tensor)
        return self._held.settable(*kinds)

    def _settings(self) -> Iterator[Settable]:
        """Plain values that modules of the model hold now."""
        return self._in_model.settable(bool, int, float, str, enum.Enum)

    def _in_modules(self) -> dict[str, Any]:
        """Plain values that modules have as attributes, or in objects that they hold, by what these are called."""
        modes, after = self._modes(), self._modes_after
        now = [module.training for module in modes.values()]
        # A loop may evaluate when it saves: what counts are the modes that it trains in.
        kept = after if not self._executor.model.training and len(after) == len(now) else now
        return {one.path: one.value for one in self._settings()} | dict(zip(modes, kept, strict=True))

    def _modes(self) -> dict[str, nn.Module]:
        """The modules of the model, by what their mode is called."""
        return {f"training of {path or 'the model'}": one for path, one in self._executor.model.named_modules()}

    def _values(self) -> Values:
        values, model = self._in_modules(), self._executor.model
        if self._job.on_step is None and self._job.on_epoch is None:
            return values
        values |= self._held.versions() | self._held.drawn()
        known = {id(one) for one in (*model.parameters(), *model.buffers())}
        for number, module in enumerate(one for one in self._held.parts() if isinstance(one, nn.Module)):
            for name, one in (*module.named_parameters(), *module.named_buffers()):
                if id(one) not in known:
                    values[f"{name} of {class_name(module)} {number}"] = one._version
        return values

    def registered(self) -> dict[str, int]:
        """What callbacks, or the loop, have hooked or replaced since the start: how many, by what it is."""
        added = {what: count - self._hooked_before.get(what, 0) for what, count in self._hooked().items()}
        return {what: count for what, count in added.items() if count > 0}

    @contextmanager
    def first_step(self) -> Iterator[None]:
        """Around the first step: what forwards hook or replace when they are first called is none of the loop's."""
        before = self._hooked()
        yield
        for what, count in self._hooked().items():
            self._hooked_before[what] = self._hooked_before.get(what, 0) + count - before.get(what, 0)

    def see_registered(self, saved: Mapping[str, int], carried: Mapping[str, Any]) -> Iterator[str]:
        """Before the first step after a checkpoint was loaded: notes of what of the loop it has not put back.

        Args:
            saved: from `registered` of rank 0, then
            carried: what the loop keeps in checkpoints
        """
        now = self.registered()
        missing = [what for what, count in saved.items() if now.get(what, 0) < count and what != _SCHEDULE]
        if self._rank:
            return
        kept = (one for value in carried.values() for one in (value if isinstance(value, list) else [value]))
        if _SCHEDULE in saved and not any(isinstance(one, Mapping) and "last_epoch" in one for one in kept):
            yield (
                "the checkpoint was saved with a schedule that the loop had made on session.optimizer, and has no "
                "state of it: one that the loop makes begins anew, from the learning rates that were saved. Give it as "
                "Job.lr_schedule, which checkpoints keep; or keep its state_dict() in session.carried, and load that"
            )
        if missing:
            yield (
                f"the checkpoint was saved with {format_some(missing)}, which callbacks of the job, or its loop, had "
                "registered or replaced, and which no checkpoint has: the training goes on without. Register them in "
                "Job.model, or in the loop before the first session.step, also where it goes on from a checkpoint"
            )

    def _hooked(self) -> dict[str, int]:
        """Hooks by what they are on, and functions and modules that are in the place of those of the start."""
        model = self._executor.model
        names = [name for name, _ in model.named_parameters()]
        on_gradients = zip(names, map(count_gradient_hooks, model.parameters()), strict=True)
        on_modules = {path or "the model": count_hooks(module) for path, module in model.named_modules()}
        return {
            "hooks on the step of the optimizer": step_hooks(self._executor.updater.optimizer),
            _SCHEDULE: int(hasattr(getattr(self._executor.updater.optimizer, "step", None), "_wrapped_by_lr_sched")),
            **{f"hooks on the gradient of {name}": count for name, count in on_gradients},
            **{f"hooks of {where}": count for where, count in on_modules.items()},
            **{what: int(self._first.get(what) is not one) for what, one in self._replaceable().items()},
        }

    def _replaceable(self) -> dict[str, Any]:
        """Functions that are attributes of modules of the model, as a forward that somebody sets, and its modules."""
        named = dict(self._executor.model.named_modules())
        functions = {
            f"another {name} of {path or 'the model'}": one
            for path, module in named.items()
            for name, one in vars(module).items()
            if callable(one)
        }
        return functions | {f"another module {path}": module for path, module in named.items() if path}


def _place(tensor: torch.Tensor) -> int:
    """Where the elements of a tensor lie, of a share those that the rank has; else another number."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    strided = local.layout is torch.strided and not local.is_nested and local.numel()
    return local.data_ptr() if strided else id(tensor)


def _is_within(path: str, places: Iterable[str]) -> bool:
    """Whether a path of what is held is that of one of some places, or of what lies there.

    Example:
        >>> [_is_within(path, ["one of it"]) for path in ("the length of one of it", "one[0].a of it", "ones of it")]
        [True, True, False]
    """
    name, _, holder = path.removeprefix("the length of ").partition(" of ")
    own = [place.partition(" of ") for place in places]
    return any(holder == of and (name == one or name.startswith((f"{one}[", f"{one}."))) for one, _, of in own)


def step_hooks(optimizer: Any) -> int:
    """How many hooks are on the step of an optimizer."""
    return sum(
        len(getattr(optimizer, kind, ())) for kind in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    )
