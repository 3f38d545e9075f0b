"""What `Job.metric` is of the parts of a batch: a mean over samples adds up, another figure does not.

F1, an area under a curve, the exponent of a mean, a count or a maximum of a batch is not the mean of those of its
parts. A metric is tried on outputs of the model, on some that are moved and exchanged at random, and on some that are
mostly right: at random weights a network may guess one class for all, and of that F1 is 0, as a mean would be. The
same holds where no sample that is read has a rare class: where outputs can be kept, it is tried with other labels, too.

One that is no mean is computed once, over the outputs and targets of all evaluation data, which `Outputs` keeps. For
that the first dims of all tensors must count the samples.
"""

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from trimaran.base.errors import InputError
from trimaran.base.user_errors import attempted
from trimaran.graph.behaviour import Metric

TRIED = 16
"""Samples of a batch on which a metric is tried."""

SECONDS = 0.5
"""After this a metric is tried no further [s of this process]."""

MOST_BYTES = 1 << 30
"""Outputs and targets of all evaluation data that are kept for a metric that is no mean."""

_ROUNDED = 1e-4
"""A difference that is rounding, of the largest value: a metric may compute in fp32."""


def kind_of_metric(
    metric: Callable[[Any, Any], float], whole: tuple[Any, Any], parts: Sequence[tuple[Any, Any]], sizes: Sequence[int],
    *, samples: int | None, chooses: bool = False,
) -> Metric:  # fmt: skip
    """Whether a metric is a mean over samples; if not, whether it can be computed over all of them.

    A mean of parts that are weighed by their samples is none where samples are left out of some.

    Args:
        metric: the job's
        whole: output and target of a batch
        parts: those of its parts, each computed by itself
        sizes: samples of the parts
        samples: of the evaluation data; None: not known
        chooses: `Job.collate` may leave out samples
    """
    left = [_common(pytree.tree_leaves(one)) for one in (whole, *parts)]
    rest = [one for one in left[1:] if one is not None]
    lacks = None not in left and left[0] == sum(rest) < sum(sizes)
    if lacks:
        sizes = rest
    count = sum(sizes)
    leaves, spec = pytree.tree_flatten(whole)
    joined = _joined([pytree.tree_leaves(one) for one in parts])
    sliceable = _counts(leaves, count) and joined is not None and len(joined) == len(leaves)
    nbytes = sum(one.numel() * one.element_size() for one in leaves if isinstance(one, Tensor)) / max(1, count)
    keeps = sliceable and nbytes * (samples or 1) <= MOST_BYTES
    if lacks or (chooses and keeps):
        return "whole" if keeps else "parts"
    found = _same(_value(metric, *whole), _mean(metric, parts, sizes))
    if found and sliceable:
        started_s = time.process_time()
        for tried in _tried(leaves, len(pytree.tree_leaves(whole[0])), count, relabels=keeps):
            found = found and all(_adds_up(metric, tried, spec, split) for split in _splits(count))
            if not found or time.process_time() - started_s > SECONDS:
                break
    if found:
        return "mean"
    return "whole" if keeps else "parts"


