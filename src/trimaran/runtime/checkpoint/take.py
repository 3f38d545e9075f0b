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
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from trimaran.base.errors import InputError
from trimaran.base.units import format_some
from trimaran.checkpoint_files.container import check_writable
from trimaran.checkpoint_files.pieces import (
    Piece,
    What,
    Writers,
    name_in_file,
    share_out,
)
from trimaran.checkpoint_files.plain import dtype_named, encode
from trimaran.graph.optimizers import Trained, marked, parameter_groups, trained_parameters
from trimaran.program.json_files import to_plain
from trimaran.program.strategy import IN_LINE, Strategy
from trimaran.runtime.checkpoint import job_state
from trimaran.runtime.communication.compression import GradientCodec
from trimaran.runtime.parts.part import Making, RankPart, Sharing
from trimaran.runtime.precision import LossScaler
from trimaran.runtime.step.updates import Updater
from trimaran.runtime.whole_state import Held, Kind, StateGatherer, gather_pieces, merge_groups, same_options
from trimaran.user_code.model import class_name
from trimaran.user_code.randomness import RandomState, preserved_randomness

VERSION = 1
"""Of the plain part of a state."""
_KINDS: tuple[Kind, ...] = ("parameter", "buffer", "optimizer")
# Of states of schedules: lists with a value for each group of the optimizer.
_PER_GROUP = frozenset(
    ("base_lrs", "_last_lr", "min_lrs", "max_lrs", "lr_lambdas", "base_momentums", "max_momentums", "total_iters")
)
_COPYING = 4
"""Threads that copy a state in host memory: one alone does not take all of the memory's bandwidth."""
BY_GROUP = "by group"
"""Of states of schedules: in place of a list, values by the numbers of their groups among those of all ranks."""


@dataclass(slots=True, kw_only=True)
class TakenState:
    """The state of a moment.

    Attributes:
        writers: which rank has which pieces; the same on every rank
        tensors: those that this rank writes, by their names in its file; copies change when the next state is taken
        plain: on rank 0 everything that is no tensor, as plain JSON
    """

    writers: Writers
    tensors: dict[str, torch.Tensor]
    plain: dict[str, Any] = field(default_factory=dict)


class _RankState(NamedTuple):
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


class Taking:
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
        part: RankPart,
        *,
        updater: Updater,
        scaler: LossScaler | None,
        codec: GradientCodec | None,
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
                        check_no_shares_in(value, what)
                elif value.dim() and value.shape != shape and shared:
                    raise not_like_share(what, tuple(value.shape), shape)
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

    def take(self, steps: int, figures: Mapping[str, Any], *, copy: bool = True) -> TakenState:
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
            said = _RankState(self._options(), self._made, self._extra(), values, state)
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
        return TakenState(writers=writers, tensors=tensors, plain=plain)

    def gather(self, taken: TakenState) -> dict[str, torch.Tensor]:
        """Tensors of a state, whole, in host memory: on rank 0; every rank calls it.

        Args:
            taken: at this moment, by all ranks
        """
        entries, names = taken.writers.entries, {name_in_file(one.what): one.what for one in taken.writers.entries}
        own = {names[name]: tensor for name, tensor in taken.tensors.items()}
        gathered = gather_pieces(entries, own, self._world.rank, self._agreement)
        return {name_in_file(entry.what): whole for entry, whole in gathered}

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

        def add(one: Held, tensor: torch.Tensor) -> None:
            found[one.what] = _Here(piece=one.piece(tensor), tensor=tensor)

        for one in self._gatherer.held(self._part, self._updater, self._world, _KINDS):
            tensor = one.value if one.tensor is None else one.tensor
            if isinstance(tensor, torch.Tensor):
                add(one, tensor)
            else:
                value = encode(one.value, f'"{one.key}" that {self._updater.name} keeps of {one.name}')
                values.setdefault(one.name, {})[one.key] = value
            if one.parameter is not None and one.tensor is not None:
                self._add_compressed(one, add)
        add(Held(kind="random", name=f"rank{self._world.rank}"), self._random())
        tensors, state = job_state.take(self._job.state)
        for (_, name, key), tensor in tensors.items():
            add(Held(kind=job_state.KIND, name=name, key=key), tensor)
        return found, values, state

    def _add_compressed(self, held: Held, add: Callable[..., None]) -> None:
        if self._codec is None or held.parameter is None or held.tensor is None:
            return
        lost = self._codec.lost(held.parameter)
        copy = self._copy_name(held.parameter)
        if lost is not None:
            of = Held(kind="residual", name=held.name, key=f"{self._replica}{copy}", sharing=held.sharing)
            add(of, lost.view(held.tensor.shape))
        for key, tensor in self._codec.kept(held.parameter).items():
            # Shares of a parameter have their own.
            share = f"{key}{name_of_share(held.sharing)}{copy}"
            add(Held(kind="compression", name=held.name, key=share), tensor)

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

    def _plain(self, said: "_RankState") -> dict[str, Any]:
        """On rank 0 what is no tensor, of all ranks together."""
        heard = self._agreement.gather_objects(said, "gathering the state")
        with self._agreement.alike("gathering the state"):
            return {} if self._world.rank else self._of_all(heard)

    def _of_all(self, heard: "Sequence[_RankState]") -> dict[str, Any]:
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
                "digest": digest_of(strategy),
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
                    found, named = parameter_groups(self._job, without_memory(trained_parameters(model)))
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


def digest_of(strategy: Strategy) -> str:
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


def name_of_share(sharing: Sharing | None) -> str:
    """In the name of what each share has for itself."""
    return "" if sharing is None else f" of {sharing.spans}"


def without_memory(parameters: Trained) -> Trained:
    """Parameters of the shapes that they have as a whole, without memory."""
    return Trained(
        (name, marked(nn.Parameter(torch.zeros((), dtype=one.dtype, device=one.device).expand(one.shape)), one))
        for name, one in parameters.named_parameters()
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


def not_like_share(what: str, shape: Sequence[int], of: Sequence[int]) -> InputError:
    """The refusal of state that cannot be shared out as its parameter is."""
    return InputError(
        f"{what} has shape {tuple(shape)}, the parameter {tuple(of)}, and this plan gives ranks shares of parameters: "
        "it cannot be shared out alike. Take a plan that leaves parameters whole (zero=0 or 1, tp=1)",
        code="checkpoint.state-not-like-parameter",
        shape=tuple(shape),
        parameter=tuple(of),
    )


def check_no_shares_in(value: Any, what: str) -> None:
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
        check_no_shares_in(one, what)


# ---------------------------------------------------------------------------------------------------------------------
# States of schedules: lists with a value for each group of the optimizer, of which a rank may have some


def _by_group(state: Any, places: Sequence[int]) -> Any:
    """A state with the lists of groups by their numbers among all groups."""

    def numbered(values: list[Any]) -> Any:
        return {BY_GROUP: {str(place): one for place, one in zip(places, values, strict=True)}}

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
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys() and BY_GROUP not in one:
        return {key: _merged(one[key], other[key], what) for key in one}
    if isinstance(one, dict) and isinstance(other, dict) and BY_GROUP in one and BY_GROUP in other:
        groups = dict(one[BY_GROUP])
        for place, value in other[BY_GROUP].items():
            if groups.setdefault(place, value) != value:
                raise _unlike_schedules(what)
        return {BY_GROUP: groups}
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
