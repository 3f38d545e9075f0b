"""What a rank knows in the middle of a step."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from trimaran.runtime.losses import LossTerm


@dataclass(slots=True, kw_only=True)
class State:
    """One step, or the evaluation of one batch, under way on one rank.

    Attributes:
        number: of the step
        samples: of the global batch
        sizes: samples of each microbatch of this replica; 0: it is left out, by all ranks
        source: gives a microbatch
        completing: microbatch whose backward completes the gradients
        batches: microbatches that were loaded
        received: for each microbatch, the tensors of other segments, by name
        made: for each microbatch, the tensors for other segments, by name
        arrived: for each microbatch, the gradients of what was made, by name; one a consumer
        returning: for each microbatch, the gradients of what was received, by name
        roots: for each microbatch, the loss from which its backward starts; on the last stage
        terms: what the microbatches add to the loss; on the last stage
        metrics: metric and samples of each microbatch; on the last stage
        mean: sum and weight of losses or metrics over all ranks, when it is known
        fetched: gives `mean` to the host, where it is on its way there
        norm: global norm of the gradients, squared, when it is known
        gradients_ready: the gradients are those of the global batch
    """

    number: int
    samples: int
    sizes: tuple[int, ...]
    source: Callable[[int], Any]
    completing: int | None = None
    batches: dict[int, Any] = field(default_factory=dict)
    received: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    made: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    arrived: dict[int, dict[str, list[torch.Tensor]]] = field(default_factory=dict)
    returning: dict[int, dict[str, torch.Tensor | None]] = field(default_factory=dict)
    roots: dict[int, torch.Tensor] = field(default_factory=dict)
    terms: list[LossTerm] = field(default_factory=list)
    metrics: list[tuple[float, int]] = field(default_factory=list)
    mean: torch.Tensor | None = None
    fetched: Callable[[], list[float]] | None = None
    norm: torch.Tensor | None = None
    gradients_ready: bool = False
