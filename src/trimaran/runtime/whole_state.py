"""The state of a training as one process would have it: whole tensors by the names of the user's model, on one rank.

    each rank    lists its pieces ────▶ every rank    who sends which (`pieces.share_out`)
    tensor k     the ranks that send a piece of it ─▶ rank 0, which puts them together

Parameters, buffers, gradients and the optimizer's state are gathered alike, and so is what a checkpoint has. A tensor
that belongs to a parameter and has its shape on this rank is laid out as the parameter is (`Sharing`). Nothing here
knows strategies. Tensors are sent one after the other, so that only rank 0 needs memory for everything.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import nn

from trimaran.base.errors import InputError
from trimaran.base.precision import dtype_name
from trimaran.checkpoint_files.pieces import WHOLE, Area, Entry, Piece, What, put, shape_of, share_out
from trimaran.graph.trace.storages import dtype_of
from trimaran.graph.types import share_bounds
from trimaran.launch.world import World
from trimaran.runtime.communication.channels import Agreement
from trimaran.runtime.parts.part import RankPart, Sharing
from trimaran.runtime.step.updates import Updater, local_part

Kind = Literal["parameter", "buffer", "gradient", "optimizer", "random", "state", "residual", "compression"]
"""The last four are of checkpoints alone."""
_FIRST: tuple[Kind, ...] = ("buffer", "state")
"""Differ between ranks: those of the first one count."""
EVERYTHING: tuple[Kind, ...] = ("parameter", "buffer", "gradient", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroup:
    """A group of parameters of the optimizer.

    Attributes:
        names: of its parameters, in the order of the model
        options: hyperparameters of the group, such as "lr"
        place: its number among the groups of a rank that has it
    """

    names: tuple[str, ...]
    options: Mapping[str, Any]
    place: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeState:
    """The state of a training, of all ranks together. Tensors are copies in host memory, with their dtypes.

    A tied weight has the first of its names in `model.named_parameters()`; so has a buffer.

    Attributes:
        parameters: by name, frozen ones too
        buffers: by name, those of replica 0, also those that are in no `state_dict`
        gradients: by name, of the global batch of the last step, before they were clipped; a parameter that had none
            is left out; empty where none were kept
        optimizer: state by name of the parameter and key of the optimizer, such as "exp_avg"; what is no tensor, or a
            tensor without dims, is there as it is
        groups: of the optimizer
        aliases: every name that a parameter or buffer has in the model, and its first one
        ranks: that have a parameter or a buffer, or a share of it, by name
        differing: tensors of which ranks that should have the same copy do not, and these ranks; empty where copies
            are not compared
    """

    parameters: dict[str, torch.Tensor] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    optimizer: dict[str, dict[str, Any]] = field(default_factory=dict)
    groups: tuple[ParameterGroup, ...] = ()
    aliases: dict[str, str] = field(default_factory=dict)
    ranks: dict[str, tuple[int, ...]] = field(default_factory=dict)
    differing: tuple["Differing", ...] = ()


class Differing(NamedTuple):
    """Ranks whose copies of a tensor are not alike.

    Attributes:
        kind: of the tensor
        name: of the parameter
        key: of the optimizer's state; empty for others
        ranks: those that differ from the first
        first: the rank with the first copy
    """

    kind: str
    name: str
    key: str
    ranks: tuple[int, ...]
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A tensor of the state as one rank has it, or its share of one; or what an optimizer keeps that is no such tensor.

    Attributes:
        kind: of what
        name: of the parameter or buffer, the first that it has in the model
        key: of the optimizer's state; empty for others
        tensor: on its device, in the memory that training uses; None: there is `value`
        value: in place of a tensor
        sharing: how the ranks share it; None: this rank has the whole
        spare: a tensor of the user's model that this rank does not train; for where no other rank does
        parameter: the parameter itself, of those that this rank has
    """

    kind: Kind
    name: str
    key: str = ""
    tensor: torch.Tensor | None = None
    value: Any = None
    sharing: Sharing | None = None
    spare: bool = False
    parameter: nn.Parameter | None = None

    @property
    def what(self) -> tuple[Kind, str, str]:
        """Of which tensor it is."""
        return self.kind, self.name, self.key

    def piece(self, tensor: torch.Tensor) -> Piece:
        """What this rank has of it; of copies the first one is taken.

        Args:
            tensor: of this, where it is here
        """
        shape = tuple(tensor.shape if self.sharing is None else self.sharing.shape)
        dtype = dtype_name(tensor.dtype)
        return Piece(self.what, shape, dtype, area_of(self.sharing), spare=self.spare, first=self.kind in _FIRST)