def _splits(count: int) -> list[list[int]]:
    return [[size for size in sizes if size] for sizes in ([count - count // 3, count // 3], [1, count - 1])]


def _tried(leaves: list[Any], outputs: int, count: int, *, relabels: bool) -> Iterator[list[Any]]:
    """Outputs and targets: as they are, moved, exchanged, mostly right; with other labels, too."""
    generator = torch.Generator().manual_seed(0)
    made, targets = leaves[:outputs], leaves[outputs:]
    yield leaves
    for labels in (targets, [_relabelled(one, made, generator) for one in targets]) if relabels else (targets,):
        for scale in (1.0, 10.0):
            yield [_moved(one, scale, generator) for one in made] + labels
        order = torch.randperm(count, generator=generator)
        yield [one[order] if isinstance(one, Tensor) else one for one in made] + labels
        for share in (2, 4):
            yield [_right(one, labels, count // share, generator) for one in made] + labels


def _relabelled(target: Any, outputs: list[Any], generator: torch.Generator) -> Any:
    """Labels of any of the classes of the outputs, or of two; what is ignored, and other targets, stay."""
    if not isinstance(target, Tensor) or target.is_complex() or not target.numel():
        return target
    classes = 2 if bool(((target == 0) | (target == 1)).all()) else 0
    for one in outputs if not target.is_floating_point() else ():
        if isinstance(one, Tensor) and one.dim() == target.dim() + 1:
            for dim in (1, -1):
                if target.shape == one.shape[:dim] + one.shape[dim:][1:]:
                    classes = one.shape[dim]
    if not classes or target.max() >= classes:
        return target
    drawn = torch.randint(classes, target.shape, generator=generator).to(target)
    return torch.where(target < 0, target, drawn)


def _moved(one: Any, scale: float, generator: torch.Generator) -> Any:
    if not isinstance(one, Tensor) or not one.is_floating_point():
        return one
    noise = torch.randn(one.shape, generator=generator, dtype=torch.float64).to(one)
    return one + scale * (float(one.std()) if one.numel() > 1 else 1.0) * noise


def _right(one: Any, targets: list[Any], wrong: int, generator: torch.Generator) -> Any:
    """Scores by which the class of each target is guessed, but for some samples; other outputs are moved."""
    moved = _moved(one, 1.0, generator)
    for target in targets:
        if isinstance(moved, Tensor) and moved.is_floating_point() and isinstance(target, Tensor):
            classes = moved.shape[-1] if moved.dim() else 0
            labels = not target.is_floating_point() and not target.is_complex()
            if labels and moved.shape[:-1] == target.shape and classes and int(target.max()) < classes:
                hot = torch.nn.functional.one_hot(target.long().clamp(min=0), classes).to(moved)
                hot[:wrong] = 0
                return moved + 10 * float(moved.abs().max()) * hot
    return moved


def _adds_up(metric: Callable[[Any, Any], float], leaves: list[Any], spec: Any, sizes: Sequence[int]) -> bool:
    whole = pytree.tree_unflatten([_copied(one) for one in leaves], spec)
    expected = _value(metric, *whole)
    if not math.isfinite(expected):
        return True  # such values cannot be there
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    parts = [
        pytree.tree_unflatten([_copied(one, end - size, end) for one in leaves], spec)
        for end, size in zip(ends, sizes, strict=True)
    ]
    return _same(expected, _mean(metric, parts, sizes))


def _copied(one: Any, start: int = 0, stop: int | None = None) -> Any:
    return one[start:stop].clone() if isinstance(one, Tensor) else one


def _value(metric: Callable[[Any, Any], float], output: Any, target: Any) -> float:
    # It may fail where a part has samples of one class only.
    return attempted("Job.metric", lambda: float(metric(output, target)), math.nan, metric)


def _mean(metric: Callable[[Any, Any], float], parts: Sequence[tuple[Any, Any]], sizes: Sequence[int]) -> float:
    return math.fsum(_value(metric, *one) * size for one, size in zip(parts, sizes, strict=True)) / sum(sizes)


def _same(one: float, other: float) -> bool:
    """Whether two values are equal, but for rounding; both may be no number."""
    return (one != one and other != other) or abs(one - other) <= _ROUNDED * max(abs(one), 1e-6)


def _counts(leaves: Sequence[Any], samples: int) -> bool:
    """Whether all are tensors whose first dims count the samples, or plain values."""
    return all(
        one.dim() > 0 and one.shape[0] == samples if isinstance(one, Tensor)
        else one is None or isinstance(one, bool | int | float)
        for one in leaves
    )  # fmt: skip


def _common(leaves: Sequence[Any]) -> int | None:
    """The first dim that all tensors have; None: they differ."""
    sizes = {one.shape[0] if one.dim() else -1 for one in leaves if isinstance(one, Tensor)}
    return sizes.pop() if len(sizes) == 1 and min(sizes) >= 0 else None


def _joined(parts: Sequence[Sequence[Any]]) -> list[Any] | None:
    """The tensors of parts, one after the other; None: they do not fit together."""
    try:
        return [torch.cat(one) if isinstance(one[0], Tensor) else one[0] for one in zip(*parts, strict=True)]
    except (RuntimeError, TypeError, ValueError):
        return None


Key = tuple[int, ...]


class Outputs:
    """Outputs and targets of an evaluation, as microbatches give them, in host memory."""

    def __init__(self) -> None:
        self.parts: dict[Key, list[Any]] = {}
        self._spec: Any = None

    def add(self, key: Key, output: Any, target: Any) -> None:
        """Keep those of a microbatch.

        Args:
            key: by which microbatches are in order
            output: of the model
            target: what the metric is given with it
        """
        leaves, self._spec = pytree.tree_flatten((output, target))
        self.parts[key] = [one.detach().cpu().clone() if isinstance(one, Tensor) else one for one in leaves]

    def value(self, metric: Callable[[Any, Any], float], heard: Sequence[dict[Key, list[Any]]]) -> float | None:
        """The metric of all samples; None: this rank has no output, and does not know how they are put together.

        Args:
            metric: the job's
            heard: the parts of all ranks

        Raises:
            InputError: they do not fit together
        """
        if self._spec is None:
            return None
        every: dict[Key, list[Any]] = {}
        for parts in heard:
            every.update(parts)
        leaves = _joined([every[key] for key in sorted(every)])
        if leaves is None:
            raise InputError(
                "Job.metric is no mean over samples, and outputs or targets of the evaluation data have other shapes "
                "from batch to batch, so that it cannot be computed over all of them: pad them to one size, or let the "
                "metric be a mean over samples",
                code="metric.shapes-differ",
            )
        return metric(*pytree.tree_unflatten(leaves, self._spec))


def copied_metric(metric: Callable[[Any, Any], float]) -> Callable[[Any, Any], float]:
    """A copy of a metric, to try it: one that is an object may keep something of each call."""
    return attempted("a copy of Job.metric", lambda: copy.deepcopy(metric), metric, metric)
