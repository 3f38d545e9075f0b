"""The state of a training as one process would have it: whole tensors by the names of the user's model, on one rank.

    each rank    lists its tensors ────▶ every rank    the same list, in the same order
    tensor k     the ranks that share it gather it ─▶ the first of them ─▶ rank 0

Parameters, buffers, gradients and the optimizer's state are gathered alike. A tensor that belongs to a parameter and
has its shape on this rank is laid out as the parameter is, so that the same function gathers both (`Sharing`). Nothing
here knows strategies: every rank lists the tensors that it has, and the first one that has a tensor sends it. Tensors
are sent one after the other, so that only rank 0 needs memory for everything.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import nn

from trimaran.base.errors import ExecutionError, InputError
from trimaran.base.precision import dtype_name
from trimaran.graph.types import share_bounds
from trimaran.launch.world import World
from trimaran.runtime.communication.channels import Agreement
from trimaran.runtime.parts.part import Part, Sharing
from trimaran.runtime.step.updates import Updater, local_part

Kind = Literal["parameter", "buffer", "gradient", "optimizer"]
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

    kind: Kind
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

    def whole(self, device: str) -> torch.Tensor:
        """The whole tensor; all ranks that share it call this.

        Args:
            device: of the rank
        """
        if self.tensor is None:
            return torch.empty(0)
        return self.tensor if self.sharing is None else self.sharing.whole(self.tensor.to(device))


class _Piece(NamedTuple):
    """What a rank has of a tensor, for the others.

    Attributes:
        kind: of the tensor
        name: of the parameter or buffer
        key: of the optimizer's state; empty for others
        shape: of the whole; None: there is no tensor to send
        dtype: of the tensor
        ranks: that share it, ascending; a copy has this rank alone
        value: what is sent with this, in place of a tensor
        spare: a tensor of the user's model that this rank does not train; for where no other rank does
        prints: fingerprint of this rank's tensor; None: copies are not compared
    """

    kind: Kind
    name: str
    key: str
    shape: tuple[int, ...] | None
    dtype: torch.dtype | None
    ranks: tuple[int, ...]
    value: Any = None
    spare: bool = False
    prints: tuple[float, float] | None = None

    @property
    def what(self) -> tuple[Kind, str, str]:
        """Of which tensor it is."""
        return self.kind, self.name, self.key


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
        self.aliases = _first_names(model)
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
        part: Part,
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
        by_what = {one.what: one for one in held}
        pieces_here = [_piece(one, world.rank, compare=compare) for one in held]
        options = self.options(part, updater) if updater is not None and "optimizer" in kinds else []
        said = agreement.gather_objects((pieces_here, options), "gathering the state")
        pieces = [of for of, _ in said]
        chosen, differing = _choose(pieces)
        groups = merge_groups([of for _, of in said])
        state = WholeState(groups=groups, aliases=self.aliases, ranks=_holders(pieces), differing=differing)
        for piece in chosen if to is not None else ():
            source = piece.ranks[0]
            if piece.shape is None:
                self._put(state, piece, piece.value)
                continue
            tensor = None
            if world.rank in piece.ranks:
                # All that share it take part in making it whole; one of them keeps it.
                whole = by_what[piece.what].whole(world.device)
                tensor = _on_host(whole) if world.rank == source else None
            if to is not None and source != to:
                way = source, to
                tensor = pass_on(tensor, piece.shape, piece.dtype, way=way, rank=world.rank, group=agreement.group)
            if world.rank == to and tensor is not None:
                self._put(state, piece, tensor)
        return state if to in (None, world.rank) else WholeState()

    def held(self, part: Part, updater: Updater | None, world: World, kinds: Sequence[Kind]) -> list["Held"]:
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

    def _held(self, part: Part, updater: Updater | None, world: World, kinds: Sequence[Kind]) -> Iterator["Held"]:
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

    def options(self, part: Part, updater: Updater) -> list[tuple[dict[str, Any], list[str]]]:
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

    def _put(self, state: WholeState, piece: _Piece, value: Any) -> None:
        if piece.kind == "optimizer":
            state.optimizer.setdefault(piece.name, {})[piece.key] = value
            return
        kinds = {"parameter": state.parameters, "buffer": state.buffers, "gradient": state.gradients}
        kinds[piece.kind][piece.name] = value


def _first_names(model: nn.Module) -> dict[str, str]:
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


def _piece(held: Held, rank: int, *, compare: bool) -> _Piece:
    """What a rank says of what it has."""
    kind, tensor, sharing = held.kind, held.tensor, held.sharing
    if tensor is None:
        return _Piece(kind, held.name, held.key, None, None, (rank,), value=held.value)
    copies = compare and not held.spare and kind in ("parameter", "optimizer")
    return _Piece(
        kind,
        held.name,
        held.key,
        tuple(tensor.shape if sharing is None else sharing.shape),
        tensor.dtype,
        (rank,) if sharing is None else sharing.ranks,
        spare=held.spare,
        prints=_fingerprint(tensor) if copies else None,
    )


def _choose(said: Sequence[Sequence[_Piece]]) -> tuple[list[_Piece], tuple[Differing, ...]]:
    """Of each tensor the piece that is sent, in one order on all ranks; and copies that differ."""
    holders: dict[tuple[Kind, str, str], list[tuple[int, _Piece]]] = {}
    for rank, pieces in enumerate(said):
        for piece in pieces:
            holders.setdefault(piece.what, []).append((rank, piece))
    chosen, differing = [], []
    for what, found in holders.items():
        trained = [(rank, piece) for rank, piece in found if not piece.spare] or found
        rank, piece = trained[0]
        having = {one for one, _ in trained}
        if not having.issuperset(piece.ranks):
            missing = sorted(set(piece.ranks) - having)
            raise ExecutionError(
                f"the {' '.join(part for part in what if part)} is shared by the ranks {piece.ranks}, and the ranks "
                f"{missing} have nothing of it: their optimizers, or the gradients that they saw, are not alike",
                ranks=tuple(missing),
            )
        chosen.append(piece)
        ranks = _unlike(trained)
        if ranks:
            differing.append(Differing(*what, ranks=ranks, first=rank))
    return chosen, tuple(differing)


def _holders(said: Sequence[Sequence[_Piece]]) -> dict[str, tuple[int, ...]]:
    """The ranks that have each parameter and buffer."""
    ranks: dict[str, list[int]] = {}
    for rank, pieces in enumerate(said):
        for piece in pieces:
            if piece.kind in ("parameter", "buffer") and not piece.spare:
                ranks.setdefault(piece.name, []).append(rank)
    return {name: tuple(found) for name, found in ranks.items()}


def _unlike(found: Sequence[tuple[int, _Piece]]) -> tuple[int, ...]:
    """Ranks whose copies are not those of the first rank with the same share."""
    first: dict[int, _Piece] = {}
    ranks = []
    for rank, piece in found:
        place = piece.ranks.index(rank)
        other = first.setdefault(place, piece)
        if piece.prints is None or other.prints is None or piece.dtype is None:
            continue
        # The same operations on the same numbers; elsewhere they may be done by other instructions of the processor.
        limit = 16 * _epsilon(piece.dtype) * max(piece.prints[1], other.prints[1])
        alike = abs(piece.prints[0] - other.prints[0]) <= limit
        if not alike and not (math.isnan(piece.prints[0]) and math.isnan(other.prints[0])):
            ranks.append(rank)
    return tuple(ranks)


def _fingerprint(tensor: torch.Tensor) -> tuple[float, float]:
    """The sum of the elements under signs drawn at random, and their norm.

    A difference d between two tensors changes the sum by about the norm of d, wherever it lies.
    """
    flat = tensor.detach().reshape(-1).to("cpu", torch.float64)
    signs = torch.randint(0, 2, flat.shape, generator=torch.Generator().manual_seed(flat.numel())) * 2 - 1
    return float(flat @ signs.double()), float(flat.norm())


def pass_on(
    tensor: torch.Tensor | None,
    shape: tuple[int, ...],
    dtype: torch.dtype | None,
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
            whole=lambda _: value.full_tensor(),
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