def area_of(sharing: Sharing | None) -> Area:
    """What a rank has of a tensor."""
    return WHOLE if sharing is None else Area(sharing.dim, sharing.spans)


class _Said(NamedTuple):
    """What a rank has: pieces of tensors, what is none, groups of its optimizer, fingerprints of copies."""

    pieces: list[Piece]
    values: "dict[What, Any]"
    options: list[tuple[dict[str, Any], list[str]]]
    prints: "dict[What, tuple[float, float]]"


def state_of(model: nn.Module) -> dict[str, Any]:
    """The `state_dict` of a model, also where a session refuses it to the user, as a rank has a part of it.

    Args:
        model: the user's
    """
    state: dict[str, Any] = type(model).state_dict(model)
    return state


class StateGatherer:
    """Gathers the state of all ranks; one a rank.

    Args:
        model: the user's, of which this rank trains some; before anything was done to it

    Attributes:
        model: the user's
        aliases: every name that a parameter or buffer has in the model, and its first one
        names: of the `state_dict`, in its order, each with the first one of the same tensor; None: it is of neither
        shapes: of the whole, and dtype, by kind and first name
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.aliases = first_names(model)
        self.names = {name: self.aliases.get(name) for name in state_of(model)}
        self.shapes = {
            (kind, name): (tuple(one.shape), dtype_name(one.dtype))
            for kind, named in (("parameter", model.named_parameters()), ("buffer", model.named_buffers()))
            for name, one in named
        }
        self._gradients: dict[int, torch.Tensor] = {}

    def check_extra(self) -> None:
        """Refuse a model of which a part keeps more state than parameters and buffers.

        Raises:
            InputError: a module defines `get_extra_state`
        """
        for name, module in self.model.named_modules():
            if type(module).get_extra_state is not nn.Module.get_extra_state:
                raise InputError(
                    f"{name or 'the model'} ({type(module).__name__}) has get_extra_state(), and a checkpoint has "
                    "parameters and buffers: keep that state in a buffer (register_buffer), or train without saving",
                    code="checkpoint.extra-state",
                    module=name,
                )

    def keep_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Keep copies of gradients, in host memory, until others are kept or they are forgotten.

        Args:
            parameters: those that are updated on this rank
        """
        self._gradients = {
            id(parameter): _on_host(local_part(parameter.grad))
            for parameter in parameters
            if parameter.grad is not None
        }

    def forget_gradients(self) -> None:
        """Drop the gradients that were kept."""
        self._gradients = {}

    def gather(
        self,
        part: RankPart,
        updater: Updater | None,
        world: World,
        agreement: Agreement,
        *,
        kinds: Sequence[Kind] = EVERYTHING,
        compare: bool = False,
        to: int | None = 0,
    ) -> WholeState:
        """Gather; every rank calls it, between steps.

        Args:
            part: of this rank
            updater: of this rank; None: the optimizer's state is not wanted
            world: this process's
            agreement: between all ranks
            kinds: what is wanted
            compare: look whether ranks that have copies of one parameter, or of its state, have the same
            to: rank that gets the tensors; None: none does, and each rank is told how they compare

        Returns:
            On rank `to` what there is; on the others an empty one.

        Raises:
            InputError: the optimizer keeps something of a share of a parameter that is not laid out like the share
            ExecutionError: ranks that share a parameter do not have the same pieces of its state
        """
        held = self.held(part, updater, world, kinds)
        own = {one.what: one.tensor for one in held if one.tensor is not None}
        mine = _Said(
            pieces=[one.piece(own[one.what])._replace(first=True) for one in held if one.what in own],
            values={one.what: one.value for one in held if one.what not in own},
            options=self.options(part, updater) if updater is not None and "optimizer" in kinds else [],
            prints={
                one.what: _fingerprint(own[one.what])
                for one in held
                if compare and one.what in own and not one.spare and one.kind in ("parameter", "optimizer")
            },
        )
        said = agreement.gather_objects(mine, "gathering the state")
        state = WholeState(
            groups=merge_groups([one.options for one in said]),
            aliases=self.aliases,
            ranks=_holders(said),
            differing=_differing(said),
        )
        entries = share_out([one.pieces for one in said]).entries
        for what, value in {what: value for one in reversed(said) for what, value in one.values.items()}.items():
            self._put(state, what, value)
        for entry, whole in gather_pieces(entries, own, world.rank, agreement, to=to) if to is not None else ():
            self._put(state, entry.what, whole)
        return state if to in (None, world.rank) else WholeState()

    def held(self, part: RankPart, updater: Updater | None, world: World, kinds: Sequence[Kind]) -> list["Held"]:
        """What this rank has of the state, as it lies here, between steps; nothing is communicated.

        Args:
            part: of this rank
            updater: of this rank; None: the optimizer's state is not wanted
            world: this process's
            kinds: what is wanted

        Returns:
            Each tensor once, in the order of the model.

        Raises:
            InputError: the optimizer keeps something of a share of a parameter that is not laid out like the share
        """
        if part.ready is not None:
            part.ready()
        return list(self._held(part, updater, world, kinds))

    def _held(self, part: RankPart, updater: Updater | None, world: World, kinds: Sequence[Kind]) -> Iterator["Held"]:
        parameters: dict[str, nn.Parameter] = {}
        buffers: dict[str, torch.Tensor] = {}
        for stage in part.stages.values():
            for name, parameter in stage.module.named_parameters(remove_duplicate=False):
                parameters.setdefault(self.aliases.get(name, name), parameter)
            for name, buffer in stage.module.named_buffers(remove_duplicate=False):
                if name in self.aliases:
                    buffers.setdefault(self.aliases[name], buffer)
        sharing = {self.aliases.get(name, name): one for name, one in part.sharing.items()}
        for name, parameter in parameters.items():
            local, layout = local_part(parameter.detach()), sharing.get(name)
            if "parameter" in kinds:
                yield Held(kind="parameter", name=name, tensor=local, sharing=layout, parameter=parameter)
            if "gradient" in kinds and id(parameter) in self._gradients:
                yield Held(kind="gradient", name=name, tensor=self._gradients[id(parameter)], sharing=layout)
            state = {} if updater is None or "optimizer" not in kinds else updater.state_of(parameter)
            for key, value in state.items():
                if isinstance(value, torch.Tensor) and value.dim():
                    lies = _state_layout(name, key, value, local, layout, world.rank)
                    yield Held(kind="optimizer", name=name, key=key, tensor=local_part(value.detach()), sharing=lies)
                else:
                    yield Held(kind="optimizer", name=name, key=key, value=_plain(value))
        if "buffer" in kinds:
            for name, buffer in buffers.items():
                yield Held(kind="buffer", name=name, tensor=buffer.detach())
        if world.rank == 0:
            # What the user's model has here, and rank 0 has in none of its segments.
            if "parameter" in kinds:
                for name, parameter in self.model.named_parameters():
                    if name not in parameters:
                        local = local_part(parameter.detach())
                        yield Held(kind="parameter", name=name, tensor=local, sharing=sharing.get(name), spare=True)
            if "buffer" in kinds:
                for name, buffer in self.model.named_buffers():
                    if name not in buffers:
                        yield Held(kind="buffer", name=name, tensor=buffer.detach(), spare=True)

    def options(self, part: RankPart, updater: Updater) -> list[tuple[dict[str, Any], list[str]]]:
        """The groups of this rank's optimizer: hyperparameters, and names of its parameters.

        Args:
            part: of this rank
            updater: of this rank
        """
        if updater.optimizer is None:
            return []
        names = {
            id(updater.known_as(parameter)): self.aliases.get(name, name)
            for stage in part.stages.values()
            for name, parameter in stage.module.named_parameters()
        }
        return [
            (
                {key: _plain(value) for key, value in group.items() if key not in ("params", "param_names")},
                [names[id(parameter)] for parameter in group["params"] if id(parameter) in names],
            )
            for group in updater.optimizer.param_groups
        ]

    def _put(self, state: WholeState, what: What, value: Any) -> None:
        kind, name, key = what
        if kind == "optimizer":
            state.optimizer.setdefault(name, {})[key] = value
            return
        kinds = {"parameter": state.parameters, "buffer": state.buffers, "gradient": state.gradients}
        kinds[kind][name] = value


