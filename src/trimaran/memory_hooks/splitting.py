"""Run some neighbouring modules of an `nn.Sequential` on a part of the batch at a time.

Tensors between them then never exist for the whole batch, in the forward or the backward. So a step needs less than the
minimum memory of memory plans, which is the tensors of one operation: of VGG-16 the three largest maps, while the
backward of its second convolution runs.

    forward    x ─┬─ part 0 ─▶ conv relu conv relu pool ─▶ y part 0       only y is left, and x
                  └─ part 1 ─▶ conv relu conv relu pool ─▶ y part 1
    backward   dy part 0 ─▶ the forward of part 0 again, its backward ─▶ dx part 0, gradients of the weights added up
               dy part 1 ─▶ ...

The price is one more forward of these modules. Gradients of weights are sums over parts, so they differ from those of
the whole batch by rounding. Modules that mix the samples of a batch, or draw random numbers, cannot be split.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trimaran.base.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Modules that run on a part of the batch at a time.

    Attributes:
        parent: path of the `nn.Sequential`, such as "features"; "" is the model itself
        first: number of its first child that does
        last: number of the last one, included
        parts: of the batch

    Example:
        >>> Split(parent="features", first=0, last=4, parts=4).name
        'features[0:4] in 4 parts'
    """

    parent: str
    first: int
    last: int
    parts: int

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.parent}[{self.first}:{self.last}] in {self.parts} parts"


# What looks at more than one sample at a time, or gives another result when it runs again.
_INSEPARABLE = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd, nn.RReLU)


@contextmanager
def splitting(model: nn.Module, splits: Sequence[Split]) -> Iterator[None]:
    """Run parts of a model in parts of the batch, inside this context.

    Args:
        model: the user's; afterwards it is as it was
        splits: do not overlap

    Raises:
        InputError: a place that the model does not have, or modules that cannot be split
    """
    patched: list[nn.Sequential] = []
    try:
        for split in splits:
            parent = _sequential(model, split)
            if parent in patched:
                raise InputError(f"{split.parent!r} is split in two places: give one split for it")
            # An attribute of the instance takes the place of the method of its class.
            parent.forward = _Patched(parent, split)  # type: ignore[method-assign]
            patched.append(parent)
        yield
    finally:
        for parent in patched:
            del parent.forward


def _sequential(model: nn.Module, split: Split) -> nn.Sequential:
    try:
        parent = model.get_submodule(split.parent)
    except AttributeError as error:
        raise InputError(
            f"the model has no module {split.parent!r}: {error}", code="split.no-such-module", module=split.parent
        ) from None
    if type(parent).forward is not nn.Sequential.forward or not isinstance(parent, nn.Sequential):
        raise InputError(
            f"{split.parent or 'the model'} is a {type(parent).__name__}: only children of a plain nn.Sequential run "
            "one after the other, and can be run in parts",
            code="split.not-sequential",
            module=split.parent,
        )
    if not 0 <= split.first <= split.last < len(parent) or split.parts < 2:
        raise InputError(
            f"{split.name} makes no sense: {split.parent!r} has children 0 to {len(parent) - 1}, and parts must be at "
            "least 2",
            code="split.bad-range",
            module=split.parent,
        )
    for name, module in parent[split.first : split.last + 1].named_modules():
        if isinstance(module, _INSEPARABLE) and module.training:
            raise InputError(
                f"{split.name}: {name} is a {type(module).__name__}, which looks at the whole batch or draws random "
                "numbers, so that parts of the batch would give another result",
                code="split.depends-on-batch",
                module=f"{split.parent}.{name}",
            )
    return parent


class _Patched:
    """The forward of a sequential module with some of its children run in parts."""

    def __init__(self, parent: nn.Sequential, split: Split) -> None:
        children = list(parent)
        self._before = children[: split.first]
        self._inside = children[split.first : split.last + 1]
        self._after = children[split.last + 1 :]
        self._parts = split.parts

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = _through(self._before, x)
        if torch.is_grad_enabled() and len(x) > 1:
            weights = [weight for module in self._inside for weight in module.parameters() if weight.requires_grad]
            x = _InParts.apply(self._inside, self._parts, x, *weights)  # type: ignore[no-untyped-call]
        else:
            x = _through(self._inside, x)
        return _through(self._after, x)


class _InParts(torch.autograd.Function):
    """A chain of modules, a part of the batch at a time; saves its input alone."""

    @staticmethod
    def forward(ctx: Any, modules: Sequence[nn.Module], parts: int, x: torch.Tensor, *weights: torch.Tensor) -> Any:
        ctx.modules, ctx.parts, ctx.weights = modules, parts, weights
        ctx.save_for_backward(x)
        whole, done = None, 0
        for part in x.chunk(parts):
            # A module that works in place must not change the input, which the backward needs.
            made = _through(modules, part.clone() if _works_in_place(modules) else part)
            if whole is None:
                whole = made.new_empty((len(x), *made.shape[1:]))
            whole[done : done + len(made)] = made
            done += len(made)
            del made
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        (dy,) = gradients
        wanted = ctx.needs_input_grad[2]
        dx = torch.empty_like(x) if wanted else None
        sums: list[torch.Tensor | None] = [None] * len(ctx.weights)
        done = 0
        for part in x.chunk(ctx.parts):
            with torch.enable_grad():
                source = part.detach().requires_grad_(wanted)
                made = _through(ctx.modules, source.clone() if _works_in_place(ctx.modules) else source)
            inputs = [*ctx.weights, *([source] if wanted else [])]
            found = torch.autograd.grad(made, inputs, dy[done : done + len(part)], allow_unused=True)
            del made
            for number in range(len(sums)):
                sums[number] = _added(sums[number], found[number])
            if dx is not None:
                dx[done : done + len(part)] = found[-1]
            done += len(part)
        return None, None, dx, *sums


def _through(modules: Sequence[nn.Module], x: torch.Tensor) -> torch.Tensor:
    for module in modules:
        x = module(x)
    return x


def _works_in_place(modules: Sequence[nn.Module]) -> bool:
    """Whether the first of some modules changes its input."""
    return bool(getattr(modules[0], "inplace", False))


def _added(total: torch.Tensor | None, more: torch.Tensor | None) -> torch.Tensor | None:
    if total is None or more is None:
        return more if total is None else total
    return total.add_(more)
