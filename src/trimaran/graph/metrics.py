"""How `Job.metric` is computed under plans that split a batch: over the outputs and targets of all evaluation data.

So it may be any figure: F1, an area under a curve, the exponent of a mean, a maximum. Where outputs cannot be put
together, or all of them are too large to be kept, it is the mean over samples of the metrics of parts, and the trial
of a plan compares that with the metric of a whole batch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from trimaran.user_code.alone import alone

EVALUATED = 16
"""Samples of the evaluation data whose outputs are looked at."""

MOST_BYTES = 1 << 30
"""Outputs and targets of all evaluation data that are kept."""


def can_gather(made: Sequence[tuple[Any, Any]], *, samples: int | None) -> bool:
    """Whether outputs and targets of batches can be put together, and kept in host memory.

    The first dims of their tensors must be one number, that grows with the batch, as that of samples or of nodes does.

    Args:
        made: output and target of a batch, and of a smaller one
        samples: of the evaluation data; None: not known
    """
    leaves = [pytree.tree_leaves(one) for one in made]
    counts = [_common(one) for one in leaves]
    plain = all(one is None or isinstance(one, Tensor | bool | int | float) for one in leaves[0])
    if not plain or None in counts or len(set(counts)) < len(counts) or _joined(leaves) is None:
        return False
    nbytes = sum(one.nbytes for one in leaves[0] if isinstance(one, Tensor)) / max(1, counts[0] or 0)
    return nbytes * (samples or 1) <= MOST_BYTES


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

    def value(
        self, metric: Callable[[Any, Any], float], heard: Sequence[dict[Key, list[Any]]], device: str
    ) -> float | None:
        """The metric of all samples; None: this rank has no output, and does not know how they are put together.

        Where they do not fit together, as batches that are padded to their longest sample, it is the mean over parts.

        Args:
            metric: the job's
            heard: the parts of all ranks
            device: on which the metric is computed
        """
        if self._spec is None:
            return None
        every: dict[Key, list[Any]] = {}
        for parts in heard:
            every.update(parts)
        in_order = [every[key] for key in sorted(every)]
        joined = _joined(in_order)
        total, weight = 0.0, 0
        for leaves in in_order if joined is None else [joined]:
            placed = [one.to(device) if isinstance(one, Tensor) else one for one in leaves]
            samples = next((len(one) for one in placed if isinstance(one, Tensor) and one.dim()), 1)
            # As written for one process: it is given what all ranks have.
            with alone():
                total += metric(*pytree.tree_unflatten(placed, self._spec)) * samples
            weight += samples
        return total / weight