def gather_pieces(
    entries: Sequence[Entry], own: Mapping[Any, torch.Tensor], rank: int, agreement: Agreement, *, to: int = 0
) -> Iterator[tuple[Entry, torch.Tensor]]:
    """Tensors that are put together from their pieces, in host memory, one after the other: on one rank.

    Args:
        entries: who sends which pieces, the same on every rank; all ranks go through them
        own: those that this rank may have to send
        rank: this one
        agreement: between all ranks
        to: rank that gets them
    """
    for entry in entries:
        whole = torch.empty(entry.shape, dtype=dtype_of(entry.dtype)) if rank == to else None
        for writer, area in entry.pieces:
            tensor = own[entry.what].detach() if writer == rank else None
            piece = None if tensor is None else (tensor.to_dense() if tensor.is_sparse else tensor).cpu().contiguous()
            if writer != to:
                form = shape_of(entry.shape, area), dtype_of(entry.dtype)
                piece = _pass_on(piece, *form, way=(writer, to), rank=rank, group=agreement.group)
            if whole is not None and piece is not None:
                put(whole, entry, piece, area)
        if whole is not None:
            yield entry, whole


def first_names(model: nn.Module) -> dict[str, str]:
    """Every name of the parameters and buffers of a model, and the first name of the same one."""
    first: dict[int, str] = {}
    names = {}
    for named in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)):
        for name, tensor in named:
            names[name] = first.setdefault(id(tensor), name)
    return names


