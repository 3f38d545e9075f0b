"""The weights of a model, and the state of its optimizer, as they are in files: what readers give and writers take.

    run, checkpoint     ┐                ┌  NAME.safetensors
    NAME.safetensors    │                │  NAME.pt
    NAME.pt             ├─▶  Content  ─▶ ┤
    DCP directory       │                │  DCP directory
    Hugging Face folder ┘                └  Hugging Face folder

A `Content` knows names, shapes and dtypes. A tensor is read when it is asked for, so that the memory that is needed is
that of one tensor, not of the model.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from trimaran.base.errors import InputError
from trimaran.base.precision import dtype_name
from trimaran.base.units import format_some

Member = str | int
"""A parameter that an optimizer has: its name, or its number among all parameters of the groups."""


class Form(NamedTuple):
    """What is known of a tensor before it is read.

    Attributes:
        shape: of the whole
        dtype: of the tensor
    """

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Size of the whole [bytes]."""
        return self.like().numel() * self.dtype.itemsize

    def like(self) -> torch.Tensor:
        """A tensor of this form without content, on the device meta."""
        return torch.empty(self.shape, dtype=self.dtype, device="meta")

    def __str__(self) -> str:
        """As texts say it: `float32 (2, 3)`."""
        return f"{dtype_name(self.dtype)} {self.shape}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerGroup:
    """A group of an optimizer.

    Attributes:
        options: hyperparameters, such as "lr"
        members: its parameters, in the optimizer's order
    """

    options: Mapping[str, Any]
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerContent:
    """The state of an optimizer.

    Attributes:
        states: of each parameter, by key, such as "exp_avg": the form of a tensor, or a plain value
        groups: in the order of the optimizer; empty: there are none
        read: a tensor of the state, by parameter and key
        incomplete: why this is not all of it; empty: it is
    """

    states: Mapping[Member, Mapping[str, Any]]
    groups: tuple[OptimizerGroup, ...]
    read: Callable[[Member, str], torch.Tensor]
    incomplete: str = ""

    @property
    def nbytes(self) -> int:
        """Size of the tensors [bytes]."""
        return sum(one.nbytes for kept in self.states.values() for one in kept.values() if isinstance(one, Form))

    def value(self, member: Member, key: str) -> Any:
        """What is kept of a parameter under a key; a tensor is read.

        Args:
            member: the parameter
            key: of its state
        """
        kept = self.states[member][key]
        return self.read(member, key) if isinstance(kept, Form) else kept


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Weights, and perhaps the state of the optimizer.

    Attributes:
        source: of it, for messages
        kind: of the source, such as "safetensors file"
        forms: of the tensors of the model, by the names of its `state_dict`, in its order
        read: a tensor of the model, by name; nobody else has its memory
        ties: names of tied weights, and the first name of the same tensor, where that is known
        optimizer: its state; None: there is none
        config: of the model, as JSON; None: there is none
        verify: reads what has checksums, and compares; raises `CorruptDataError`
        has_checksums: there are checksums of the tensors
        close: the files
        about: a few words and figures on it, by name
    """

    source: str
    kind: str
    forms: Mapping[str, Form]
    read: Callable[[str], torch.Tensor]
    ties: Mapping[str, str] = field(default_factory=dict)
    optimizer: OptimizerContent | None = None
    config: Mapping[str, Any] | None = None
    verify: Callable[[], None] = _nothing
    has_checksums: bool = False
    close: Callable[[], None] = _nothing
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Size of the weights, tied ones once [bytes]."""
        return sum(form.nbytes for name, form in self.forms.items() if name not in self.ties)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each tensor of the model with its name, one after the other; of tied ones each has the same memory."""
        read: dict[str, torch.Tensor] = {}
        shared = {*self.ties.values()}
        for name in self.forms:
            first = self.ties.get(name, name)
            tensor = read[first] if first in read else self.read(first)
            if first in shared:
                read[first] = tensor
            yield name, tensor

    def __enter__(self) -> "Content":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ---------------------------------------------------------------------------------------------------------------------
# Does it fit a model?

_EXACT: Mapping[torch.dtype, tuple[torch.dtype, ...]] = {
    torch.bfloat16: (torch.float32, torch.float64),
    torch.float16: (torch.float32, torch.float64),
    torch.float32: (torch.float64,),
    torch.float8_e4m3fn: (torch.bfloat16, torch.float16, torch.float32, torch.float64),
    torch.float8_e5m2: (torch.bfloat16, torch.float16, torch.float32, torch.float64),
}
"""Dtypes that have each value of a narrower one."""


def check_fits(content: Content, wanted: Mapping[str, Form], ties: Mapping[str, str]) -> dict[str, str]:
    """Which name of a file each tensor of a model is read from.

    Of a tied weight one of its names is enough. A tensor of a narrower dtype is converted where no value changes.

    Args:
        content: of the file
        wanted: the tensors of the model's `state_dict`, of their whole shapes
        ties: every name of a tied weight of the model, and its first one

    Returns:
        By name of the model.

    Raises:
        InputError: names are missing, or unexpected; shapes or dtypes are others; every one of them is in `figures`
    """
    names: dict[str, list[str]] = {}
    for name in wanted:
        names.setdefault(ties.get(name, name), []).append(name)
    chosen: dict[str, str] = {}
    for name in wanted:
        if name in content.forms:
            chosen[name] = name
        else:
            tied = [other for other in names[ties.get(name, name)] if other in content.forms]
            if tied:
                chosen[name] = tied[0]
    missing = [name for name in wanted if name not in chosen]
    unexpected = [name for name in content.forms if name not in wanted]
    if missing or unexpected:
        parts = [f"it lacks {format_some(missing, 8)}"] if missing else []
        parts += [f"it has {format_some(unexpected, 8)}, which the model has not"] if unexpected else []
        raise InputError(
            f"{content.source} is not of this model: {'; '.join(parts)}. Give weights of the model that Job.model "
            "makes, under the names of its state_dict()",
            code="weights.other-model",
            path=content.source,
            missing=tuple(sorted(missing)),
            unexpected=tuple(sorted(unexpected)),
        )
    shapes, dtypes = [], []
    for name, form in wanted.items():
        found = content.forms[chosen[name]]
        if found.shape != form.shape:
            shapes.append(f"{name} {found.shape} in the file, {form.shape} in the model")
        elif found.dtype != form.dtype and form.dtype not in _EXACT.get(found.dtype, ()):
            dtypes.append(f"{name} {dtype_name(found.dtype)} in the file, {dtype_name(form.dtype)} in the model")
    if shapes:
        raise InputError(
            f"{content.source} has tensors of other shapes: {format_some(shapes, 8)}",
            code="weights.other-shapes",
            path=content.source,
            tensors=tuple(shapes),
        )
    if dtypes:
        raise InputError(
            f"{content.source} has tensors of dtypes that are not converted without rounding: "
            f"{format_some(dtypes, 8)}. Convert them yourself, where rounding is meant, or make the model "
            "in the dtype of the file",
            code="weights.other-dtypes",
            path=content.source,
            tensors=tuple(dtypes),
        )
    return chosen


def check_ties(content: Content, chosen: Mapping[str, str], ties: Mapping[str, str]) -> None:
    """Refuse a file that has several names of a tied weight, and not the same values under each.

    Args:
        content: of the file
        chosen: of `check_fits`
        ties: every name of a tied weight of the model, and its first one

    Raises:
        InputError: there is one
        CorruptDataError: a tensor cannot be read
    """
    several: dict[str, list[str]] = {}
    for name, source in chosen.items():
        one = content.ties.get(source, source)
        if ties.get(name, name) in ties.values():
            several.setdefault(ties.get(name, name), []).append(one)
    for first, sources in several.items():
        names = [*dict.fromkeys(sources)]
        if len(names) < 2:
            continue
        whole = content.read(names[0])
        for other in names[1:]:
            if not same_bits(whole, content.read(other)):
                raise InputError(
                    f"{content.source} has {names[0]} and {other}, which are one tensor in this model, with different "
                    "values: it is of a model that does not tie them. Untie them in Job.model, or remove one of them",
                    code="weights.tied-differ",
                    path=content.source,
                    names=(names[0], other),
                    first=first,
                )


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and bits; NaN is equal to itself.

    Args:
        one: on the host
        other: on the host
    """
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    flat = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other))
    return not one.numel() or bool(torch.equal(*flat))


@contextmanager
def closing_on_error(close: Callable[[], None]) -> Iterator[None]:
    """Close files where a content cannot be made of them.

    Args:
        close: closes them
    """
    try:
        yield
    except BaseException:
        close()
        raise
