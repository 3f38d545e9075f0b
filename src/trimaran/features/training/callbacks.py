"""The user's callbacks `Job.on_step` and `Job.on_epoch`, and what they may do.

They run on every rank, after a step or an epoch of training, and change what they like of the model in place. Ranks
that train one network must stay alike, so when a callback has ended, and at each call of the session in it that all
ranks must make, the ranks tell each other what they were asked for and what has changed:

    rank 0    on_step ── evaluate ─┬─ evaluation ─ ... ── end ─┬─ next step
    rank 1    on_step ── evaluate ─┴─ evaluation ─ ... ── end ─┴─ next step       else both say who did what

So a call on one rank only is an error with names, and not a wait without an end; and one rank's request to stop is
heard by all.

A loop of the user's may change between two steps what a callback may. Each rank notes it before the next step, and
ranks tell each other after 0, 1, 2, 4, 8, ... steps, before whatever all of them must do, such as an evaluation or a
file of weights, and at the end of an epoch.

What is noted: up to 256 elements of each tensor, which parameters require gradients, the options of the optimizer, the
modes of modules. Of each a rank tells a digest of what it was when ranks told each other last, and one of how it has
changed since: ranks that had the same must have changed it alike.
"""

import hashlib
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from trimaran.base.errors import InputError, TrimaranError
from trimaran.base.job import Job
from trimaran.base.units import format_some
from trimaran.base.user_errors import asking
from trimaran.features.training.kept import step_hooks
from trimaran.graph.optimizers import written_options
from trimaran.launch.activity import ACTIVITY
from trimaran.program.strategy import Strategy
from trimaran.runtime.communication.channels import Meeting
from trimaran.runtime.executor import Executor
from trimaran.user_code.batches import name_tensors

Name = Literal["on_step", "on_epoch", "the loop"]

_SAMPLED = 256
_END = "end"
_WEIGHTS = "weights"
_MODES = "the modes of modules (train, eval)"
_BUFFER = "the buffer "
"""How the name of what is noted of a buffer begins."""

