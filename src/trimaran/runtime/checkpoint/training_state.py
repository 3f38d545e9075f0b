"""The state of a training on one rank: what it takes to go on as if nothing had been in between, under any plan.

    take        tensors that this rank writes, copied to host memory    +    on rank 0 what is no tensor, as plain JSON
    put back    what this rank needs of them, read from pieces (`pieces`)

State is that of one process, by the names of the user's model, whatever the plan:

- parameters, frozen ones too, and buffers, those of the first replica;
- which parameters require gradients, since callbacks may change that;
- for each parameter the optimizer's state; the options of its groups, by the names of their parameters; the state of
  the schedule, of which lists with a value for each group are kept by group; the scale of fp16;
- for each rank the states of its random generators. The same plan goes on with them. Under another plan there are other
  ranks, whose generators are seeded by the job's seed, the step, and the replica and the row of the rank. So is the
  generator of a GPU where the state is of CPUs; that of a GPU is left out on CPUs;
- for each replica what compression has lost of its gradients. As many replicas go on with it, and if there are more or
  fewer, the first one gets the sum of all;
- steps, and what the caller adds: where it is in the data, and its figures.

What cannot be kept exactly is refused before the training begins (`check`).
"""

import copy
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from trimaran.base.decoding import decode_object
from trimaran.base.errors import CorruptDataError, InputError, TrimaranError
from trimaran.base.precision import dtype_name
from trimaran.base.units import format_some
from trimaran.checkpoint_files.container import check_writable
from trimaran.checkpoint_files.content import Form, Member, OptimizerContent
from trimaran.checkpoint_files.pieces import (
    WHOLE,
    Area,
    Entry,
    Piece,
    Region,
    Want,
    What,
    Writers,
    fill_from,
    name_in_file,
    put,
    shape_of,
    share_out,
)
from trimaran.checkpoint_files.plain import decode, dtype_named, encode
from trimaran.graph.optimizers import Trained, marked, parameter_groups, trained_parameters
from trimaran.graph.trace.storages import dtype_of
from trimaran.program.json_files import to_plain
from trimaran.program.strategy import IN_LINE, Strategy
from trimaran.runtime.checkpoint import job_state
from trimaran.runtime.checkpoint.recovered import Changed
from trimaran.runtime.communication.channels import raise_first
from trimaran.runtime.communication.compression import Codec
from trimaran.runtime.parts.part import Making, Part, Sharing
from trimaran.runtime.precision import LossScaler
from trimaran.runtime.step.updates import Updater
from trimaran.runtime.whole_state import Held, Kind, StateGatherer, merge_groups, same_options
from trimaran.user_code.model import class_name
from trimaran.user_code.randomness import RandomState, derive_seed, preserved_randomness, seed_generators

VERSION = 1
_KINDS: tuple[Kind, ...] = ("parameter", "buffer", "optimizer")
_WEIGHTS: tuple[Kind, ...] = ("parameter", "buffer")
# Of states of schedules: lists with a value for each group of the optimizer.
_PER_GROUP = frozenset(
    ("base_lrs", "_last_lr", "min_lrs", "max_lrs", "lr_lambdas", "base_momentums", "max_momentums", "total_iters")
)
_COPYING = 4
"""Threads that copy a state in host memory: one alone does not take all of the memory's bandwidth."""
_BY_GROUP = "by group"
_REPEATED = frozenset(("base_lrs", "_last_lr"))
"""Of states of schedules: what the options of the groups say too."""
# How an optimizer computes: its own on each device.
_IMPLEMENTATION = frozenset(("foreach", "fused", "capturable"))
Fill = Callable[[Sequence[Want], Mapping[What, Entry]], None]
"""Fills tensors from the pieces of a state, such as `fill_from`; every rank calls it, once, with what it wants."""


@dataclass(slots=True, kw_only=True)
class Taken:
    """The state of a moment.

    Attributes:
        writers: which rank has which pieces; the same on every rank
        tensors: those that this rank writes, by their names in its file; copies change when the next state is taken
        plain: on rank 0 everything that is no tensor, as plain JSON
    """

    writers: Writers
    tensors: dict[str, torch.Tensor]
    plain: dict[str, Any] = field(default_factory=dict)


class _Said(NamedTuple):
    """What a rank has that is no tensor: options, also as the job made them, extra state, values by name and key."""

    options: "_Options"
    made: "_Options"
    extra: Any
    values: dict[str, dict[str, Any]]
    state: list[Any]


class _Options(NamedTuple):
    """The groups of a rank's optimizer, each with the names of its parameters, and the state of its schedule."""

    groups: list[tuple[dict[str, Any], list[str]]]
    schedule: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class _Here:
    """A piece of this rank, and where it is."""

    piece: Piece
    tensor: torch.Tensor


