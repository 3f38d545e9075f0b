"""The user's callbacks `Job.on_step` and `Job.on_epoch`, and what they may do.

They run on every rank, after a step or an epoch of training, and change what they like of the model in place. Ranks
that train one network must stay alike, so when a callback has ended, and at each call of the session in it that all
ranks must make, the ranks tell each other what they were asked for and what has changed:

    rank 0    on_step ── evaluate ─┬─ evaluation ─ ... ── end ─┬─ next step
    rank 1    on_step ── evaluate ─┴─ evaluation ─ ... ── end ─┴─ next step       else both say who did what

So a call on one rank only is an error with names, and not a wait without an end; and one rank's request to stop is
heard by all. Whether weights have changed is seen by sums of their bits: after an epoch of all, after a step of up to
256 elements of each tensor.

A loop of the user's may change between two steps what a callback may. What a rank sees by itself it looks at before
each step: up to 256 elements of each tensor of its part of the weights, and the options of its optimizer. Whether the
loop has left ranks alike in every step so far they ask each other after 0, 1, 2, 4, 8, ... steps, before whatever all
of them must do, such as an evaluation or a file of weights, and at the end of an epoch.
"""

import enum
import hashlib
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trimaran.base.errors import InputError, TrimaranError
from trimaran.base.job import Job
from trimaran.base.units import format_some
from trimaran.base.user_errors import asking
from trimaran.checkpoint_files.plain import encode
from trimaran.graph.capture.constants import count_hooks
from trimaran.graph.optimizers import written_options
from trimaran.launch.activity import ACTIVITY
from trimaran.program.strategy import Strategy
from trimaran.runtime.communication.channels import Meeting
from trimaran.runtime.executor import Executor
from trimaran.user_code.batches import name_tensors
from trimaran.user_code.held_state import (
    CONTAINERS,
    HeldState,
    Settable,
    Values,
    changed,
    held_tensors,
)
from trimaran.user_code.model import class_name

Name = Literal["on_step", "on_epoch", "the loop"]

_SAMPLED = 256
_AS_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_END = "end"
_SCHEDULE = "a schedule on the optimizer"
_OPERATIONS = (
    _END,
    "step",
    "batches",
    "end_epoch",
    "evaluate",
    "save",
    "load",
    "weights",
    "timeline",
    "gradient_noise",
    "save_checkpoint",
    "check_saving",
    "state_dict",
)


_SAID = 9
"""Integers that ranks tell each other beyond what they do and what the loop has changed."""