_TELLING = 4
"""Steps after which it is no chance that replicas were given the same samples in each: fewer may be of few samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What a rank tells the others where all must do the same.

    Attributes:
        doing: an operation of the session, or `_END`
        stops: it asks for the end of the training
        before: a digest of each thing that is noted, as ranks told each other last
        changes: by who has changed it, and what, a digest of how
        parts: weights are not as they were when the callback began, or the last step ended
        data: of what a callback has changed of what the data set holds; 0: nothing, -1: it is not read here
        replica: number of its replica
        taken: of the global batches that were trained on; 0: none
        given: of the batches that the loop has made itself; 0: none
        drawn: of the generator as the last step began, where that drew from it; 0: it did not
    """

    doing: str
    stops: bool
    before: Mapping[str, int]
    changes: Mapping[tuple[str, str], int]
    parts: bool
    data: int
    replica: int
    taken: int
    given: int
    drawn: int


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
        # Each rank updates a share of every parameter.
        self._shares_all = strategy.segments == 1 and (strategy.tp > 1 or strategy.zero >= 2)
        self._running: Name | None = None
        self._stop = False
        self._parameters = tuple(executor.model.parameters())
        self._identities = {id(one) for one in self._parameters}
        self._trained = [one.requires_grad for one in self._parameters]
        self._refusing = ExitStack()
        self._refuse_states()
        # What was there when ranks told each other last, and when it was looked at last, and what has changed since.
        self._before: dict[str, int] = {}
        self._noted: dict[str, bytes] = {}
        self._changes: dict[tuple[str, str], int] = {}
        self._modes = self._modes_now()
        # Of the weights, as the callback began, or the last step ended.
        self._weights = b""
        # Digests as of `_Told`; the last batch that the loop has made, while a step begins.
        self._taken = self._given = self._generator = self._drawn = 0
        self._own_batch: Mapping[str, torch.Tensor] = {}
        self._thread = threading.get_ident()
        self._grouped = self._groups()
        self._step, self._hooks = self._step_of_optimizer()

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
        self._running, self._thread = "the loop", threading.get_ident()
        if not self._alone:
            self._drawn = 0 if self._generator == _generator_state() else self._generator
            self._look(begins=True, buffers=is_power(self._executor.steps))

    def meet(self, place: tuple[int, int] | None, own: Any = None) -> None:
        """A step begins: see that code of the user's has left what ranks have in common, and what is trained.

        Args:
            place: epoch and place in it of the global batch that is trained on; None: the loop has made the batch
            own: a batch that the loop has made itself; None: it is of the session
        """
        self._check_trained()
        if self._running == "the loop" and not self._alone:
            if self._meeting is not None:
                self._meeting.go_on(self._executor.steps)
            self._note(modes=True)
            self._taken = self._taken if place is None else _digest(self._taken, place)
            if own is not None and not is_nothing(own):
                with suppress(InputError):
                    self._own_batch = name_tensors(own)
                self._given = _digest(self._given, *_samples(self._own_batch.values()))
            self._generator = _generator_state()
            if self._has_changed_parts():
                raise self._changes_parts("before the next step")
            if is_power(self._executor.steps):
                self._exchange("step")
        self._running = None
        self._own_batch = {}

    def settle(self, operation: str) -> None:
        """An epoch begins or ends: see that a loop of the user's has left ranks alike so far.

        Args:
            operation: of the session
        """
        # A loop may fetch batches ahead in another thread, while this one takes a step.
        if self._running == "the loop" and not self._alone and self._thread == threading.get_ident():
            self._tell(operation)

    @property
    def _is_whole(self) -> bool:
        """Whether all weights of this rank are up to date: before the first step those of other stages are, too."""
        return self._whole or (self._executor.steps == 0 and not self._shares)

    def _look(self, *, begins: bool = False, buffers: bool = True) -> None:
        """Begin with what is there now.

        Args:
            begins: a callback begins, or a step has ended
            buffers: those are noted too, as ranks tell each other next
        """
        self._noted = self._now(buffers=buffers)
        # Those of batch norm are others on each rank after each step.
        known = {what for what in self._before if not (begins and what.startswith(_BUFFER))}
        self._before |= {what: _digest(one) for what, one in self._noted.items() if one and what not in known}
        if begins:
            self._weights = self._noted[_WEIGHTS]

    def _now(self, *, buffers: bool) -> dict[str, bytes]:
        """What is noted, as it is."""
        model, optimizer = self._executor.model, self._executor.updater.optimizer
        sizes = list(map(len, self._groups())) if self._alike or self._shares_all else ""
        named = dict(model.named_buffers()) if buffers else {}
        return {
            _WEIGHTS: b"".join(_samples(self._parameters)),
            "requires_grad of other parameters": bytes(one.requires_grad for one in model.parameters()),
            "the options of the optimizer": f"{written_options(optimizer)} {sizes}".encode()
            if optimizer is not None
            else b"",
            **dict(zip((_BUFFER + name for name in named), _samples(named.values()), strict=True)),
        }

    def _tell_from_here(self) -> None:
        """What changes from now on is told next time."""
        self._look()
        self._before, self._changes = {what: _digest(one) for what, one in self._noted.items() if one}, {}

    def _note(self, *, modes: bool = False) -> None:
        """Note what has changed since that was looked at last.

        Args:
            modes: those that modules are in count: a loop may evaluate meanwhile
        """
        before, self._noted = self._noted, self._now(buffers=any(one.startswith(_BUFFER) for one in self._noted))
        for what, one in self._noted.items():
            # Of weights of which ranks have parts there is nothing to compare.
            if one != before.get(what, one) and (what != _WEIGHTS or self._is_whole):
                self._add_change(what, one)
        if modes and (now := self._modes_now()) != self._modes:
            self._modes = now
            self._add_change(_MODES, now)

    def _modes_now(self) -> bytes:
        return bytes(one.training for one in self._executor.model.modules())

    def _add_change(self, what: str, now: bytes) -> None:
        place = self.who, what
        self._changes[place] = _digest(self._changes.get(place, 0), now)

    def _has_changed_parts(self) -> bool:
        """Whether weights of which this rank has a part are others than as the callback began, or the step ended."""
        return not self._is_whole and self._noted[_WEIGHTS] != self._weights

    def _tell(self, operation: str) -> bool:
        """Tell the others what is done next, and what has changed, and refuse what differs; whether one has stopped."""
        self._note(modes=operation == _END)
        steps = self._executor.steps
        meeting = self._meeting if self._running == "the loop" else None
        if meeting is not None and not meeting.come(f"session.{operation}()", steps):
            raise InputError(
                f"the loop calls session.{operation}() on rank {self._rank} after {steps} steps, and another rank has "
                "begun the next step: what a session does takes all ranks, so call it on every rank; rank 0 writes "
                "what is saved",
                code="session.called-alone",
            )
        return self._exchange(operation)

    def call(self, session: Any, name: Name, number: int, metrics: dict[str, float]) -> bool:
        """Call one, where the job has it; every rank does.

        Args:
            session: its argument
            name: which
            number: of the step or the epoch
            metrics: figures of that

        Returns:
            Whether some rank asked for the end of the training.
        """
        callback = getattr(self._job, name)
        if callback is None:
            return False
        self._running, self._stop = name, False
        if not self._alone:
            self._look(begins=True)
        try:
            with ACTIVITY.during(f"Job.{name}"), asking(f"Job.{name}", callback):
                callback(session, number, metrics)
            self._check_kept()
            stop = self._stop if self._alone else self._tell(_END)
            if flipped := self._flipped():
                self._executor.refit(f"Job.{name} changed requires_grad of {format_some(flipped)}")
                self.accept_trained()
        except Exception as error:
            if isinstance(error, TrimaranError):
                raise
            error.add_note(f"in Job.{name} after {name.removeprefix('on_')} {number}")
            raise
        finally:
            self._running = None
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
            operation: of the session
        """
        name = self._running
        if name is None or self._alone:
            yield
            return
        if self.running:
            self._check_kept()
        self._tell(operation)
        self._running = None
        try:
            yield
        finally:
            self._running = name
            # An evaluation hands replica 0's buffers out; the weights are as the user's code has put them.
            self._tell_from_here()
            if operation == "load":
                self._weights = self._noted[_WEIGHTS]

    def _groups(self) -> list[list[int]]:
        """The parameters of each group of this rank's optimizer."""
        optimizer = self._executor.updater.optimizer
        return [] if optimizer is None else [[id(one) for one in group["params"]] for group in optimizer.param_groups]

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

    def _check_trained(self) -> None:
        """See that the parameters are those of the last step, or callback, and require gradients as there.

        Raises:
            InputError: they do not; or have gradients already; or hooks would see a part of them
        """
        if not self._alone:
            self._check_kept()
        left = not self._alone and any(one.grad is not None for one in self._parameters)
        if left:
            named = self._executor.model.named_parameters()
            raise InputError(
                f"{format_some([name for name, one in named if one.grad is not None])} had gradients before the step, "
                f"of a backward of the loop or a callback, and under {self._strategy.name} they are those of a rank: "
                "put that term into Job.loss, or call zero_grad() after a backward that is for nothing but a look",
                code="session.gradients-before-step",
            )
        if not self._alike and step_hooks(self._executor.updater.optimizer) != self._hooks:
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
        flipped = self._flipped()
        if flipped and not self._alone:
            raise InputError(
                f"requires_grad of {format_some(flipped)} was changed between steps: change it in Job.on_step or "
                "Job.on_epoch, after which all ranks take it over",
                code="session.requires-grad-changed",
            )
        if flipped:
            # No other rank has to hear of it.
            self._executor.refit(f"the loop changed requires_grad of {format_some(flipped)}")
            self.accept_trained()

    def _flipped(self) -> list[str]:
        """The parameters that require gradients and did not, or the other way round, when that was accepted last."""
        before = dict(zip(map(id, self._parameters), self._trained, strict=True))
        named = self._executor.model.named_parameters()
        return sorted(name for name, one in named if before.get(id(one), one.requires_grad) != one.requires_grad)

    def _check_kept(self) -> None:
        """See that the parameters are those of the start, and the step of the optimizer, where that is a rank's."""
        named = self._executor.model.named_parameters()
        if replaced := sorted(name for name, one in named if id(one) not in self._identities):
            raise InputError(
                f"{self.who if self.running else 'the loop, or a callback,'} replaced {format_some(replaced)}: "
                "parameters that are made after the start are in no optimizer and no exchange; make all of them in "
                "Job.model, and freeze or change them in place",
                code="session.replaces-parameters",
            )
        if self.running and not self._alone and not self._alike and self._step_of_optimizer()[0] is not self._step:
            raise InputError(
                f"{self.who} put another function into the place of the optimizer's step, and under "
                f"{self._strategy.name} that of a rank has some of the parameters, or parts: let Job.optimizer make "
                "one with that step, which is then tried, or train by replicas that update everything (dp, zero=0)",
                code="callback.replaces-step",
            )

    def _step_of_optimizer(self) -> tuple[Any, int]:
        """What was put into the place of its step, None: nothing, and how many hooks are on that."""
        optimizer = self._executor.updater.optimizer
        # A schedule of torch's wraps it, and changes nothing.
        step = None if optimizer is None else vars(optimizer).get("step")
        return None if getattr(step, "_wrapped_by_lr_sched", False) else step, step_hooks(optimizer)

    def accept_trained(self) -> None:
        """Take the parameters that require gradients now for those of the last step."""
        self._trained = [one.requires_grad for one in self._parameters]
        if self._noted:
            self._tell_from_here()
            self._weights = self._noted[_WEIGHTS]

    def _exchange(self, operation: str) -> bool:
        """Tell each other, and see that all do the same, and have what all must have; whether one has stopped."""
        told = self._executor.agreement.gather_objects(
            _Told(
                doing=operation,
                stops=self._stop,
                before=self._before,
                changes=self._changes,
                parts=self._has_changed_parts(),
                data=self._data() if self.running else -1,
                replica=self._executor.replica,
                taken=self._taken,
                given=self._given,
                drawn=self._drawn,
            ),
            "what callbacks have changed",
        )
        if first := _first_unlike([one.doing for one in told]):
            said_by = [_said(rank, told[rank].doing) for rank in (0, first)]
            raise InputError(
                f"in {self.who}, {said_by[0]}, and {said_by[1]}: what a session does takes all ranks, so call it on "
                "every rank; rank 0 writes what is saved"
            )
        self._compare_batches(told)
        for who, what in dict.fromkeys(place for one in told for place in one.changes):
            like = dict[int | None, set[int]]()
            for one in told:
                if what == _MODES or what in one.before:
                    like.setdefault(one.before.get(what), set()).add(one.changes.get((who, what), 0))
            if alone := next((found for found in like.values() if len(found) > 1), None):
                raise self._unlike(who, what, alone)
        data = {one.data for one in told if one.data >= 0}
        if len(data) > 1:
            raise self._unlike(self.who, "what the data set reads", data)
        if operation == _END and any(one.parts for one in told):
            raise self._changes_parts("before it ends")
        self._tell_from_here()
        return any(one.stops for one in told)

    def _compare_batches(self, told: Sequence[_Told]) -> None:
        """See that ranks take shares of the same global batches, and draw apart from each other."""
        of_replicas = {(one.replica, one.given) for one in told if one.given}
        if len(dict(of_replicas)) < len(of_replicas):
            raise InputError(
                f"the loop gave ranks of one replica different batches, and under {self._strategy.name} one has the "
                "inputs of a batch and another its targets: give all of them the same samples in the same order, as "
                "by a generator with a seed, or take those of session.batches()",
                code="session.unlike-in-replica",
            )
        given = [one for _, one in of_replicas]
        if len(set(given)) < len(given) and self._executor.steps >= _TELLING and self._varies():
            raise InputError(
                f"the loop gave several replicas the same samples in each of {self._executor.steps} steps, and under "
                f"{self._strategy.name} each trains on its share of a global batch: give each its own, as by "
                "torch.utils.data.DistributedSampler over session.strategy.dp replicas, or take the batches of "
                "session.batches(), which are shares",
                code="session.alike-in-replicas",
            )
        if len({one.taken for one in told if one.taken}) > 1:
            raise InputError(
                "the loop took a step with other global batches on some ranks than on others, whose shares make no "
                "batch together: what it leaves out must not go by what a rank has of a batch; leave samples out of "
                "the data set (torch.utils.data.Subset), or let the loss give them no weight",
                code="session.unlike-batches",
            )
        seeded = [one.drawn for one in told if one.drawn]
        if len(set(seeded)) < len(seeded) and self._strategy.tp == 1 and not self._strategy.shards:
            raise InputError(
                "the generator of torch was in the same state on several ranks when a step began that draws from it, "
                "as one that the loop seeds, so that samples of several replicas would get the same draws: seed "
                "nothing after trimaran.init (Job.seed does), and let draws of the loop have a torch.Generator",
                code="session.seeded-alike",
            )

    def _varies(self) -> bool:
        """Whether samples of the last batch of the loop's own differ: others may be alike on all ranks by intent."""
        return any(one.dim() > 0 and not torch.equal(one, one[:1].expand_as(one)) for one in self._own_batch.values())

    def _unlike(self, who: str, what: str, changes: set[int]) -> InputError:
        """The refusal of something that ranks had alike and have not any more; 0: a rank has left it as it was."""
        way = "" if 0 in changes else " in another way"
        parts = (
            f"; under {self._strategy.name} each rank has only its part of the weights, so let what it sets go by the "
            "step and the metrics, keep averages by name in a dict, each rank its own, or train by replicas: --allow dp"
        )
        return InputError(
            f"{who} changed {what}{way} on some ranks only: it runs on every rank, and must change the same on each, "
            f'so put only what writes or prints under "if session.rank == 0"{"" if self._whole or not way else parts}',
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

    def close(self) -> None:
        """Give the model back."""
        self._refusing.close()


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
def _samples(tensors: Iterable[torch.Tensor]) -> list[bytes]:
    """The bits of some elements of each tensor, fetched at once from each device; of one that is not strided none."""
    found: list[bytes] = []
    by_kind: dict[tuple[torch.device, torch.dtype], list[tuple[int, torch.Tensor]]] = {}
    for place, tensor in enumerate(tensors):
        local = tensor.detach()
        local = local.to_local() if hasattr(local, "to_local") else local
        found.append(b"")
        if local.layout is torch.strided and local.numel() and not local.is_meta:
            flat = local.reshape(-1)
            by_kind.setdefault((local.device, local.dtype), []).append((place, flat[:: -(-flat.numel() // _SAMPLED)]))
    for members in by_kind.values():
        bits = torch.cat([one for _, one in members]).view(torch.uint8).cpu().numpy().tobytes()
        end = 0
        for place, one in members:
            start, end = end, end + one.nbytes
            found[place] = bits[start:end]
    return found


def is_nothing(batch: Any) -> bool:
    """Whether a batch is that of a rank that reads no data."""
    return isinstance(batch, tuple) and not batch


def _digest(*values: object) -> int:
    """A number for what ranks compare, never 0, which stands for nothing."""
    parts = (one if isinstance(one, bytes) else repr(one).encode() for one in values)
    return int.from_bytes(hashlib.blake2b(b" ".join(parts), digest_size=7).digest()) + 1


def _first_unlike(told: Sequence[object]) -> int:
    """The first rank that says something else than rank 0; 0: none does."""
    return next((rank for rank, one in enumerate(told) if one != told[0]), 0)


def _said(rank: int, operation: str) -> str:
    return f"rank {rank} is done" if operation == _END else f"rank {rank} calls session.{operation}()"
