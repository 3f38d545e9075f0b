"""Squared norms of the pieces of a step's gradient and of the whole, for the gradient noise scale.

    backward of microbatch k    hook of each parameter ─▶ + |its gradient of k|²   before autograd adds it up: no copy
    all-reduce, divide          the gradients are those of the global batch ─▶ |g|²   before clipping
    `observations`              all ranks add up what they have noted

Sums of squares add up over parameters, microbatches, replicas and stages, so that a rank notes two numbers a step and
communicates nothing until it is asked. Left out are parts of a gradient that are on several ranks, or come at several
times, because their squares do not add up (`check_observable`).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from trimaran.base.errors import InputError
from trimaran.convergence.noise_scale import StepNorms
from trimaran.graph.types import Graph
from trimaran.program.lowering.partition import segment_ops, tied_segments
from trimaran.program.strategy import Strategy
from trimaran.runtime.step.state import State

AddUp = Callable[[torch.Tensor], None]
"""Adds a tensor in host memory up over all ranks, in place."""

SecondMoment = Callable[[nn.Parameter], tuple[torch.Tensor, float] | None]
"""Of the gradients that a parameter had in earlier steps: as `Updater.second_moment` has it."""

# In its first steps an optimizer scales by the mean square of hardly anything.
_BEGUN = 10
# Of Adam, which adds it to √v: it matters only where a parameter had no gradient yet.
_EPSILON = 1e-8
# Also added to √v, as a share of its root mean square over the tensor. Without it, an element whose gradients were near
# zero so far would count thousands of times in the first step in which its gradient is not.
_FLOOR = 0.01
# Steps whose numbers are fetched from a GPU at a time, long after it has computed them.
_KEPT_ON_DEVICE = 256


def check_observable(strategy: Strategy, graph: Graph | None) -> None:
    """Refuse a strategy under which a rank does not have whole pieces of the gradient.

    Args:
        strategy: how the job runs
        graph: of the job, where the network is partitioned

    Raises:
        InputError: with the reason, and what to do
    """
    reason = obstacle(strategy, graph)
    if reason is not None:
        raise InputError(
            f"the gradient noise scale cannot be seen under {strategy.name}: {reason}. Use data parallelism or a "
            "pipeline with whole gradients, with two replicas or two microbatches at least",
            code="gradient-noise.strategy-unsupported",
            strategy=strategy.name,
        )


def obstacle(strategy: Strategy, graph: Graph | None) -> str | None:
    """Why a rank does not have whole pieces of the gradient under a strategy; None where it has.

    Args:
        strategy: how the job runs
        graph: of the job, where the network is partitioned
    """
    if strategy.zero > 1:
        return f"with zero={strategy.zero} gradients are added up while they are scattered, and no rank has its own"
    if strategy.tp > 1 or strategy.shards:
        return "ranks that share tensors have parts of sums, and squares of parts do not add up"
    if strategy.schedule == "zero-bubble" and strategy.pp > 1:
        return "a zero-bubble schedule makes the gradients of weights outside of autograd, which tells of none"
    if strategy.compression is not None and strategy.compression.method == "powersgd":
        return "PowerSGD puts parts of a gradient off to later steps, so that squares of pieces and of the whole differ"
    if strategy.dp * strategy.microbatches < 2:
        return "a step computes its gradient in one piece, which says nothing of its noise"
    if strategy.segments > 1 and graph is not None and tied_segments(graph, segment_ops(graph, strategy)):
        return "several segments share a weight, whose gradient of a microbatch comes in parts"
    return None


class GradientNoise:
    """Notes the squared norms of one rank.

    Args:
        parameters: whose gradients are made here
        counted: those whose gradients, once they are the global batch's, count here
        add_up: over all ranks; None: this rank is alone
        every: interval of observed steps; may be set between steps
        second_moment: mean square of earlier gradients of a parameter, by which the optimizer scales; None where it
            does not

    Raises:
        InputError: `every` is below 1
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        counted: Sequence[nn.Parameter],
        *,
        add_up: AddUp | None,
        every: int = 1,
        second_moment: SecondMoment = lambda parameter: None,
    ) -> None:
        if every < 1:
            raise InputError(f"gradient noise is observed every n-th step, n at least 1, got {every}", every=every)
        self._counted = list(counted)
        self._add_up = add_up
        self.every = every
        self._second_moment = second_moment
        self._armed = self._scales = False
        self._floors: dict[int, torch.Tensor] = {}
        self._pieces = _Squares()
        self._rows: list[tuple[int, int, torch.Tensor]] = []
        self._fetched: list[tuple[int, int, list[float]]] = []
        self._observations: list[StepNorms] = []
        unique = {id(parameter): parameter for parameter in parameters if parameter.requires_grad}
        self._hooks = [parameter.register_hook(partial(self._arrived, parameter)) for parameter in unique.values()]

    def begin(self, step: int) -> None:
        """A step starts.

        Args:
            step: its number, the same on every rank
        """
        self._pieces = _Squares()
        self._floors.clear()
        self._armed = step % self.every == 0
        self._scales = step >= _BEGUN

    @torch.no_grad()
    def settle(self, state: State, divisor: torch.Tensor | None, weights: torch.Tensor | None = None) -> None:
        """The gradients of a step are those of the global batch, and nothing has been clipped yet.

        Args:
            state: of the step
            divisor: what the gradients of the pieces are still to be divided by; None: they are scaled
            weights: sum of the weights of the loss; None: its weights are the samples
        """
        if not self._armed:
            return
        self._armed = False
        whole = _Squares()
        for parameter in self._counted:
            if parameter.grad is not None:
                whole.add(parameter.grad, self._scale_of(parameter))
        noted = [*self._pieces.sums(), *whole.sums()]
        if divisor is not None:
            noted[:2] = [one / divisor.to(one).square() for one in noted[:2]]
        unscaled = float(self._pieces.unscaled + whole.unscaled + (not self._scales))
        device = max((one.device for one in noted), key=lambda device: device.type != "cpu")
        row = torch.stack(
            [one.to(device) for one in (*noted, _share(state, weights), torch.tensor(unscaled, dtype=torch.float64))]
        )
        self._rows.append((state.number, state.samples, row))
        self._pieces = _Squares()
        if len(self._rows) > 2 * _KEPT_ON_DEVICE:
            self._fetch(_KEPT_ON_DEVICE)

    def observations(self) -> tuple[StepNorms, ...]:
        """All steps that were observed so far, the same on every rank; every rank calls it.

        A step that had one piece only, such as a last batch of one sample, is left out.
        """
        self._fetch(len(self._rows))
        if self._fetched:
            sums = torch.tensor([row for _, _, row in self._fetched], dtype=torch.float64)
            if self._add_up is not None:
                self._add_up(sums)
            rows = zip(self._fetched, sums.tolist(), strict=True)
            found = (_observation(step, samples, row) for (step, samples, _), row in rows)
            self._observations += [one for one in found if one is not None]
            self._fetched.clear()
        return tuple(self._observations)

    def close(self) -> None:
        """Take the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _arrived(self, parameter: nn.Parameter, gradient: torch.Tensor) -> None:
        if self._armed:
            self._pieces.add(gradient, self._scale_of(parameter))

    def _scale_of(self, parameter: nn.Parameter) -> "_GradientScale | None":
        moment = self._second_moment(parameter) if self._scales else None
        if moment is None:
            return None
        floor = self._floors.get(id(parameter))
        if floor is None:
            floor = self._floors[id(parameter)] = _FLOOR * moment[0].mean().sqrt()
        return _GradientScale(*moment, floor)

    def _fetch(self, count: int) -> None:
        rows, self._rows = self._rows[:count], self._rows[count:]
        if rows:
            values = torch.stack([row for _, _, row in rows]).tolist()
            self._fetched += [(step, samples, row) for (step, samples, _), row in zip(rows, values, strict=True)]


class _GradientScale(NamedTuple):
    """By what an optimizer scales the gradient of a parameter.

    Attributes:
        kept: v, as it is kept
        short: by how much that falls short of the mean square, because it started from zero
        floor: what is added to √v
    """

    kept: torch.Tensor
    short: float
    floor: torch.Tensor


class _Squares:
    """Sums of squares of gradients, under way."""

    def __init__(self) -> None:
        self._norms: list[torch.Tensor] = []
        self._scaled: list[torch.Tensor] = []
        self._factors: list[float] = []

    @property
    def unscaled(self) -> int:
        """How many gradients have no square as the optimizer scales them."""
        return len(self._norms) - len(self._scaled)

    def add(self, gradient: torch.Tensor, scale: _GradientScale | None) -> None:
        """Add a gradient, never in less than fp32.

        Args:
            gradient: of a parameter
            scale: of the parameter; None: not known
        """
        values = gradient.coalesce().values() if gradient.is_sparse else gradient
        exact = values if values.dtype in (torch.float32, torch.float64) else values.float()
        self._norms.append(torch.linalg.vector_norm(exact))
        if scale is None or gradient.is_sparse:
            return
        missing = math.sqrt(scale.short)
        # g² / (√(v / c) + ε) = √c g² / (√v + ε √c), with one tensor made for it.
        quotient = scale.kept.sqrt().add_(scale.floor + _EPSILON * missing)
        torch.div(exact, quotient, out=quotient)
        self._scaled.append(torch.dot(exact.reshape(-1), quotient.reshape(-1)))
        self._factors.append(missing)

    def sums(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Plain, and as the optimizer scales them."""
        plain = scaled = torch.zeros((), dtype=torch.float64)
        if self._norms:
            plain = torch.stack(self._norms).double().square().sum()
        if self._scaled:
            factors = torch.tensor(self._factors, dtype=torch.float64).to(self._scaled[0].device, non_blocking=True)
            scaled = torch.stack(self._scaled).double().dot(factors)
        return plain, scaled


def _share(state: State, weights: torch.Tensor | None) -> torch.Tensor:
    """What this rank adds to the sum of (n_k / N)²: nothing where it has no losses, so that a replica counts once."""
    if not state.terms:
        return torch.zeros((), dtype=torch.float64)
    if weights is None:
        counted = map(state.counted, range(len(state.sizes)))
        return torch.tensor(sum((size / state.samples) ** 2 for size in counted), dtype=torch.float64)
    return (torch.stack([term.weight for term in state.terms]) / weights).square().sum()


def _observation(step: int, samples: int, row: Sequence[float]) -> StepNorms | None:
    pieces, scaled_pieces, whole, scaled_whole, share, unscaled = row
    if share > 1.0 - 1e-9:
        return None
    scaled = None if unscaled else (scaled_pieces, scaled_whole)
    return StepNorms(step=step, samples=samples, share=share, pieces=pieces, whole=whole, scaled=scaled)
