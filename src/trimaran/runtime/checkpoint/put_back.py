"""A state put back: what this rank needs of it, compared with the job, read from pieces, perhaps of another plan."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from trimaran.base.decoding import decode_object
from trimaran.base.errors import CorruptDataError, InputError, TrimaranError
from trimaran.base.units import format_some
from trimaran.checkpoint_files.pieces import (
    WHOLE,
    Entry,
    Want,
    What,
)
from trimaran.checkpoint_files.plain import decode, dtype_named, encode
from trimaran.graph.trace.storages import dtype_of
from trimaran.runtime.checkpoint import job_state
from trimaran.runtime.checkpoint.recovered import Changed
from trimaran.runtime.checkpoint.take import (
    BY_GROUP,
    VERSION,
    Taking,
    check_no_shares_in,
    digest_of,
    name_of_share,
    not_like_share,
)
from trimaran.runtime.communication.channels import raise_first
from trimaran.runtime.whole_state import Held, Kind, area_of
from trimaran.user_code.randomness import RandomState, derive_seed, seed_generators

_WEIGHTS: tuple[Kind, ...] = ("parameter", "buffer")
_REPEATED = frozenset(("base_lrs", "_last_lr"))
"""Of states of schedules: what the options of the groups say too."""
# How an optimizer computes: its own on each device.
_IMPLEMENTATION = frozenset(("foreach", "fused", "capturable"))
Fill = Callable[[Sequence[Want], Mapping[What, Entry]], None]
"""Fills tensors from the pieces of a state, such as `fill_from`; every rank calls it, once, with what it wants."""


class PuttingBack(Taking):
    """A training that goes on from a state."""

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
                prepared.wants.append(Want(one.what, one.tensor, area_of(one.sharing)))
        prepared.wants.extend(want for state in prepared.states.values() for want in state.wants)
        prepared.wants.extend(want for _, want in prepared.lost)
        return prepared

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
        return bool(plain["plan"]["digest"] == digest_of(self._strategy) and plain["plan"]["ranks"] == self._world.size)

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

    def _own_groups(self, plain: Mapping[str, Any], source: str) -> "list[_SavedGroup | None]":
        """For each group of this rank's optimizer what was saved of it."""
        updated = {name for one in plain["groups"] for name in one["names"]}
        # A parameter that nothing reads is updated by no stage; in one process it has a group all the same.
        whole = [{*names} for names in (plain.get("order") or {"groups": ()})["groups"]]
        idle = [(names & updated, names - updated) for names in whole]
        groups = [
            _SavedGroup(
                number,
                one["place"],
                frozenset(one["names"]).union(*(more for names, more in idle if names & {*one["names"]})),
                decode(one["options"], source),
                one["options"],
            )
            for number, one in enumerate(plain["groups"])
        ]
        found: list[_SavedGroup | None] = []
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
                    check_no_shares_in(value, f'"{key}" that {self._updater.name} keeps of {one.name}')
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
                raise not_like_share(
                    f'"{entry.what[2]}" that {self._updater.name} keeps of {held.name}',
                    shape,
                    tuple(held.sharing.shape),
                )
            area, shape = area_of(held.sharing), tuple(tensor.shape)
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
                whats += [
                    ("compression", one.name, f"{key}{name_of_share(one.sharing)}{copy}") for key in ("q", "drawn")
                ]
            for what in whats:
                if what not in table:
                    continue
                residual = what[0] == "residual"
                shape, area = (
                    (tuple(one.tensor.shape), area_of(one.sharing)) if residual else (table[what].shape, WHOLE)
                )
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
        self,
        states: "Mapping[int, _State]",
        groups: "Sequence[_SavedGroup | None]",
        plain: Mapping[str, Any],
        source: str,
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


class _Prepared(NamedTuple):
    """What one rank needs to go on: states and groups of its optimizer, residuals, all wants; and what is otherwise."""

    states: "dict[int, _State]"
    options: "list[_SavedGroup | None]"
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
class _SavedGroup:
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


def _of_groups(state: Any, groups: Sequence[int | None], fresh: Any, source: str) -> Any:
    """A state of a schedule with lists for the groups of this rank; what was not saved is as it is now."""
    if isinstance(state, list):
        others = fresh if isinstance(fresh, list) and len(fresh) == len(state) else [None] * len(state)
        return [_of_groups(one, groups, other, source) for one, other in zip(state, others, strict=True)]
    if not isinstance(state, dict):
        return state
    if BY_GROUP not in state:
        here = fresh if isinstance(fresh, dict) else {}
        return {key: _of_groups(one, groups, here.get(key), source) for key, one in state.items()}
    found, own = [], fresh if isinstance(fresh, list) and len(fresh) == len(groups) else [None] * len(groups)
    for number, now in zip(groups, own, strict=True):
        found.append(state[BY_GROUP].get(str(number), now))
    return found