class TrainingState:
    """Takes and puts back the state of a training; one a rank. Every method but `check` is called on every rank.

    Args:
        making: what the part of this rank was made of
        part: of this rank
        updater: of this rank
        scaler: of fp16; None: there is none
        codec: of compressed gradients; None: they are not compressed
        gatherer: lists what this rank has
        place: replica and row of this rank
        modules: of the user's model, from `describe_modules`, before ranks share them out

    Attributes:
        graph: digest of the graph of the job; empty: it is not known
        outside: what a step takes over from the one before it, and is neither a parameter nor a buffer of the model
    """

    def __init__(
        self,
        making: Making,
        part: Part,
        *,
        updater: Updater,
        scaler: LossScaler | None,
        codec: Codec | None,
        gatherer: StateGatherer,
        place: tuple[int, int],
        modules: Mapping[str, Any],
    ) -> None:
        self._job, self._strategy, self._world = making.job, making.strategy, making.world
        self._agreement = making.channels.agreement
        self._part, self._updater, self._scaler, self._codec = part, updater, scaler, codec
        self._gatherer, self._traits = gatherer, making.traits
        self._replica, self._row = place
        self._modules = modules
        self.graph = ""
        self.outside: tuple[str, ...] = ()
        self._checked = False
        self._room: dict[str, torch.Tensor] = {}
        self._shared_out: tuple[list[Piece], Writers] | None = None
        self._ordered: tuple[list[str], dict[str, Any] | None] | None = None
        self._made = _Options([], None)
        # What cannot be kept is refused by `check`, where the training saves.
        with suppress(Exception):
            self._made = copy.deepcopy(self._options())
        self._made_saved: dict[str, Any] | None = None

    # -----------------------------------------------------------------------------------------------------------------
    # Before training: can the state be kept?

    def check(self) -> None:
        """Refuse what cannot be kept exactly, before the training begins.

        Raises:
            InputError: the optimizer, the schedule or the model keeps something that is no plain value and no tensor,
                or that does not lie on the ranks as its parameter does; or a step takes over what no state has
        """
        self._checked = True
        self._gatherer.check_extra()
        buffers = {name for kind, name in self._gatherer.shapes if kind == "buffer"}
        outside = [name for name in self.outside if name not in buffers]
        if outside:
            raise InputError(
                f"each step takes over {format_some(outside)} from the one before it, which is no buffer of the "
                "model, so that a checkpoint would not have it: keep it in a buffer of the model (register_buffer), "
                "draw from the global generators, which are saved, or train without saving",
                code="checkpoint.outside-the-model",
                names=tuple(outside),
            )
        optimizer = self._updater.optimizer
        if optimizer is None:
            return
        name = type(optimizer).__name__
        for method in ("state_dict", "load_state_dict"):
            if not callable(getattr(optimizer, method, None)) or not isinstance(
                getattr(optimizer, "state", None), dict
            ):
                raise InputError(
                    f"{name} has no {method}() and state as optimizers of torch have, so its state cannot be saved: "
                    "derive it from torch.optim.Optimizer, or train without saving",
                    code="checkpoint.optimizer-without-state",
                    optimizer=name,
                )
        if self._updater.foreign:
            raise InputError(
                f"{name} holds {len(self._updater.foreign)} parameters that the model has not, and a checkpoint has "
                "those of the model: make them parameters of the model that Job.model makes, or train without saving",
                code="checkpoint.foreign-parameters",
                optimizer=name,
            )
        for one, (shape, state) in self._traits.kept.items():
            for key, value in state.items():
                what = f'"{key}" that {name} keeps of {one}'
                if not isinstance(key, str):
                    raise InputError(
                        f"{name} keeps its state of {one} under {key!r}, and a checkpoint has texts for keys: name it, "
                        "or train without saving",
                        code="checkpoint.key-not-text",
                        optimizer=name,
                    )
                shared = self._part.sharing and self._traits.elementwise
                if not isinstance(value, torch.Tensor):
                    encode(value, what)
                    if shared:
                        _check_no_shares_in(value, what)
                elif value.dim() and value.shape != shape and shared:
                    raise _not_like_share(what, tuple(value.shape), shape)
        self._extra()
        self._schedule_state()
        if self._traits.forgets:
            raise InputError(
                f"{name} and its schedule do not go on from their own state_dict() as before: {self._traits.forgets}. "
                "What they keep in attributes, such as a count of steps, is lost, also where the state_dict() of an "
                "optimizer has it besides state and param_groups: keep it in one of these two, or in what the "
                "schedule's state_dict() returns, or train without saving",
                code="checkpoint.forgets",
                optimizer=name,
            )

    # -----------------------------------------------------------------------------------------------------------------
    # Take

    def take(self, steps: int, figures: Mapping[str, Any], *, copy: bool = True) -> Taken:
        """The state of this moment, between steps.

        Args:
            steps: training steps that were done
            figures: plain JSON that is kept with it; rank 0's counts
            copy: copy tensors to host memory, so that the training may go on while they are written

        Raises:
            InputError: something cannot be kept exactly
            ExecutionError: ranks do not have what together is the whole state; or another rank is gone
        """
        if self._world.device != "cpu":
            # State that lives on the host may be on its way there.
            torch.cuda.synchronize(self._world.device)
        with self._agreement.alike("what is saved"):
            if not self._checked:
                self.check()
            here, values, state = self._here()
            said = _Said(self._options(), self._made, self._extra(), values, state)
            if len(said.options.groups) > len(self._made.groups) > 0:
                raise InputError(
                    "a group of parameters was added to the optimizer, and a training that goes on from a checkpoint "
                    "has the groups that Job.optimizer makes: make all of them there, and change their options or "
                    "requires_grad later, or train without saving",
                    code="checkpoint.added-groups",
                )
        writers = self._share_out([one.piece for one in here.values()])
        own = writers.own[self._world.rank]
        tensors = {name_in_file(what): one.tensor for what, one in here.items() if what in own}
        if copy:
            # Until it is made nothing is trained. A GPU's copies are in one order anyway.
            threads = min(_COPYING, os.cpu_count() or 1) if self._world.device == "cpu" else 1
            with ThreadPoolExecutor(threads) as pool:
                tensors = dict(zip(tensors, pool.map(self._copy, tensors, tensors.values()), strict=True))
        plain = self._plain(said)
        if plain:
            plain |= {"version": VERSION, "steps": steps, **self._about(), "figures": dict(figures)}
            plain["trained"] = [name for name, _ in trained_parameters(self._gatherer.model).named_parameters()]
            plain["model"] = {"names": dict(self._gatherer.names), "config": _config(self._gatherer.model)}
            plain["order"] = self._order(said.options.groups, plain["trained"])
        return Taken(writers=writers, tensors=tensors, plain=plain)

    def gather(self, taken: Taken) -> dict[str, torch.Tensor]:
        """Tensors of a state, whole, in host memory: on rank 0; every rank calls it.

        Args:
            taken: at this moment, by all ranks
        """
        found: dict[str, torch.Tensor] = {}
        group, rank = self._agreement.group, self._world.rank
        for entry in taken.writers.entries:
            name = name_in_file(entry.what)
            if rank == 0:
                found[name] = torch.empty(entry.shape, dtype=dtype_named(entry.dtype, name))
            for writer, area in entry.pieces:
                own = taken.tensors[name].detach().cpu().contiguous() if writer == rank else None
                if writer and own is not None:
                    dist.send(own.reshape(-1).view(torch.uint8), group_dst=0, group=group)
                if rank:
                    continue
                if own is None:
                    own = torch.empty(shape_of(entry.shape, area), dtype=found[name].dtype)
                    dist.recv(own.reshape(-1).view(torch.uint8), group_src=writer, group=group)
                put(found[name], entry, own, area)
        return found

    def check_writable(self) -> None:
        """Refuse a model with tensors that no file can have.

        Raises:
            InputError: a parameter, or a buffer that is saved, is sparse, quantized, or of a dtype without a name there
        """
        model = self._gatherer.model
        for name, one in (*model.named_parameters(), *model.named_buffers()):
            if {("parameter", name), ("buffer", name)} & self._gatherer.shapes.keys():
                check_writable(name, one, has_content=False)

    def expected_bytes(self) -> int:
        """About what a checkpoint will take, of all ranks together [bytes]: two states a parameter, as Adam's."""
        sizes = {
            what: math.prod(shape) * dtype_named(dtype, "the model").itemsize
            for what, (shape, dtype) in self._gatherer.shapes.items()
        }
        return sum(size * (3 if kind == "parameter" else 1) for (kind, _), size in sizes.items())

    def _here(self) -> tuple[dict[What, _Here], dict[str, dict[str, Any]], list[Any]]:
        """What this rank has: tensors; what its optimizer keeps that is none, by parameter and key; and `Job.state`."""
        found: dict[What, _Here] = {}
        values: dict[str, dict[str, Any]] = {}

        def add(what: What, tensor: torch.Tensor, sharing: Sharing | None = None, **options: bool) -> None:
            shape, area = tuple(tensor.shape), WHOLE
            if sharing is not None:
                shape, area = tuple(sharing.shape), Area(sharing.dim, sharing.spans)
            piece = Piece(what, shape, dtype_name(tensor.dtype), area, **options)
            found[what] = _Here(piece=piece, tensor=tensor)

        shared: dict[int, tuple[str, torch.Tensor, Sharing | None]] = {}
        for one in self._gatherer.held(self._part, self._updater, self._world, _KINDS):
            if one.tensor is not None:
                add(one.what, one.tensor, one.sharing, spare=one.spare, first=one.kind == "buffer")
            elif isinstance(one.value, torch.Tensor):
                add(one.what, one.value)
            else:
                value = encode(one.value, f'"{one.key}" that {self._updater.name} keeps of {one.name}')
                values.setdefault(one.name, {})[one.key] = value
            if one.parameter is not None and one.tensor is not None:
                shared[id(one.parameter)] = one.name, one.tensor, one.sharing
                self._add_compressed(one, add)
        add(("random", f"rank{self._world.rank}", ""), self._random())
        tensors, state = job_state.take(self._job.state)
        for what, tensor in tensors.items():
            add(what, tensor, first=True)
        return found, values, state

    def _add_compressed(self, held: Held, add: Callable[..., None]) -> None:
        if self._codec is None or held.parameter is None or held.tensor is None:
            return
        lost = self._codec.lost(held.parameter)
        copy = self._copy_name(held.parameter)
        if lost is not None:
            add(("residual", held.name, f"{self._replica}{copy}"), lost.view(held.tensor.shape), held.sharing)
        for key, tensor in self._codec.kept(held.parameter).items():
            # Shares of a parameter have their own.
            add(("compression", held.name, f"{key}{_own_name(held.sharing)}{copy}"), tensor)

    def _copy_name(self, parameter: nn.Parameter) -> str:
        """Of a weight that several rows hold, which each compress the gradient of their uses. Empty for the first."""
        return "" if any(one is parameter for one in self._part.counted) else f" in row {self._row}"

    def _random(self) -> torch.Tensor:
        random = RandomState.of(self._world.device)
        states = {"host": dict(random.host), "device": random.device}
        text = json.dumps(encode(states, "the state of the random generators")).encode()
        return torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def _share_out(self, pieces: list[Piece]) -> Writers:
        """Who writes what; ranks exchange lists only where one has changed."""
        same = self._shared_out is not None and self._shared_out[0] == pieces
        if self._agreement.first_rank(not same) is not None or self._shared_out is None:
            said = self._agreement.gather_objects(pieces, "sharing out what is saved")
            self._shared_out = pieces, share_out(said)
        return self._shared_out[1]

    def _copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in host memory, in that of the last one where it fits: new memory takes as long as the copy."""
        dense = (tensor.to_dense() if tensor.is_sparse else tensor).detach()
        room = self._room.get(name)
        if room is None or room.shape != dense.shape or room.dtype != dense.dtype:
            room = self._room[name] = torch.empty(dense.shape, dtype=dense.dtype)
        return room.copy_(dense)

    def _plain(self, said: "_Said") -> dict[str, Any]:
        """On rank 0 what is no tensor, of all ranks together."""
        heard = self._agreement.gather_objects(said, "gathering the state")
        with self._agreement.alike("gathering the state"):
            return {} if self._world.rank else self._of_all(heard)

    def _of_all(self, heard: "Sequence[_Said]") -> dict[str, Any]:
        extra = [one.extra for one in heard if one.extra is not None]
        if any(one != extra[0] for one in extra):
            raise InputError(
                f"{self._traits.class_name} keeps {', '.join(extra[0])} besides the state of its parameters, and not "
                "the same on every rank: train on one device, or without saving",
                code="checkpoint.unlike-optimizers",
            )
        job_state.check_alike([one.state for one in heard])
        optimizer: dict[str, dict[str, Any]] = {}
        for one in heard:
            for name, state in one.values.items():
                optimizer.setdefault(name, {}).update(state)
        return {
            **_options_of_all([one.options for one in heard]),
            # Those that count: a job that goes on with others has had no part in them.
            "made": self._made_saved or _options_of_all([one.made for one in heard]),
            "optimizer": {"values": optimizer, "extra": extra[0] if extra else {}, "updates": self._updater.updates},
            "scaler": None
            if self._scaler is None
            else {"state": encode(self._scaler.scaler.state_dict(), "the scaler"), "skipped": self._scaler.skipped},
            "compression": None if self._codec is None else encode(self._codec.figures(), "the compression"),
            "state": heard[0].state,
        }

    def _about(self) -> dict[str, Any]:
        """The job and the plan that a state is of."""
        job, strategy = self._job, self._strategy
        return {
            "job": {
                "name": job.name,
                "seed": job.seed,
                "global_batch_size": job.global_batch_size,
                "precision": job.precision,
                "drop_last": job.drop_last,
                "clip_norm": job.clip_norm,
                "optimizer": self._traits.class_name,
                "graph": self.graph,
                "modules": self._modules,
            },
            "on": {"device": self._world.device.partition(":")[0], "torch": torch.__version__},
            "plan": {
                "name": strategy.name,
                "digest": _digest(strategy),
                "ranks": self._world.size,
                "replicas": strategy.dp,
                "compression": None if strategy.compression is None else strategy.compression.name,
                "learned": any(getattr(stage, "learned", False) for stage in self._part.stages.values()),
            },
        }

    def _order(self, options: Sequence[tuple[Any, Sequence[str]]], trained: Sequence[str]) -> dict[str, Any] | None:
        """The groups of the optimizer of one process, in its order, by which its `state_dict` goes; None: not known.

        It has "groups", and "named": the optimizer was given names of its parameters.

        Args:
            options: of this rank's optimizer, with the names of the parameters in each group
            trained: names of all parameters that are trained
        """
        if {name for _, names in options for name in names} == {*trained}:
            groups = [] if self._updater.optimizer is None else self._updater.optimizer.param_groups
            named = any("param_names" in group for group in groups)
            return {"groups": [list(names) for _, names in options], "named": named}
        if self._ordered is None or self._ordered[0] != list(trained):
            model = self._gatherer.model
            try:
                with preserved_randomness(model):
                    found, named = parameter_groups(self._job, _like(trained_parameters(model)))
            except InputError:
                self._ordered = list(trained), None
            else:
                self._ordered = list(trained), {"groups": [list(names) for names in found], "named": named}
        return self._ordered[1]

    def _options(self) -> "_Options":
        return _Options(self._gatherer.options(self._part, self._updater), self._schedule_state())

    def _schedule_state(self) -> Any:
        schedule = self._updater.schedule
        if schedule is None:
            return None
        name = type(schedule).__name__
        if not callable(getattr(schedule, "state_dict", None)) or not callable(
            getattr(schedule, "load_state_dict", None)
        ):
            raise InputError(
                f"the schedule {name} of Job.lr_schedule has no state_dict() and load_state_dict(), so its state "
                "cannot be saved: take one of torch.optim.lr_scheduler, or train without saving",
                code="checkpoint.schedule-without-state",
                schedule=name,
            )
        return {"class": name, "state": encode(dict(schedule.state_dict()), f"the state of the schedule {name}")}

    def _extra(self) -> Any:
        """What the optimizer keeps besides groups and the state of parameters."""
        optimizer = self._updater.optimizer
        if optimizer is None:
            return None
        held = {id(one) for group in optimizer.param_groups for one in group["params"]}
        others = {key: value for key, value in optimizer.state.items() if id(key) not in held}
        unnamed = [key for key in others if not isinstance(key, str)]
        if unnamed:
            raise InputError(
                f"{self._updater.name} keeps state of {len(unnamed)} objects that are none of its parameters: a "
                "checkpoint has the state of parameters, and of what has a text for its name",
                code="checkpoint.state-of-others",
            )
        return encode(others, f"what {self._updater.name} keeps besides the state of parameters")

    # -----------------------------------------------------------------------------------------------------------------
    # Put back

    def put_back(
        self,
        plain: Mapping[str, Any],
        entries: Sequence[Entry],
        fill: Fill,
        source: str,
        *,
        check_refit: Callable[[str], None],
    ) -> tuple[int, tuple[Changed, ...], tuple[str, ...]]:
        """Go on from a state, perhaps of another plan; every rank calls it, between steps.

        Args:
            plain: what is no tensor, from `take`
            entries: the tensors
            fill: fills tensors from their pieces
            source: of the state, for messages
            check_refit: refuses other parameters that require gradients; it is told what has changed

        Returns:
            Training steps that were done; what has changed since; and for people, what else is not as in a training
            without a break.

        Raises:
            InputError: the state is of another model or job, or this plan cannot have it; nothing has been changed
            CorruptDataError: it lacks something
        """
        table = {entry.what: entry for entry in entries}
        prepared = self._prepare(plain, table, source, check_refit)
        self._train(self._flipped(plain))
        states, options, lost, changed, notes, wants = prepared
        same = self._is_same_plan(plain)
        random = ("random", f"rank{self._world.rank}", "")
        if same and random in table:
            wants.append(Want(random, torch.empty(table[random].shape, dtype=torch.uint8)))
        for what, entry in table.items() if self._job.state else ():
            if what[0] == job_state.KIND:
                wants.append(Want(what, torch.empty(entry.shape, dtype=dtype_named(entry.dtype, source))))
        fill(wants, table)
        kept = {want.what: want.target for want in wants if want.what[0] == job_state.KIND}
        job_state.put_back(self._job.state, plain.get("state", []), kept, source)
        self._load_optimizer(states, options, plain, source)
        if self._scaler is not None and plain["scaler"]:
            self._scaler.scaler.load_state_dict(decode(plain["scaler"]["state"], source))
            self._scaler.skipped = int(plain["scaler"]["skipped"])
        self._load_compression(lost, plain, source)
        steps = int(plain["steps"])
        self._made_saved = plain.get("made")
        if same:
            moved = self._restore_random(next((want.target for want in wants if want.what == random), None), source)
            notes = (*notes, *_GENERATORS[moved])
            if moved == "seed":
                torch.cuda.manual_seed(derive_seed(self._job.seed, "resume", steps, self._replica, self._row))
        else:
            seed_generators(derive_seed(self._job.seed, "resume", steps, self._replica, self._row))
            notes = (
                f"the checkpoint is of the plan {plain['plan']['name']} on {plain['plan']['ranks']} ranks: random "
                f"generators were seeded anew from the job's seed and step {steps}, and each rank has the buffers of "
                "the first replica",
                *notes,
            )
        return steps, changed, notes

    def _prepare(
        self,
        plain: Mapping[str, Any],
        table: Mapping[What, Entry],
        source: str,
        check_refit: Callable[[str], None],
    ) -> "_Prepared":
        """What this rank wants, if all ranks can have theirs: nothing has been changed by then.

        Raises:
            InputError: the state is of another model or job, or some rank cannot have it
        """
        prepared, fault = None, None
        held = self._gatherer.held(self._part, self._updater, self._world, _WEIGHTS)
        try:
            self._check_job(plain, source)
            self._check_model(table, source)
            self._check_trained(plain, source, check_refit)
            job_state.check_objects(self._job.state, plain.get("state", []), source)
            options = self._own_groups(plain, source)
            states = self._own_states(held, table, plain, source)
            lost, notes = self._own_residuals(held, table, plain)
            changed = (*self._differences(plain), *self._changed_options(plain, source))
            prepared = _Prepared(states, options, lost, changed, notes, [])
        except TrimaranError as error:
            fault = error
        said = fault, [one.what for one in held if not one.spare], () if prepared is None else prepared.changed
        heard = self._agreement.gather_objects(said, "going on from a checkpoint")
        raise_first([other for other, _, _ in heard], fault)
        if prepared is None:
            raise CorruptDataError(f"{source} could not be prepared")
        prepared = prepared._replace(changed=tuple(dict.fromkeys(one for _, _, of in heard for one in of)))
        trained = {what for _, names, _ in heard for what in names}
        for one in held:
            # What some rank trains, only those that do read.
            if one.tensor is not None and not (one.spare and one.what in trained):
                prepared.wants.append(Want(one.what, one.tensor, _area(one.sharing)))
        prepared.wants.extend(want for state in prepared.states.values() for want in state.wants)
        prepared.wants.extend(want for _, want in prepared.lost)
        return prepared

    def adopt_optimizer(
        self, content: OptimizerContent, source: str
    ) -> tuple[Callable[[], None], tuple[Changed, ...], tuple[str, ...]]:
        """Take over the state of an optimizer that was saved elsewhere; every rank calls it, between steps.

        Hyperparameters and the schedule stay those of the job.

        Args:
            content: state by names of this model, or by numbers in the order of one process
            source: of it, for messages

        Returns:
            What puts the state in its places, and communicates nothing; what differs from the job; and for people, what
            else is to be known.

        Raises:
            InputError: it is of other parameters, or of another optimizer; nothing has been changed
        """
        with self._agreement.alike("taking over the state of an optimizer"):
            names = self._members(content, source)
            table, values, notes = self._adopted(content, names, source)
            plain = {"optimizer": {"values": values, "extra": {}, "updates": self._updater.updates}, "schedule": None}
            held = self._gatherer.held(self._part, self._updater, self._world, ("parameter",))
            states = self._own_states(held, table, plain, source)

        def put_in_place() -> None:
            reading = _Kept(content, {name: member for member, name in names.items()}, source)
            fill_from(reading, [want for state in states.values() for want in state.wants], table)
            optimizer = self._updater.optimizer
            groups = [] if optimizer is None else [None] * len(optimizer.param_groups)
            self._load_optimizer(states, groups, plain, source)

        return put_in_place, self._differing_options(content, names), notes

    def _members(self, content: OptimizerContent, source: str) -> dict[Member, str]:
        """The names that parameters of an optimizer's state have in this model."""
        aliases = self._gatherer.aliases
        trained = trained_parameters(self._gatherer.model)
        found: dict[Member, str] = {}
        if any(isinstance(member, int) for member in content.states):
            own, _ = parameter_groups(self._job, _like(trained))
            if [len(group.members) for group in content.groups] != [len(names) for names in own]:
                raise InputError(
                    f"{source} has an optimizer with groups of {[len(one.members) for one in content.groups]} "
                    f"parameters, and Job.optimizer makes groups of {[len(names) for names in own]}: take a job whose "
                    "optimizer has the same groups in the same order, or the weights alone",
                    code="weights.other-groups",
                    path=source,
                )
            for group, names in zip(content.groups, own, strict=True):
                said = group.options.get("param_names")
                if said is not None and list(said) != list(names):
                    raise InputError(
                        f"{source} has an optimizer with other parameters, or in another order, than Job.optimizer "
                        "makes: take a job whose optimizer has the same groups, or the weights alone",
                        code="weights.other-order",
                        path=source,
                    )
                found.update(zip(group.members, names, strict=True))
        else:
            found = {member: aliases.get(str(member), str(member)) for member in content.states}
        known = {name for name, _ in trained.named_parameters()}
        unknown = sorted(str(member) for member in content.states if found.get(member) not in known)
        if unknown:
            raise InputError(
                f"{source} has the state of an optimizer for {format_some(unknown, 8)}, which this job does not train: "
                "take the weights alone",
                code="weights.state-of-others",
                path=source,
                unexpected=tuple(unknown),
            )
        return {member: found[member] for member in content.states}

    def _adopted(
        self, content: OptimizerContent, names: Mapping[Member, str], source: str
    ) -> tuple[dict[What, Entry], dict[str, dict[str, Any]], tuple[str, ...]]:
        """Tensors of a state, and what is none, compared with what this job's optimizer keeps."""
        kept = self._traits.kept
        if not kept:
            raise InputError(
                f"the optimizer of this job cannot be tried, so that its state cannot be compared with that in {source}"
                ": take the weights alone",
                code="weights.optimizer-not-tried",
                path=source,
            )
        samples = {key: (shape, value) for shape, state in kept.values() for key, value in state.items()}
        forms = {frozenset(state) for _, state in kept.values()}
        table: dict[What, Entry] = {}
        values: dict[str, dict[str, Any]] = {}
        wrong: list[str] = []
        for member, state in content.states.items():
            name = names[member]
            whole, own = self._gatherer.shapes["parameter", name]
            if frozenset(state) not in forms:
                wrong.append(f"{name} ({', '.join(state) or 'nothing'})")
                continue
            for key, one in state.items():
                of, sample = samples[key]
                like = isinstance(sample, torch.Tensor)
                if isinstance(one, Form) and one.shape:
                    fits = like and (sample.shape != of or one.shape == whole)
                    # It was tried in fp64.
                    if not fits or one.dtype != (dtype_of(own) if sample.dtype == torch.float64 else sample.dtype):
                        wrong.append(f"{key} of {name} is {one}")
                    dtype = dtype_name(one.dtype)
                    table["optimizer", name, key] = Entry(
                        what=("optimizer", name, key), shape=one.shape, dtype=dtype, pieces=((0, WHOLE),)
                    )
                    continue
                value = content.value(member, key)
                if like and not sample.dim() and isinstance(value, int | float):
                    # Counts of steps were numbers once.
                    value = torch.tensor(value, dtype=sample.dtype)
                values.setdefault(name, {})[key] = encode(value, f'"{key}" of {name} in {source}')
        if wrong:
            keys = ", ".join(samples) or "nothing"
            raise InputError(
                f"{source} has the state of another optimizer: {format_some(wrong, 8)}; {self._traits.class_name} of "
                f"this job keeps {keys}. Take the optimizer that was trained with, or the weights alone",
                code="weights.other-optimizer",
                path=source,
                tensors=tuple(wrong),
            )
        every = [name for name, _ in trained_parameters(self._gatherer.model).named_parameters()]
        without = [name for name in every if name not in names.values()]
        note = f"{source} has no state of the optimizer for {format_some(without, 8)}: it begins anew"
        return table, values, (note,) if without else ()

    def _differing_options(self, content: OptimizerContent, names: Mapping[Member, str]) -> tuple[Changed, ...]:
        """Hyperparameters in a file that are not those of the job, of groups that this rank has."""
        saved = [({names[one] for one in group.members if one in names}, group.options) for group in content.groups]
        return tuple(self._compared(saved, "job"))

    def _changed_options(self, plain: Mapping[str, Any], source: str) -> Iterator[Changed]:
        """Options of this rank's optimizer and schedule that the job has made otherwise than when it was saved."""
        made = plain.get("made") or {"groups": plain["groups"], "schedule": None}
        saved = [({*one["names"]}, decode(one["options"], source)) for one in made["groups"]]
        yield from self._compared(saved, "checkpoint")
        theirs, own = made["schedule"], self._made.schedule
        if theirs is None or own is None:
            return
        numbers = [_number_of(names, saved) for _, names in self._made.groups]
        then = dict(_leaves(decode(_of_groups(theirs["state"], numbers, own["state"], source), source)))
        for key, now in _leaves(decode(own["state"], source)):
            if key in then and repr(then[key]) != repr(now):
                what = f"{key} of {own['class']}"
                yield Changed(what=what, saved=repr(then[key]), now=repr(now), counts="checkpoint")

    def _compared(
        self, saved: Sequence[tuple[set[str], Mapping[str, Any]]], counts: Literal["checkpoint", "job"]
    ) -> Iterator[Changed]:
        """Options of groups that differ from those that the job has made; groups are known by their parameters."""
        for options, names in self._made.groups:
            number = _number_of(names, saved)
            then = {} if number is None else saved[number][1]
            for key, now in options.items():
                # A schedule moves the rate, and keeps what the job gave.
                moved = key == "lr" and "initial_lr" in then and "initial_lr" in options
                if key in then and key not in _IMPLEMENTATION and not moved and repr(then[key]) != repr(now):
                    what = key if len(saved) == 1 else f"{key} of group {number}"
                    yield Changed(what=what, saved=repr(then[key]), now=repr(now), counts=counts)

    def must_learn(self, plain: Mapping[str, Any]) -> bool:
        """Whether a training must take a step before this state is put back, to go on bit for bit.

        DDP finds the order of its buckets in its first step, and with more than two replicas the order in which
        gradients are summed depends on the buckets.

        Args:
            plain: of the state
        """
        if not self._is_same_plan(plain) or self._strategy.dp < 3 or not plain["plan"].get("learned"):
            return False
        return any(getattr(stage, "learned", True) is False for stage in self._part.stages.values())

    def _is_same_plan(self, plain: Mapping[str, Any]) -> bool:
        return bool(plain["plan"]["digest"] == _digest(self._strategy) and plain["plan"]["ranks"] == self._world.size)

    def _check_job(self, plain: Mapping[str, Any], source: str) -> None:
        own, theirs = self._about()["job"], plain["job"]
        for key, what in _COMPARED.items():
            if own[key] != theirs[key]:
                raise InputError(
                    f"{source} was saved with {what} {theirs[key]}, and this job has {own[key]}: a training goes on "
                    "with the same model, data, global batch, seed and optimizer. Take the job as it was, or begin "
                    "anew, and load the weights alone where they fit (session.load)",
                    code="checkpoint.other-job",
                    what=what,
                    saved=theirs[key],
                    now=own[key],
                )
        schedule, saved = self._updater.schedule, plain["schedule"]
        now = type(schedule).__name__ if schedule is not None else None
        then = None if saved is None else saved.get("class")
        # A rank that updates nothing has none.
        if now != then and (now is not None or self._job.lr_schedule is None):
            raise InputError(
                f"{source} was saved with {then or 'no schedule'}, and this job has {now or 'none'}: a training goes "
                "on with the same Job.lr_schedule",
                code="checkpoint.other-schedule",
                saved=then,
                now=now,
            )

    def _differences(self, plain: Mapping[str, Any]) -> Iterator[Changed]:
        """What is not as it was and fits all the same: it may have been changed on purpose."""
        job, on, own = plain["job"], plain.get("on", {}), self._about()
        modules = _changed_modules(job.get("modules"), self._modules)
        # The graph follows from the modules.
        graphs = (job.get("graph") or None, self.graph or None) if modules == (None, None) else (None, None)
        pairs = {
            "name of the job": (job.get("name"), self._job.name),
            "modules of the model": modules,
            "graph of the model, its loss and its data": graphs,
            "torch": (on.get("torch"), own["on"]["torch"]),
            "device": (on.get("device"), own["on"]["device"]),
        }
        for what, (saved, now) in pairs.items():
            if saved != now and None not in (saved, now):
                yield Changed(what=what, saved=str(saved), now=str(now), counts="job")

    def _flipped(self, plain: Mapping[str, Any]) -> dict[str, nn.Parameter]:
        """Parameters that required gradients when the state was taken and do not now, and the other way round."""
        model, trained = self._gatherer.model, plain.get("trained")
        if trained is None:  # of an older Trimaran
            return {}
        names = frozenset(map(str, trained))
        return {name: one for name, one in model.named_parameters() if (name in names) != one.requires_grad}

    def _check_trained(self, plain: Mapping[str, Any], source: str, check_refit: Callable[[str], None]) -> None:
        flipped = self._flipped(plain)
        if not flipped:
            return
        check_refit(f"{source} was saved with another requires_grad of {format_some([*flipped])}")
        placed = set(map(id, self._part.parameters))
        unplaced = [name for name, one in flipped.items() if not one.requires_grad and id(one) not in placed]
        if unplaced:
            raise InputError(
                f"{source} was saved while {format_some(unplaced)} required gradients, and this job freezes them in "
                "Job.model and has no Job.on_step or Job.on_epoch that could free them: take the job as it was",
                code="checkpoint.other-trained",
            )

    def _train(self, flipped: Mapping[str, nn.Parameter]) -> None:
        """Train the parameters that were trained when the state was taken."""
        for parameter in flipped.values():
            parameter.requires_grad_(not parameter.requires_grad)
            parameter.grad = None
        if flipped and self._part.refit is not None:
            self._part.refit()

    def _check_model(self, table: Mapping[What, Entry], source: str) -> None:
        whole = self._gatherer.shapes
        stored = {what[:2]: entry for what, entry in table.items() if what[0] in _WEIGHTS}
        missing = sorted(name for _, name in whole.keys() - stored.keys())
        unexpected = sorted(name for _, name in stored.keys() - whole.keys())
        others = [
            f"{entry.what[1]} ({entry.dtype} {entry.shape} there, {whole[what][1]} {whole[what][0]} here)"
            for what, entry in stored.items()
            if what in whole and (entry.shape, entry.dtype) != whole[what]
        ]
        wrong = [f"it lacks {format_some(missing)}"] if missing else []
        wrong += [f"it has {format_some(unexpected)}, which the model has not"] if unexpected else []
        wrong += [f"others are {format_some(others)}"] if others else []
        if wrong:
            renamed = any("parametrizations." in one or one.endswith("_orig") for one in unexpected)
            raise InputError(
                f"{source} is of another model: {'; '.join(wrong)}. Take the job that was trained, "
                + ("and parametrize or prune in Job.model, or before the checkpoint is loaded, " if renamed else "")
                + "or load the weights alone where they fit (session.load)",
                code="checkpoint.other-model",
            )

    def _own_groups(self, plain: Mapping[str, Any], source: str) -> "list[_Group | None]":
        """For each group of this rank's optimizer what was saved of it."""
        updated = {name for one in plain["groups"] for name in one["names"]}
        # A parameter that nothing reads is updated by no stage; in one process it has a group all the same.
        whole = [{*names} for names in (plain.get("order") or {"groups": ()})["groups"]]
        idle = [(names & updated, names - updated) for names in whole]
        groups = [
            _Group(
                number,
                one["place"],
                frozenset(one["names"]).union(*(more for names, more in idle if names & {*one["names"]})),
                decode(one["options"], source),
                one["options"],
            )
            for number, one in enumerate(plain["groups"])
        ]
        found: list[_Group | None] = []
        for place, (_, names) in enumerate(self._gatherer.options(self._part, self._updater)):
            own = [one for one in groups if not one.names.isdisjoint(names)]
            covered = frozenset[str]().union(*(one.names for one in own))
            if any(one.plain != own[0].plain for one in own) or (names and not covered.issuperset(names)):
                raise InputError(
                    f"group {place} of this job's optimizer has parameters that were in {len(own) or 'no'} groups with "
                    f"other options when {source} was saved: let Job.optimizer make the same groups",
                    code="checkpoint.other-groups",
                    group=place,
                )
            found.append(own[0] if own else next((one for one in groups if one.place == place), None))
        return found

    def _own_states(
        self, held: Sequence[Held], table: Mapping[What, Entry], plain: Mapping[str, Any], source: str
    ) -> "dict[int, _State]":
        """What this rank's optimizer is to keep, by the id of the tensor that it has for a parameter."""
        optimizer = self._updater.optimizer
        if optimizer is None:
            return {}
        updated = {id(one): one for group in optimizer.param_groups for one in group["params"]}
        keys: dict[str, list[Entry]] = {}
        for (kind, name, _), entry in table.items():
            if kind == "optimizer":
                keys.setdefault(name, []).append(entry)
        values = plain["optimizer"]["values"]
        found = {}
        for one in held:
            if one.parameter is None or one.tensor is None:
                continue
            known = self._updater.known_as(one.parameter)
            if id(known) not in updated:
                continue
            state = _State(values={key: decode(value, source) for key, value in values.get(one.name, {}).items()})
            if one.sharing is not None:
                for key, value in state.values.items():
                    _check_no_shares_in(value, f'"{key}" that {self._updater.name} keeps of {one.name}')
            for entry in keys.get(one.name, ()):
                self._want_state(state, entry, one, known)
            found[id(known)] = state
        return found

    def _want_state(self, state: "_State", entry: Entry, held: Held, known: torch.Tensor) -> None:
        """Make room for a tensor of the state of a parameter, laid out like the parameter."""
        dtype = dtype_of(entry.dtype)
        area, shape = WHOLE, entry.shape
        tensor = held.tensor
        if tensor is None:
            return
        if held.sharing is not None and shape:
            if tuple(held.sharing.shape) != shape:
                raise _not_like_share(
                    f'"{entry.what[2]}" that {self._updater.name} keeps of {held.name}',
                    shape,
                    tuple(held.sharing.shape),
                )
            area, shape = _area(held.sharing), tuple(tensor.shape)
        target = torch.empty(shape, dtype=dtype, device=tensor.device if shape else "cpu")
        state.wants.append(Want(entry.what, target, area))
        state.values[entry.what[2]] = (
            _spread(target, known) if area is not WHOLE and known is held.parameter else target
        )

    def _own_residuals(
        self, held: Sequence[Held], table: Mapping[What, Entry], plain: Mapping[str, Any]
    ) -> tuple[list[tuple[Held, Want]], tuple[str, ...]]:
        """What compression had lost, of which this rank takes its share."""
        lost = [what for what in table if what[0] == "residual"]
        if not lost:
            return [], ()
        if self._codec is None:
            note = "what compression had lost of gradients is dropped: this plan does not compress them"
            return [], (note,)
        as_many = plain["plan"]["replicas"] == self._strategy.dp
        keys = {key: key.partition(" ")[0] for key in sorted({key for _, _, key in lost})}
        mine = [key for key, of in keys.items() if (of == str(self._replica) if as_many else self._replica == 0)]
        found: list[tuple[Held, Want]] = []
        same, same_plan = plain["plan"]["compression"] == self._compression, self._is_same_plan(plain)
        for one in held:
            if one.parameter is None or one.tensor is None:
                continue
            copy = self._copy_name(one.parameter)
            # Gradients of all copies are added up, so that the first may owe what the others did.
            owed = [f"{self._replica}{copy}"] if same_plan else [] if copy else mine
            whats: list[What] = [("residual", one.name, key) for key in owed]
            if same:
                whats += [("compression", one.name, f"{key}{_own_name(one.sharing)}{copy}") for key in ("q", "drawn")]
            for what in whats:
                if what not in table:
                    continue
                residual = what[0] == "residual"
                shape, area = (tuple(one.tensor.shape), _area(one.sharing)) if residual else (table[what].shape, WHOLE)
                dtype = dtype_of(table[what].dtype)
                found.append((one, Want(what, torch.empty(shape, dtype=dtype, device=one.tensor.device), area)))
        notes = (
            ()
            if as_many
            else (
                f"what compression had lost of gradients on {len({*keys.values()})} replicas: the first one has the "
                "sum now",
            )
        )
        return found, notes

    @property
    def _compression(self) -> str | None:
        return None if self._strategy.compression is None else self._strategy.compression.name

    def _load_optimizer(
        self, states: "Mapping[int, _State]", groups: "Sequence[_Group | None]", plain: Mapping[str, Any], source: str
    ) -> None:
        optimizer = self._updater.optimizer
        self._updater.updates = int(plain["optimizer"]["updates"])
        if optimizer is None:
            return
        _load(
            optimizer,
            [None if one is None else one.options for one in groups],
            {known: state.values for known, state in states.items()},
            decode(plain["optimizer"]["extra"], source),
        )
        schedule = self._updater.schedule
        if schedule is not None and plain["schedule"] is not None:
            own_groups = [None if one is None else one.number for one in groups]
            fresh = encode(dict(schedule.state_dict()), "a schedule")
            own_state = _of_groups(plain["schedule"]["state"], own_groups, fresh, source)
            schedule.load_state_dict(decode(own_state, source))

    def _load_compression(self, lost: Sequence[tuple[Held, Want]], plain: Mapping[str, Any], source: str) -> None:
        if self._codec is None:
            return
        residuals: dict[int, torch.Tensor] = {}
        kept: dict[int, dict[str, torch.Tensor]] = {}
        for one, (what, target, _) in lost:
            key = id(one.parameter)
            if what[0] == "residual":
                before = residuals.get(key)
                flat = target.reshape(-1)
                residuals[key] = flat if before is None else before + flat
            else:
                kept.setdefault(key, {})["q" if what[2].startswith("q") else "drawn"] = target
        same = plain["plan"]["compression"] == self._compression
        figures = decode(plain["compression"], source) if same and plain["compression"] else {}
        self._codec.load(residuals, kept, figures)

    def _restore_random(self, text: torch.Tensor | None, source: str) -> Literal["", "seed", "drop"]:
        try:
            if text is None:
                raise ValueError("there are none")
            plain = decode_object(text.numpy().tobytes(), source=f"random/rank{self._world.rank}")
            states = decode(plain, source)
            here, moved = RandomState(states["host"], states["device"]).on(self._world.device)
            here.restore(self._world.device)
        except (TrimaranError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise CorruptDataError(
                f"{source}: the states of the random generators of rank {self._world.rank} are damaged ({error}): take "
                "another checkpoint",
                code="checkpoint.damaged-random-states",
                source=source,
            ) from error
        return moved


_GENERATORS: Mapping[str, tuple[str, ...]] = {
    "": (),
    "seed": ("the generator of the GPU was seeded by the job's seed and the step: the checkpoint is of CPUs",),
    "drop": ("the state of the GPU's generator is left out: here is none, and what is drawn comes from the host's",),
}
"""What is said of the generator of a GPU; see `RandomState.on`."""


class _Kept:
    """The state of an optimizer in a file as a source of pieces."""

    def __init__(self, content: OptimizerContent, members: Mapping[str, Member], name: str) -> None:
        self.name, self._content, self._members = name, content, members

    def form(self, rank: int, piece: str) -> tuple[tuple[int, ...], torch.dtype]:
        owner, key = self._of(piece)
        found: Form = self._content.states[owner][key]
        return found.shape, found.dtype

    def read(self, rank: int, piece: str, region: Region) -> torch.Tensor:
        return self._content.read(*self._of(piece))[region]

    def _of(self, piece: str) -> tuple[Member, str]:
        _, name, key = piece.split("/", 2)
        return self._members[name], key


class _Prepared(NamedTuple):
    """What one rank needs to go on: states and groups of its optimizer, residuals, all wants; and what is otherwise."""

    states: "dict[int, _State]"
    options: "list[_Group | None]"
    lost: list[tuple[Held, Want]]
    changed: tuple[Changed, ...]
    notes: tuple[str, ...]
    wants: list[Want]


@dataclass(slots=True)
class _State:
    """What an optimizer is to keep of a parameter: `values` by key, of which those of `wants` are to be filled."""

    values: dict[str, Any] = field(default_factory=dict)
    wants: list[Want] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Group:
    """A group of the optimizer as it was saved."""

    number: int
    place: int
    names: frozenset[str]
    options: dict[str, Any]
    plain: Any


_COMPARED = {
    "precision": "precision",
    "global_batch_size": "a global batch of",
    "seed": "seed",
    "drop_last": "drop_last",
    "clip_norm": "clip_norm",
    "optimizer": "optimizer",
}


def check_form(plain: Any, source: str) -> None:
    """Refuse what is not the plain part of a state.

    Args:
        plain: JSON that was read
        source: where

    Raises:
        CorruptDataError: of another version or form
    """
    if not isinstance(plain, dict) or plain.get("version") != VERSION:
        found = plain.get("version") if isinstance(plain, dict) else None
        raise CorruptDataError(
            f"{source} is a checkpoint of version {found!r}, and this Trimaran reads version {VERSION}: read it with "
            "the Trimaran that wrote it",
            code="checkpoint.other-version",
            source=source,
        )
    forms = {"steps": int, "job": dict, "plan": dict, "groups": list, "optimizer": dict, "figures": dict}
    wrong = [name for name, kind in forms.items() if not isinstance(plain.get(name), kind)]
    wrong += [name for name in ("schedule", "scaler", "compression") if name not in plain]
    wrong += [] if isinstance(plain.get("trained", []), list) else ["trained"]
    if not wrong:
        wrong += [f"job.{key}" for key in _COMPARED if key not in plain["job"]]
        wrong += [
            f"plan.{key}" for key in ("name", "digest", "ranks", "replicas", "compression") if key not in plain["plan"]
        ]
        wrong += [f"optimizer.{key}" for key in ("values", "extra", "updates") if key not in plain["optimizer"]]
    if wrong:
        raise CorruptDataError(
            f"{source} lacks {', '.join(wrong)}, or has something else there: it was damaged or edited, take another "
            "checkpoint",
            code="checkpoint.damaged-state",
            source=source,
        )


def _config(model: nn.Module) -> str | None:
    """The configuration of a model of Hugging Face, as the text of its config.json; None: it has none.

    It is for whoever exports weights: what cannot be written is left out.
    """
    to_dict = getattr(getattr(model, "config", None), "to_dict", None)
    if not callable(to_dict):
        return None
    try:
        plain = dict(to_dict())
        # As `save_pretrained` does.
        plain["architectures"] = plain.get("architectures") or [class_name(model)]
        text = json.dumps(plain, indent=2, allow_nan=False)
    except Exception:  # noqa: BLE001 it may be any object of the user's
        return None
    return text if len(text) <= _LARGEST_CONFIG else None


_LARGEST_CONFIG = 2**20
"""Of a configuration [characters]."""


def _digest(strategy: Strategy) -> str:
    """Of all that numbers depend on: not of how batches are loaded."""
    text = json.dumps(to_plain(replace(strategy, feeding=IN_LINE)), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


_MOST_MODULES = 2000


def describe_modules(model: nn.Module) -> dict[str, Any]:
    """The modules of a model as plain JSON: a digest of names, classes and settings, and if there are few, each.

    Args:
        model: the user's, as it was made
    """
    modules = {}
    for name, module in model.named_modules():
        try:
            settings = re.sub(r" at 0x[0-9a-f]+", "", str(module.extra_repr()))
        except Exception:  # noqa: BLE001 it is the user's, and for people
            settings = ""
        modules[name] = f"{type(module).__name__}({settings})"[:200]
    text = json.dumps(modules, sort_keys=True).encode()
    return {
        "digest": hashlib.blake2b(text, digest_size=8).hexdigest(),
        "each": modules if len(modules) <= _MOST_MODULES else {},
    }


def _changed_modules(saved: Any, now: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The modules of a model that differ, for people, as they were saved and as they are; None: none do."""
    if not isinstance(saved, dict) or saved.get("digest") in (None, now["digest"]):
        return None, None
    before, after = saved.get("each"), now["each"]
    if not isinstance(before, dict) or not before or not after:
        return f"digest {saved['digest']}", f"digest {now['digest']}"
    names = [name for name in dict.fromkeys((*before, *after)) if before.get(name) != after.get(name)]
    then, here = (
        format_some([f"{name or 'the whole'} is {of.get(name, 'not there')}" for name in names])
        for of in (before, after)
    )
    return then, here


def _area(sharing: Sharing | None) -> Area:
    return WHOLE if sharing is None else Area(sharing.dim, sharing.spans)


def _own_name(sharing: Sharing | None) -> str:
    return "" if sharing is None else f" of {sharing.spans}"


def _like(parameters: Trained) -> Trained:
    """Parameters of the shapes that they have as a whole, without memory."""
    return Trained(
        (name, marked(nn.Parameter(torch.zeros((), dtype=one.dtype, device=one.device).expand(one.shape)), one))
        for name, one in parameters.named_parameters()
    )


def _load(
    optimizer: Any,
    options: Sequence[Mapping[str, Any] | None],
    states: Mapping[int, Mapping[str, Any]],
    extra: Mapping[str, Any],
) -> None:
    """Put options and state into an optimizer, by its own `load_state_dict`.

    Args:
        optimizer: any of torch
        options: of each of its groups; None: its own stay
        states: of its parameters, by their identity
        extra: what it keeps besides, by name
    """
    packed = optimizer.state_dict()
    numbers: dict[int, tuple[int, torch.Tensor]] = {}
    for group, own, saved in zip(optimizer.param_groups, packed["param_groups"], options, strict=True):
        for parameter, number in zip(group["params"], own["params"], strict=True):
            numbers[id(parameter)] = number, parameter
        own.update({key: one for key, one in (saved or {}).items() if key not in _IMPLEMENTATION})
    packed["state"] = dict(extra) | {numbers[known][0]: dict(state) for known, state in states.items() if state}
    optimizer.load_state_dict(packed)
    for known, state in states.items():
        # torch gives state the dtype of its parameter, which not all of it has.
        kept = optimizer.state[numbers[known][1]] if state else {}
        for key, value in state.items():
            now = kept.get(key)
            if isinstance(value, torch.Tensor) and isinstance(now, torch.Tensor) and now.dtype != value.dtype:
                kept[key] = value


def _spread(local: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A share as torch has it in the state of a parameter that is spread over ranks."""
    if not hasattr(like, "to_local"):
        return local
    # Not at the top: it takes long to import, and whoever gets here has it.
    from torch.distributed.tensor import DTensor

    if not isinstance(like, DTensor):
        return local
    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def _options_of_all(said: Sequence["_Options"]) -> dict[str, Any]:
    """Options of all ranks together, as plain JSON."""
    groups = merge_groups([one.groups for one in said])
    schedule: dict[str, Any] | None = None
    for own, state in said:
        if state is not None:
            places = [
                next(n for n, one in enumerate(groups) if one.place == place and same_options(one.options, given))
                for place, (given, _) in enumerate(own)
            ]
            schedule = _merged(schedule, _by_group(state, places), "the state of the schedule")
    plain = [
        {"place": one.place, "names": [*one.names], "options": encode(dict(one.options), "options of a group")}
        for one in groups
    ]
    return {"groups": plain, "schedule": schedule}


def _number_of(names: Sequence[str], groups: Sequence[tuple[set[str], Any]]) -> int | None:
    """Which of some groups has one of these parameters; None: none has."""
    return next((number for number, (own, _) in enumerate(groups) if not own.isdisjoint(names)), None)


def _leaves(state: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values in a state of a schedule, and of those that it holds, by their names."""
    of_states = isinstance(state, list) and any(type(one) is dict for one in state)
    parts = state.items() if type(state) is dict else enumerate(state) if of_states else None
    if parts is None:
        yield path, state
        return
    for key, one in parts:
        if key not in _REPEATED:
            yield from _leaves(one, f"{path}.{key}" if path else str(key))


def _not_like_share(what: str, shape: Sequence[int], of: Sequence[int]) -> InputError:
    return InputError(
        f"{what} has shape {tuple(shape)}, the parameter {tuple(of)}, and this plan gives ranks shares of parameters: "
        "it cannot be shared out alike. Take a plan that leaves parameters whole (zero=0 or 1, tp=1)",
        code="checkpoint.state-not-like-parameter",
        shape=tuple(shape),
        parameter=tuple(of),
    )


def _check_no_shares_in(value: Any, what: str) -> None:
    """Refuse tensors in a list or a dict of the state of a parameter of which ranks have shares."""
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, Iterable) else ()
    for one in values if not isinstance(value, str | bytes | torch.Tensor) else ():
        if isinstance(one, torch.Tensor) and one.dim():
            raise InputError(
                f"{what} holds tensors in a {type(value).__name__}, and this plan gives ranks shares of parameters: "
                "only tensors that the state of a parameter has by name are shared out. Keep each under a key of its "
                "own, or take a plan that leaves parameters whole (zero=0 or 1, tp=1)",
                code="checkpoint.tensors-in-containers",
                container=type(value).__name__,
            )
        _check_no_shares_in(one, what)


# ---------------------------------------------------------------------------------------------------------------------
# States of schedules: lists with a value for each group of the optimizer, of which a rank may have some


def _by_group(state: Any, places: Sequence[int]) -> Any:
    """A state with the lists of groups by their numbers among all groups."""

    def numbered(values: list[Any]) -> Any:
        return {_BY_GROUP: {str(place): one for place, one in zip(places, values, strict=True)}}

    return _mapped(state, len(places), numbered)


def _mapped(state: Any, groups: int, change: Callable[[list[Any]], Any]) -> Any:
    if isinstance(state, list):
        return [_mapped(one, groups, change) for one in state]
    if not isinstance(state, dict):
        return state
    return {
        key: change(value) if key in _PER_GROUP and isinstance(value, list) and len(value) == groups
        else _mapped(value, groups, change)
        for key, value in state.items()
    }  # fmt: skip


def _merged(one: Any, other: Any, what: str) -> Any:
    """States of two ranks as one.

    Raises:
        InputError: they differ
    """
    if one is None:
        return other
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys() and _BY_GROUP not in one:
        return {key: _merged(one[key], other[key], what) for key in one}
    if isinstance(one, dict) and isinstance(other, dict) and _BY_GROUP in one and _BY_GROUP in other:
        groups = dict(one[_BY_GROUP])
        for place, value in other[_BY_GROUP].items():
            if groups.setdefault(place, value) != value:
                raise _unlike_schedules(what)
        return {_BY_GROUP: groups}
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [_merged(*pair, what) for pair in zip(one, other, strict=True)]
    if one != other:
        raise _unlike_schedules(what)
    return one


def _unlike_schedules(what: str) -> InputError:
    return InputError(
        f"{what} is not the same on ranks that update other parameters, so one process has no such state: let "
        "Job.lr_schedule make a schedule that depends on the step alone, or train without saving",
        code="checkpoint.unlike-schedules",
    )


def _of_groups(state: Any, groups: Sequence[int | None], fresh: Any, source: str) -> Any:
    """A state of a schedule with lists for the groups of this rank; what was not saved is as it is now."""
    if isinstance(state, list):
        others = fresh if isinstance(fresh, list) and len(fresh) == len(state) else [None] * len(state)
        return [_of_groups(one, groups, other, source) for one, other in zip(state, others, strict=True)]
    if not isinstance(state, dict):
        return state
    if _BY_GROUP not in state:
        here = fresh if isinstance(fresh, dict) else {}
        return {key: _of_groups(one, groups, here.get(key), source) for key, one in state.items()}
    found, own = [], fresh if isinstance(fresh, list) and len(fresh) == len(groups) else [None] * len(groups)
    for number, now in zip(groups, own, strict=True):
        found.append(state[_BY_GROUP].get(str(number), now))
    return found