_TELLING = 4
"""Steps after which it is no chance that replicas were given the same samples in each: fewer may be of few samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """State that a callback may change, as far as ranks compare it.

    Attributes:
        identities: of the parameters, by name
        trained: whether each requires gradients
        parameters: sums of their bits; none where this process is alone
        buffers: those of the buffers
        options: of the optimizer's groups; empty where this rank updates nothing
        step: what was put into the place of the optimizer's step; None: nothing was
    """

    identities: dict[str, tuple[int, torch.Size]]
    trained: dict[str, bool]
    parameters: tuple[int, ...]
    buffers: tuple[int, ...]
    options: str
    step: Any = None


class Callbacks:
    """The callbacks of a job on one rank.

    Args:
        job: has them
        strategy: how it is trained
        executor: trains it
        rank: number of this process
        world_size: number of processes
        data: gives a digest of what a callback has changed of what the data set holds; 0: nothing, -1: it is not read
        timeout_s: how long ranks wait for each other [s]
    """

    def __init__(
        self,
        job: Job,
        strategy: Strategy,
        executor: Executor,
        *,
        rank: int,
        world_size: int,
        data: Callable[[], int],
        timeout_s: float,
    ) -> None:
        self._meeting = Meeting(rank, world_size, timeout_s) if world_size > 1 else None
        self._job, self._strategy, self._executor = job, strategy, executor
        self._rank, self._alone, self._data = rank, world_size == 1, data
        # Otherwise this rank has a part of the network, or shards of its parameters.
        self._whole = strategy.segments == 1 and strategy.tp == 1 and not strategy.shards and strategy.zero < 2
        self._shares = strategy.tp > 1 or bool(strategy.shards) or strategy.zero >= 2
        self._alike = self._whole and strategy.zero == 0 and strategy.sync != "p2p"
        self._running: Name | None = None
        self._before: _State | None = None
        self._stop = False
        self._parameters = tuple(executor.model.parameters())
        self._identities = {id(one) for one in self._parameters}
        self._trained = [one.requires_grad for one in self._parameters]
        named = {f"Job.{name}": getattr(job, name) for name in ("on_step", "on_epoch")}
        called = {name: one for name, one in named.items() if one is not None}
        self._held = HeldState(called, undoable=False, without=job.state)
        modules = {path or "the model": one for path, one in executor.model.named_modules()}
        self._in_model = HeldState(modules, undoable=False)
        self._refusing = ExitStack()
        self._refuse_own_steps()
        self._refuse_states()
        # Those in which the last step of a loop has ended, as the loop may evaluate when it saves.
        self._modes_after = self._modes()
        self._held_before = self._values()
        self._loop: _State | None = None
        # Of the weights, when the last step had ended, and when they were looked at last.
        self._samples: list[torch.Tensor] | None = None
        # Another optimizer has taken a step since; and it ever has.
        self._stepped = self._ever_stepped = False
        self._noted: tuple[list[torch.Tensor], str] = ([], "")
        # Digests of what the loop has changed so far of weights and options, and of the modes that steps began in.
        self._moved = self._retuned = self._switched = 0
        self._modes_before = self._modes()
        # Of the global batches that were trained on.
        self._taken = 0
        # Of the batches that the loop has made itself, and the last of them while a step begins.
        self._given = 0
        self._own_batch: Mapping[str, torch.Tensor] = {}
        self._thread = threading.get_ident()
        # Of the generator, when the last step began; and the same where that step drew from it, else 0.
        self._generator = self._drawn = 0
        self._grouped = self._groups()
        self._step_hooks_before = self._step_hooks()
        self._first = self._replaceable()
        self._hooked_before = self._hooked()

    def kept(self) -> tuple[str, ...]:
        """What callbacks keep in Python, or have set in modules, or the loop has, that is not as at the start."""
        return tuple(changed(self._held_before, self._values()))

    def kept_plain(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """What a checkpoint has of that: plain values that all ranks have alike; every rank calls it.

        Returns:
            By path the values of modules of the model, or of objects of settings that these hold, and what callbacks
            keep in attributes and variables; and the paths of what is left.
        """
        kept, found = self.kept(), dict[str, Any]()
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
            kept: from `kept_plain`

        Returns:
            The paths of those whose holder is not there.
        """
        for called, module, name in self._attributes():
            if called in kept:
                vars(module)[name] = kept[called]
        self._modes_after = self._modes()
        places = {one.path: one for one in (*self._settings(), *self._own())}
        objects, left = self._held.objects() | self._in_model.objects(), []
        set_already = {called for called, _, _ in self._attributes()}
        for path, value in kept.items():
            if path in places:
                places[path].fill(value)
            elif path not in set_already:
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
        return self._held.settable(lambda path, name: True, kinds)

    def _settings(self) -> Iterator[Settable]:
        """Plain values that modules of the model hold now."""
        return self._in_model.settable(lambda path, name: True, (bool, int, float, str, enum.Enum))

    def _in_modules(self) -> dict[str, Any]:
        """Plain values that modules have as attributes, or in objects that they hold, by what these are called."""
        own = {called: vars(module)[name] for called, module, name in self._attributes()}
        found, after = {one.path: one.value for one in self._settings()} | own, self._modes_after
        paths = [path or "the model" for path, _ in self._executor.model.named_modules()]
        if not self._executor.model.training and len(after) == len(paths):
            # A loop may evaluate when it saves: what counts are the modes that it trains in.
            found |= {f"training of {path}": mode for path, mode in zip(paths, after, strict=True)}
        return found

    def _attributes(self) -> list[tuple[str, nn.Module, str]]:
        """Plain values that modules of the model have as attributes: what each is called, its module and its name."""
        return [
            (f"{name} of {path or 'the model'}", module, name)
            for path, module in self._executor.model.named_modules()
            for name, one in vars(module).items()
            if isinstance(one, bool | int | float | str)
        ]

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
        on_gradients = zip(names, self._gradient_hooks(model.parameters()), strict=True)
        on_modules = {path or "the model": count_hooks(module) for path, module in model.named_modules()}
        return {
            "hooks on the step of the optimizer": self._step_hooks(),
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

    def model(self) -> nn.Module:
        """The model, where it is whole on each rank.

        Raises:
            InputError: a rank has a part of it, or shares of its parameters
        """
        if not self._whole:
            raise InputError(
                f"{self.who} uses session.model, and under {self._strategy.name} a rank has only its part of the "
                "weights: session.weights() gives rank 0 whole tensors, session.save(path) writes and "
                "session.load(path) reads them, session.evaluate(dataset) scores the model, each called by every rank; "
                "change a model in Job.model; or train by replicas with zero=0 or 1 (--allow dp)",
                code="session.model-in-parts",
                strategy=self._strategy.name,
            )
        return self._executor.model

    @property
    def running(self) -> bool:
        """A callback is under way."""
        return self._running not in (None, "the loop")

    @property
    def who(self) -> str:
        """Whose code runs."""
        return f"Job.{self._running}" if self.running else "the loop"

    def watch(self) -> None:
        """A step has ended, and code of the user's runs until the next one."""
        self._modes_after = self._modes()
        self._running, self._thread = "the loop", threading.get_ident()
        if self._alone:
            return
        self._look_again()
        self._drawn = 0 if self._generator == _generator_state() else self._generator
        if is_power(self._executor.steps):
            self._loop = self._look()

    def meet(self, place: tuple[int, int] | None, own: Any = None) -> None:
        """A step begins: see that code of the user's has left what ranks have in common, and what is trained.

        Args:
            place: epoch and number of the global batch that it takes; None: not known
            own: a batch that the loop has made itself; None: it has not

        Raises:
            InputError: it has not
        """
        if self._samples is not None and self._meeting is not None:
            self._meeting.go_on(self._executor.steps)
        self._check_trained()
        self._note()
        if self._samples is not None:
            self._note_modes()
            self._taken = self._taken if place is None else _digest([self._taken, place])
            if own is not None and not is_nothing(own):
                with suppress(InputError):
                    self._own_batch = name_tensors(own)
                self._given = _digest([self._given, _hash(_samples(self._own_batch.values()))])
            self._generator = _generator_state()
        samples, self._samples = self._samples, None
        if samples is not None and not self._is_whole and not all(map(torch.equal, samples, self._noted[0])):
            raise self._changes_parts("before the next step")
        self._before, self._loop = self._loop, None
        if self._before is not None:
            self._agree("step")
        self._running = self._before = None
        self._own_batch = {}

    def settle(self, operation: str) -> None:
        """An epoch begins or ends: see that a loop of the user's has left ranks alike so far.

        Args:
            operation: name of the session's method that all ranks call

        Raises:
            InputError: it has not, or another rank does something else
        """
        # A loop may fetch batches ahead in another thread, while this one takes a step.
        if self._samples is not None and not self.running and self._thread == threading.get_ident():
            self._tell(operation)

    def _look_again(self) -> None:
        """Begin with what is there now."""
        self._samples, self._stepped = _samples(self._parameters), False
        self._noted = self._samples, self._options()

    @property
    def _is_whole(self) -> bool:
        """Whether all weights of this rank are up to date: before the first step those of other stages are, too."""
        return self._whole or (self._executor.steps == 0 and not self._shares)

    def _options(self) -> str:
        """The options of the optimizer's groups, and how many parameters each has where all ranks have as many."""
        optimizer = self._executor.updater.optimizer
        sizes = list(map(len, self._groups())) if self._alike or self._shares_all else ""
        return "" if optimizer is None else f"{written_options(optimizer)} {sizes}"

    def _note(self) -> None:
        """Note what the loop has changed since that was looked at last."""
        if self._samples is None:
            return
        (samples, options), self._noted = self._noted, (_samples(self._parameters), self._options())
        now, options_now = self._noted
        if not all(map(torch.equal, samples, now)):
            # Of parts there is no more to compare than whether they changed.
            self._moved = _digest([self._moved, _hash(now if self._is_whole else [])])
        if options != options_now:
            self._retuned = _digest([self._retuned, options_now if self._has_like_groups() else ""])

    def _modes(self) -> list[bool]:
        """Whether each module of the model is in training mode."""
        return [one.training for one in self._executor.model.modules()]

    def _note_modes(self) -> None:
        """Note the modes that a step begins in, where they are not those in which the one before it began."""
        if (now := self._modes()) != self._modes_before:
            self._modes_before, self._switched = now, _digest([self._switched, now])

    def _tell(self, operation: str) -> None:
        """Tell the others what is done next, and what the loop has changed so far, and refuse what differs."""
        self._note()
        steps = self._executor.steps
        if self._meeting is not None and not self._meeting.come(f"session.{operation}()", steps):
            raise InputError(
                f"the loop calls session.{operation}() on rank {self._rank} after {steps} steps, and another rank has "
                "begun the next step: what a session does takes all ranks, so call it on every rank; rank 0 writes "
                "what is saved",
                code="session.called-alone",
            )
        self._exchange("the loop", operation, (0,) * _SAID)

    def call(self, session: Any, name: Name, number: int, metrics: dict[str, float]) -> bool:
        """Call one, where the job has it; every rank does.

        Args:
            session: its first argument
            name: which
            number: of the step or the epoch, from 0
            metrics: its last argument

        Returns:
            Whether the training is to end, the same on every rank.

        Raises:
            InputError: it did on one rank what it did not do on another, or changed what cannot be changed
        """
        callback = getattr(self._job, name)
        if callback is None:
            return False
        self._running, self._stop = name, False
        self._before = self._look()
        try:
            with ACTIVITY.during(f"Job.{name}"), asking(f"Job.{name}", callback):
                callback(session, number, metrics)
            stop = self._agree(_END)
            self._accept()
        except Exception as error:
            if isinstance(error, TrimaranError):
                raise
            error.add_note(f"in Job.{name} after {name.removeprefix('on_')} {number}")
            raise
        finally:
            self._running, self._before = None, None
        return stop

    def stop(self) -> None:
        """End the training when the callback that is under way has ended.

        Raises:
            InputError: none is
        """
        if not self.running:
            raise InputError(
                "session.stop() is for Job.on_step and Job.on_epoch, after which all ranks agree on it: in a loop of "
                "your own leave the loop, on every rank",
                code="session.stop-outside-callback",
            )
        self._stop = True

    @contextmanager
    def together(self, operation: str) -> Iterator[None]:
        """Around what all ranks must do: in a callback, they see first that all of them are about to.

        Args:
            operation: name of the session's method

        Raises:
            InputError: another rank does something else
        """
        name, before = self._running, self._before
        if name is None or before is None:
            if self._samples is not None:
                self._tell(operation)
            yield
            if self._loop is not None:
                self._loop = self._after(operation, self._loop)
            if self._samples is not None and operation == "load":
                self._look_again()
            return
        self._agree(operation)
        self._running = None
        try:
            yield
        finally:
            self._running = name
            self._before = self._after(operation, before)

    def _after(self, operation: str, before: _State) -> _State:
        """What code of the user's began with, after the session has done something for it."""
        after = self._look()
        # An evaluation hands replica 0's buffers out; the weights are as the user's code has put them.
        weights = after.parameters if operation == "load" else before.parameters
        return replace(before, parameters=weights, buffers=after.buffers)

    def _gradient_hooks(self, parameters: Iterable[torch.Tensor]) -> list[int]:
        kinds = ("_backward_hooks", "_post_accumulate_grad_hooks")
        return [sum(len(getattr(one, kind, None) or ()) for kind in kinds) for one in parameters]

    def _groups(self) -> list[list[int]]:
        """The parameters of each group of this rank's optimizer."""
        optimizer = self._executor.updater.optimizer
        return [] if optimizer is None else [[id(one) for one in group["params"]] for group in optimizer.param_groups]

    def _refuse_own_steps(self) -> None:
        """Have optimizers refuse steps of user code that are not those of a session.

        Another optimizer finds no gradients of the model after a step of the session, and does nothing. Where several
        ranks train, that of the session would step by gradients of one rank; one of the loop's own may go by gradients
        that all ranks have alike: it is noted for `see_taken`.
        """

        def look(optimizer: Any, *_: Any) -> None:
            own = optimizer is self._executor.updater.optimizer
            if own and (self._running != "the loop" or self._alone):
                return
            held = [one for group in optimizer.param_groups for one in group["params"]]
            of_model = any(id(one) in self._identities for one in held)
            if self._running is not None and of_model and not own and all(one.grad is None for one in held):
                raise InputError(
                    f"{self.who} calls step() of another optimizer ({class_name(optimizer)}) on parameters of "
                    "session.model, and session.step(batch), which does forward, backward and update by Job.optimizer, "
                    "has left no gradients: it would change nothing. Give that optimizer as Job.optimizer, its "
                    "schedule as Job.lr_schedule, and leave the call out",
                    code="session.steps-after-step",
                )
            if self._running != "the loop" or self._alone or all(one.grad is None for one in self._parameters):
                return
            if own:
                raise self._steps_itself("ran a backward itself and called step() of session.optimizer")
            self._stepped |= of_model
            self._ever_stepped |= self._stepped

        self._refusing.callback(register_optimizer_step_pre_hook(look).remove)

    def _refuse_states(self) -> None:
        """Have the optimizer refuse to give the user its state, or to take one, where a rank's is not that of all."""
        optimizer: Any = self._executor.updater.optimizer
        if self._alike or not hasattr(optimizer, "_optimizer_state_dict_pre_hooks"):
            return  # one that torch has not constructed, as wrappers of others, gives and takes what it wants

        def refuse(*_: Any) -> None:
            frame, who = inspect.currentframe(), __name__
            while frame is not None and (who == __name__ or who.startswith("torch.")):
                frame = frame.f_back
                who = "" if frame is None else str(frame.f_globals.get("__name__"))
            if self._running is not None and not who.startswith("trimaran."):
                raise InputError(
                    f"{self.who} asked for the state of session.optimizer, or loads one, and under "
                    f"{self._strategy.name} that of a rank is of the parameters, or of the parts, that it updates: "
                    "session.save_checkpoint(folder) and session.load_checkpoint(folder) keep all of a training, under "
                    "any plan; or train by replicas that update everything (dp, zero=0)",
                    code="optimizer.state-in-parts",
                )

        self._refusing.callback(optimizer.register_state_dict_pre_hook(refuse).remove)
        self._refusing.callback(optimizer.register_load_state_dict_pre_hook(refuse).remove)

    def see_taken(self) -> None:
        """Another batch is taken, and the loop has given no step the last one: see that it has not trained on it.

        Raises:
            InputError: it has, as far as this rank can tell
        """
        if self._samples is None or self._thread != threading.get_ident():
            return
        if (self._stepped or not self._whole) and not all(map(torch.equal, self._samples, _samples(self._parameters))):
            raise self._steps_itself("trained on a batch without session.step")

    def _steps_itself(self, how: str) -> InputError:
        return InputError(
            f"the loop {how}, and under {self._strategy.name} a rank has its share of the samples, or its part of the "
            "network: call session.step(batch), which does forward, backward and update of the global batch on all "
            "ranks; what comes between is said by Job.loss, Job.clip_norm, Job.lr_schedule, and Job.on_step",
            code="session.trains-itself",
        )

    def _step_hooks(self) -> int:
        kinds = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
        return sum(len(getattr(self._executor.updater.optimizer, kind, ())) for kind in kinds)

    def _check_trained(self) -> None:
        """See that the parameters are those of the last step, or callback, and require gradients as there.

        Raises:
            InputError: they do not; or have gradients already; or hooks would see a part of them
        """
        named = () if self._alone else self._executor.model.named_parameters()
        if replaced := [name for name, one in named if id(one) not in self._identities]:
            raise _replaced("the loop, or a callback,", replaced)
        left = not self._alone and any(one.grad is not None for one in self._parameters)
        if left:
            named = self._executor.model.named_parameters()
            raise InputError(
                f"{format_some([name for name, one in named if one.grad is not None])} had gradients before the step, "
                f"of a backward of the loop or a callback, and under {self._strategy.name} they are those of a rank: "
                "put that term into Job.loss, or call zero_grad() after a backward that is for nothing but a look",
                code="session.gradients-before-step",
            )
        if not self._alike and self._step_hooks() != self._step_hooks_before:
            raise InputError(
                f"a hook was registered on the step of the optimizer, and under {self._strategy.name} it would see the "
                "parameters of one rank, or parts: clip by Job.clip_norm, or train by replicas that update everything "
                "(dp, zero=0)",
                code="session.hook-on-step",
            )
        if not (self._alike or self._shares_all) and self._groups() != self._grouped:
            raise InputError(
                f"the groups of the optimizer have other parameters than at first, and under {self._strategy.name} "
                "they are those that a rank updates: let Job.optimizer make the groups, and set their options, or "
                "train by replicas that update everything (dp, zero=0)",
                code="session.regrouped",
            )
        if [one.requires_grad for one in self._parameters] == self._trained:
            return
        before = dict(zip(map(id, self._parameters), self._trained, strict=True))
        named = self._executor.model.named_parameters()
        changed = [name for name, one in named if before.get(id(one), one.requires_grad) != one.requires_grad]
        if self._alone:
            # No other rank has to hear of it.
            self._executor.refit(f"the loop changed requires_grad of {format_some(changed)}")
            self.accept_trained()
            return
        raise InputError(
            f"requires_grad of {format_some(changed)} was changed between steps: change it in Job.on_step or "
            "Job.on_epoch, after which all ranks take it over",
            code="session.requires-grad-changed",
        )

    def accept_trained(self) -> None:
        """Take the parameters that require gradients now for those of the last step."""
        self._trained = [one.requires_grad for one in self._parameters]
        if self._samples is not None:
            self._look_again()
        if self._loop is not None:
            self._loop = self._look()

    def _accept(self) -> None:
        """Take over what has changed, or refuse it."""
        before, after = self._before, self._look(sums=False)
        name = f"Job.{self._running}"
        if before is None:
            return
        flipped = _changed(before.trained, after.trained)
        if flipped:
            self._executor.refit(f"{name} changed requires_grad of {format_some(flipped)}")
            self.accept_trained()

    def _agree(self, operation: str) -> bool:
        """Tell the others, hear them, and refuse what differs."""
        before, after, name = self._before, self._look(), self.who
        if before is None:
            return self._stop
        known = set(before.identities.values())
        if replaced := [one for one, what in after.identities.items() if what not in known]:
            raise _replaced(name, sorted(replaced))
        if self._alone:
            return self._stop
        if after.step is not before.step and not self._alike:
            raise InputError(
                f"{name} put another function into the place of the optimizer's step, and under {self._strategy.name} "
                "that of a rank has some of the parameters, or parts: let Job.optimizer make one with that step, which "
                "is then tried, or train by replicas that update everything (dp, zero=0)",
                code="callback.replaces-step",
            )
        changed, retuned = after.parameters != before.parameters, after.options != before.options
        own = (
            int(self._stop),
            _digest(_changed(before.trained, after.trained)),
            int(changed),
            _digest(after.parameters) if changed and self._is_whole else 0,
            int(after.buffers != before.buffers),
            -1 if not after.options else int(retuned),
            _digest([before.options]),
            _digest([after.options]) if retuned and self._has_like_groups() else 0,
            self._data() if self.running else -1,
        )
        stops, flips, moved, weights, buffers, tuned, options_before, options, data = self._exchange(
            name, operation, own
        )
        self._refuse_unlike(
            name,
            {
                "requires_grad of other parameters": flips,
                "weights": moved if self._is_whole else (),
                "weights in another way": weights,
                "the options of the optimizer": [one for one in tuned if one >= 0],
                "the options of the optimizer in another way": _of_like(options_before, options),
                "what the data set reads, in another way": [one for one in data if one >= 0],
            },
        )
        if any(buffers):
            self._compare_buffers(name, before.buffers, after.buffers)
        if operation in (_END, "step") and not self._is_whole and any(moved):
            raise self._changes_parts("before it ends")
        return any(stops)

    def _exchange(self, name: str, operation: str, own: tuple[int, ...]) -> Iterable[tuple[int, ...]]:
        """What each rank says, by its place in `own`: see that all do the same, and that a loop has left them alike."""
        begins = self._samples if self._samples is not None else self._noted[0]
        if operation == _END:
            self._note_modes()
        of_loop = (self._moved if begins else -1, self._retuned if self._noted[1] else -1, self._switched, self._taken,
                   self._drawn, self._executor.replica, self._given)  # fmt: skip
        heard = self._executor.agreement.gather_integers(
            (_OPERATIONS.index(operation), *of_loop, *own), "what callbacks have changed"
        )
        doing, moved, retuned, switched, taken, drawn, replicas, given, *said = zip(*heard, strict=True)
        if first := _first_unlike(doing):
            said_by = [_said(rank, _OPERATIONS[doing[rank]]) for rank in (0, first)]
            raise InputError(
                f"in {name}, {said_by[0]}, and {said_by[1]}: what a session does takes all ranks, so call it on every "
                "rank; rank 0 writes what is saved"
            )
        of_replicas = {pair for pair in zip(replicas, given, strict=True) if pair[1]}
        if len(dict(of_replicas)) < len(of_replicas):
            raise InputError(
                f"the loop gave ranks of one replica different batches, and under {self._strategy.name} one has the "
                "inputs of a batch and another its targets: give all of them the same samples in the same order, as "
                "by a generator with a seed, or take those of session.batches()",
                code="session.unlike-in-replica",
            )
        told = [one for _, one in of_replicas]
        if len(set(told)) < len(told) and self._executor.steps >= _TELLING and self._varies():
            raise InputError(
                f"the loop gave several replicas the same samples in each of {self._executor.steps} steps, and under "
                f"{self._strategy.name} each trains on its share of a global batch: give each its own, as by "
                "torch.utils.data.DistributedSampler over session.strategy.dp replicas, or take the batches of "
                "session.batches(), which are shares",
                code="session.alike-in-replicas",
            )
        if _first_unlike([one for one in taken if one]):
            raise InputError(
                "the loop took a step with other global batches on some ranks than on others, whose shares make no "
                "batch together: what it leaves out must not go by what a rank has of a batch; leave samples out of "
                "the data set (torch.utils.data.Subset), or let the loss give them no weight",
                code="session.unlike-batches",
            )
        seeded = [one for one in drawn if one]
        if len(set(seeded)) < len(seeded) and self._strategy.tp == 1 and not self._strategy.shards:
            raise InputError(
                "the generator of torch was in the same state on several ranks when a step began that draws from it, "
                "as one that the loop seeds, so that samples of several replicas would get the same draws: seed "
                "nothing after trimaran.init (Job.seed does), and let draws of the loop have a torch.Generator",
                code="session.seeded-alike",
            )
        weights = [one for one in moved if one >= 0]
        if self._ever_stepped and _first_unlike(weights):
            raise self._steps_itself("took a step of another optimizer, by a backward that it ran itself")
        self._refuse_unlike(
            "the loop",
            {
                "weights": weights,
                "the options of the optimizer": [one for one in retuned if one >= 0],
            },
        )
        self._refuse_unlike(name, {"the modes of modules (train, eval)": switched})
        return said

    def _varies(self) -> bool:
        """Whether samples of the last batch of the loop's own differ: others may be alike on all ranks by intent."""
        return any(one.dim() > 0 and not torch.equal(one, one[:1].expand_as(one)) for one in self._own_batch.values())

    def _refuse_unlike(self, name: str, changed: Mapping[str, Sequence[int]]) -> None:
        """Refuse that a rank has changed something that another one has not, or in another way."""
        for what, numbers in changed.items():
            if _first_unlike(numbers):
                parts = (
                    f"; under {self._strategy.name} each rank has only its part of the weights, so let what it sets go "
                    "by the step and the metrics, or train by replicas: --allow dp"
                )
                raise InputError(
                    f"{name} changed {what} on some ranks only: it runs on every rank, and must change the same on "
                    'each, so put only what writes or prints under "if session.rank == 0"'
                    + ("" if self._whole or "in another way" not in what else parts),
                    code="session.unlike",
                )

    def _changes_parts(self, when: str) -> InputError:
        return InputError(
            f"{self.who} changed weights, and under {self._strategy.name} each rank has only its part of them up to "
            f"date: put them back {when}, as after an evaluation of other weights; read whole ones from a file "
            "(session.load); or train by replicas, of which each has all: --allow dp",
            code="session.changes-parts",
        )

    def explain(self, error: BaseException) -> None:
        """Note on an error of the loop's what a session is otherwise than torch, where that may be its cause."""
        if isinstance(error, AttributeError) and isinstance(error.obj, float) and error.name in dir(torch.Tensor):
            error.add_note(
                "session.step(batch) does forward, backward and update of the global batch on all ranks, and returns "
                "its mean loss as a number"
            )

    def _has_like_groups(self) -> bool:
        """Whether groups of the optimizer that have the same options are the same ones on each rank."""
        # Ranks that update the same parameters, or shares of them, have the same groups of them.
        optimizer = self._executor.updater.optimizer
        return self._alike or self._shares_all or (optimizer is not None and len(optimizer.param_groups) == 1)

    @property
    def _shares_all(self) -> bool:
        """Whether each rank updates a share of every parameter."""
        return self._strategy.segments == 1 and (self._strategy.tp > 1 or self._strategy.zero >= 2)

    def _compare_buffers(self, who: str, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        """See that buffers that were the same on each rank still are; those of batch norm never were.

        One that a rank alone has changed may be what others had already, as where a rank runs a part of the network.
        """
        heard = self._executor.agreement.gather_objects((before, after), "how callbacks have changed buffers")
        names = [name for name, _ in self._executor.model.named_buffers()]
        befores, afters = (list(zip(*one, strict=False)) for one in zip(*heard, strict=True))
        apart = any(then != now and len(set(now)) > 1 for then, now in zip(befores, afters, strict=False))
        self._refuse_unlike(who, {"buffers": [int(then != now) for then, now in heard] if apart else ()})
        unlike = [
            name
            for name, then, now in zip(names, befores, afters, strict=False)
            if len(set(then)) == 1 and len(set(now)) > 1
        ]
        if unlike:
            raise InputError(
                f"Job.{self._running} changed {format_some(unlike)}, which ranks had alike, in another way on each: "
                + (
                    "let it change the same on each rank, without what is drawn there"
                    if self._whole
                    else f"under {self._strategy.name} each rank has only its part of the weights up to date, so "
                    "average them by name in a dict, each rank its own; or train by replicas: --allow dp"
                ),
                code="callback.unlike-buffers",
                names=tuple(unlike),
            )

    def _look(self, *, sums: bool = True) -> _State:
        model = self._executor.model
        sampled = None if self._running == "on_epoch" else _SAMPLED
        sums = sums and not self._alone
        optimizer = self._executor.updater.optimizer
        # A schedule of torch's wraps it, and changes nothing.
        step = None if optimizer is None else vars(optimizer).get("step")
        return _State(
            identities={name: (id(one), one.shape) for name, one in model.named_parameters()},
            trained={name: one.requires_grad for name, one in model.named_parameters()},
            parameters=_sums(model.parameters(), sampled) if sums else (),
            buffers=_sums(model.buffers(), sampled) if sums else (),
            options="" if optimizer is None or not sums else written_options(optimizer),
            step=None if getattr(step, "_wrapped_by_lr_sched", False) else step,
        )

    def close(self) -> None:
        """Give the model back."""
        self._refusing.close()


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


def _replaced(who: str, names: Sequence[str]) -> InputError:
    return InputError(
        f"{who} replaced {format_some(names)}: parameters that are made after the start are in no optimizer and no "
        "exchange; make all of them in Job.model, and freeze or change them in place",
        code="session.replaces-parameters",
    )


def _generator_state() -> int:
    """A number for the state of torch's generator, not 0."""
    return int.from_bytes(hashlib.blake2b(torch.get_rng_state().numpy().tobytes(), digest_size=7).digest()) + 1


def is_power(steps: int) -> bool:
    """Whether ranks ask each other after this number of steps: 0, 1, 2, 4, 8, ..."""
    return steps & (steps - 1) == 0


def not_replaceable(name: str, who: str) -> InputError:
    """The refusal to put something else in the place of what a session trains.

    Args:
        name: "model" or "optimizer"
        who: sets it
    """
    ways = {
        "model": "change its weights in place, or read others by session.load(path)",
        "optimizer": "change the options of its param_groups, or clear its state",
    }
    return InputError(
        f"{who} puts another {name} in the place of session.{name}, which no step would use: what is "
        f"trained was made at the start by Job.{name}, under the plan. To train by another one, save the weights, "
        f"close the session and make one of another job, which loads them; else {ways[name]}",
        code="session.not-replaceable",
        name=name,
    )


@torch.no_grad()
def _samples(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The bits of some elements of each tensor that is strided, a copy for each device and type."""
    found: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        if local.layout is torch.strided and local.numel() and not local.is_meta:
            flat = local.reshape(-1)
            found.setdefault((local.device, local.dtype), []).append(flat[:: -(-flat.numel() // _SAMPLED)])
    return [torch.cat(of).view(torch.uint8) for of in found.values()]


def is_nothing(batch: Any) -> bool:
    """Whether a batch is that of a rank that reads no data."""
    return isinstance(batch, tuple) and not batch


def _hash(samples: Iterable[torch.Tensor]) -> str:
    """A digest of the bits of tensors."""
    return hashlib.blake2b(b"".join(one.cpu().numpy().tobytes() for one in samples), digest_size=8).hexdigest()


def _sums(tensors: Iterable[torch.Tensor], sampled: int | None) -> tuple[int, ...]:
    """Sums of the bits of tensors, as integers that wrap.

    Args:
        tensors: of any kind; those that are not strided count as 0
        sampled: most elements of each that count; None: all
    """
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in tensors:
        local = tensor.detach()
        if hasattr(local, "to_local"):  # sharded over ranks
            local = local.to_local()
        by_device.setdefault(local.device, []).append(_bits(local, sampled))
    return tuple(one for found in by_device.values() for one in torch.stack(found).tolist())


def _bits(tensor: torch.Tensor, sampled: int | None) -> torch.Tensor:
    if tensor.layout is not torch.strided or not tensor.numel() or tensor.is_meta:
        return torch.zeros((), dtype=torch.int64, device="cpu" if tensor.is_meta else tensor.device)
    flat = tensor.reshape(-1)
    if sampled is not None and flat.numel() > sampled:
        flat = flat[:: -(-flat.numel() // sampled)]
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    return flat.contiguous().view(_AS_INTEGERS[flat.element_size()]).sum(dtype=torch.int64)


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    names = sorted(before.keys() | after.keys())
    return [name for name in names if before.get(name) != after.get(name)]


def _digest(values: Sequence[object]) -> int:
    """A number for what ranks compare; 0 for nothing."""
    if not values:
        return 0
    return int.from_bytes(hashlib.blake2b(repr(list(values)).encode(), digest_size=7).digest()) + 1


def _of_like(before: Sequence[int], after: Sequence[int]) -> Sequence[int]:
    """What some ranks tell that had the same before, and do not tell the same now; nothing where there are none."""
    told: dict[int, list[int]] = {}
    for then, now in zip(before, after, strict=True):
        if now:
            told.setdefault(then, []).append(now)
    return next((one for one in told.values() if _first_unlike(one)), ())


def _first_unlike(told: Sequence[int]) -> int:
    """The first rank that says something else than rank 0; 0: none does."""
    return next((rank for rank, one in enumerate(told) if one != told[0]), 0)


def _said(rank: int, operation: str) -> str:
    return f"rank {rank} is done" if operation == _END else f"rank {rank} calls session.{operation}()"