def merge_groups(said: Sequence[Sequence[tuple[dict[str, Any], list[str]]]]) -> tuple[ParameterGroup, ...]:
    """The groups of all ranks: those of one place with equal hyperparameters are one.

    Args:
        said: by each rank, from `StateGatherer.options`
    """
    merged: list[tuple[int, dict[str, Any], dict[str, None]]] = []
    for groups in said:
        for place, (options, names) in enumerate(groups):
            same = next((one for one in merged if one[0] == place and same_options(one[1], options)), None)
            if same is None:
                same = (place, options, {})
                merged.append(same)
            same[2].update(dict.fromkeys(names))
    merged.sort(key=lambda one: one[0])
    return tuple(ParameterGroup(names=tuple(names), options=options, place=place) for place, options, names in merged)


def same_options(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two groups of an optimizer have the same options, as text: a value may be a tensor."""
    return one.keys() == other.keys() and all(repr(value) == repr(other[key]) for key, value in one.items())


def _holders(said: Sequence[_Said]) -> dict[str, tuple[int, ...]]:
    """The ranks that have each parameter and buffer."""
    ranks: dict[str, list[int]] = {}
    for rank, one in enumerate(said):
        for piece in one.pieces:
            if piece.what[0] in ("parameter", "buffer") and not piece.spare:
                ranks.setdefault(piece.what[1], []).append(rank)
    return {name: tuple(found) for name, found in ranks.items()}


def _differing(said: Sequence[_Said]) -> tuple[Differing, ...]:
    """Copies that are not those of the first rank that has the same of a tensor."""
    first: dict[tuple[What, Area], tuple[int, tuple[float, float]]] = {}
    unlike: dict[tuple[What, Area], list[int]] = {}
    for rank, one in enumerate(said):
        for piece in one.pieces:
            place = piece.what, piece.area
            if piece.what in one.prints:
                own = one.prints[piece.what]
                _, other = first.setdefault(place, (rank, own))
                # The same operations on the same numbers; elsewhere they may be done by other instructions.
                limit = 16 * _epsilon(dtype_of(piece.dtype)) * max(own[1], other[1])
                alike = abs(own[0] - other[0]) <= limit or (math.isnan(own[0]) and math.isnan(other[0]))
                if not alike:
                    unlike.setdefault(place, []).append(rank)
    return tuple(Differing(*place[0], ranks=tuple(ranks), first=first[place][0]) for place, ranks in unlike.items())


def _fingerprint(tensor: torch.Tensor) -> tuple[float, float]:
    """The sum of the elements under signs drawn at random, and their norm.

    A difference d between two tensors changes the sum by about the norm of d, wherever it lies.
    """
    flat = tensor.detach().reshape(-1).to("cpu", torch.float64)
    signs = torch.randint(0, 2, flat.shape, generator=torch.Generator().manual_seed(flat.numel())) * 2 - 1
    return float(flat @ signs.double()), float(flat.norm())


def _pass_on(
    tensor: torch.Tensor | None,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    *,
    way: tuple[int, int],
    rank: int,
    group: dist.ProcessGroup | None,
) -> torch.Tensor | None:
    """A tensor in host memory from the rank that has it to the one that wants it, as bytes: gloo knows few dtypes."""
    source, to = way
    if rank == source and tensor is not None:
        if tensor.numel():
            dist.send(tensor.reshape(-1).view(torch.uint8), group_dst=to, group=group)
    elif rank == to:
        tensor = torch.empty(shape, dtype=dtype)
        if tensor.numel():
            dist.recv(tensor.reshape(-1).view(torch.uint8), group_src=source, group=group)
    return tensor


def _state_layout(
    name: str, key: str, value: torch.Tensor, local: torch.Tensor, layout: Sharing | None, rank: int
) -> Sharing | None:
    """How a tensor of an optimizer's state lies on the ranks that share its parameter."""
    if layout is None:
        return None
    if isinstance(value, _Spread):
        if value.shape == layout.shape and local_part(value).shape == local.shape:
            return layout
        (placement,) = value.placements
        if placement.is_replicate():
            return None
        at = layout.ranks.index(rank)
        return Sharing(
            ranks=layout.ranks,
            shape=value.shape,
            dim=placement.dim,
            spans=(share_bounds(value.shape[placement.dim], len(layout.ranks), at),),
        )
    if value.shape == local.shape:
        return layout
    raise InputError(
        f'the optimizer keeps "{key}" of shape {tuple(value.shape)} for a share of {name} of shape '
        f"{tuple(local.shape)}: it cannot be put together from shares, take a plan that leaves parameters whole "
        "(zero=0 or 1, tp=1)",
        parameter=name,
    )


@runtime_checkable
class _Spread(Protocol):
    """A tensor that is spread over ranks, as torch's DTensor; to import that takes long."""

    def full_tensor(self) -> torch.Tensor: ...

    @property
    def shape(self) -> torch.Size: ...

    @property
    def placements(self) -> tuple[Any, ...]: ...


def _plain(value: Any) -> Any:
    """What is no tensor with dims, to be pickled."""
    if isinstance(value, torch.Tensor):
        whole = value.full_tensor() if isinstance(value, _Spread) else value
        return whole.detach().cpu().clone()
    return value


def _epsilon(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0


def _on_host(tensor: torch.Tensor | None) -> Any:
    """A copy in host memory, contiguous, also of what is there already: training goes on."""
    if tensor is None:
        return None
    dense = tensor.to_dense() if tensor.is_sparse else tensor
    return torch.empty(dense.shape, dtype=dense.dtype).copy_(dense.detach())
