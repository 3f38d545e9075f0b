"""The state of an optimizer that was saved elsewhere, taken over by names, or by numbers in one process's order."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from trimaran.base.errors import InputError
from trimaran.base.precision import dtype_name
from trimaran.base.units import format_some
from trimaran.checkpoint_files.content import Form, Member, OptimizerContent
from trimaran.checkpoint_files.pieces import (
    WHOLE,
    Entry,
    Region,
    What,
    fill_from,
)
from trimaran.checkpoint_files.plain import encode
from trimaran.graph.optimizers import parameter_groups, trained_parameters
from trimaran.graph.trace.storages import dtype_of
from trimaran.runtime.checkpoint.put_back import PuttingBack
from trimaran.runtime.checkpoint.recovered import Changed
from trimaran.runtime.checkpoint.take import without_memory


class TrainingState(PuttingBack):
    """The state of a training on one rank, taken, put back, and of its optimizer adopted from elsewhere."""

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
            reading = _OptimizerSource(content, {name: member for member, name in names.items()}, source)
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
            own, _ = parameter_groups(self._job, without_memory(trained))
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


class _OptimizerSource:
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
