"""How a transformer is sharded over devices, and what of it a stage of the pipeline holds.

Ranks form a box: `tp` ranks share each layer, `cp` ranks each sequence, `pp` stages the stack, `dp` replicas the batch.
With experts, `ep` of the ranks that hold replicas of attention hold different experts.
"""

import functools
import itertools
from dataclasses import dataclass
from typing import Literal

from trimaran.pricing.analytical.shapes import TransformerShape
from trimaran.program.strategy import Degrees

Recomputed = Literal["layers", "attention", "feed_forward", "norms", "activations", "up_projections"]
"""What the backward computes again: whole layers; attention's probabilities; a feed-forward network between its input
and its output; outputs of norms; outputs of activation functions; up projections of latent attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Division(Degrees):
    """Parallel degrees of a transformer, and how its layers and its batch are split.

    Attributes:
        cp: ranks that share each sequence
        ep: ranks that hold different experts
        expert_tp: ranks that share each expert; None: as many as share a layer
        microbatch: sequences that one rank computes at once
        sequence_parallel: what ranks of `tp` would all hold (norms, dropout, the residual stream) is sharded too
        recomputed: what the backward computes again
        parts: layers of each part of the stack, in order, `pp * chunks` of them; empty: as even as can be
        group: microbatches that a chunk computes before the next one has its turn; 0: as many as there are stages
    """

    cp: int = 1
    ep: int = 1
    expert_tp: int | None = None
    microbatch: int = 1
    sequence_parallel: bool = False
    recomputed: frozenset[Recomputed] = frozenset()
    parts: tuple[int, ...] = ()
    group: int = 0

    @property
    def devices(self) -> int:
        """In all."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def expert_ranks(self) -> int:
        """Ranks that share each expert."""
        return self.tp if self.expert_tp is None else self.expert_tp

    @property
    def expert_data(self) -> int:
        """Replicas of each expert."""
        return max(1, self.devices // (self.pp * self.ep * self.expert_ranks))


def stage_chunks(shape: TransformerShape, division: Division, stage: int) -> tuple[range, ...]:
    """Layers of each chunk of a stage, counted from the first of the stack.

    A stage holds every `pipeline`-th part of the stack: chunk `c` of stage `p` is part `c * pipeline + p`. Layers that
    do not divide evenly go one each to the first parts.

    Example:
        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> shape = gpt_shape(layers=8, hidden=64, heads=4)
        >>> stage_chunks(shape, Division(pp=2), 1)
        (range(4, 8),)
        >>> stage_chunks(shape, Division(pp=2, chunks=2), 1)
        (range(2, 4), range(6, 8))
    """
    return _stages(shape.layers, division.pp, division.chunks, division.parts)[stage]


@functools.lru_cache(maxsize=4096)
def _stages(layers: int, pipeline: int, chunks: int, parts: tuple[int, ...]) -> tuple[tuple[range, ...], ...]:
    count = pipeline * chunks
    sizes = parts or tuple(layers // count + (part < layers % count) for part in range(count))
    ends = list(itertools.accumulate(sizes))
    whole = [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    return tuple(tuple(whole[stage::pipeline]) for stage in range(pipeline))


def passes_in_flight(division: Division, stage: int) -> tuple[int, ...]:
    """Chunk of each pass whose activations a stage holds at once, at most.

    One forward, one backward (1F1B): stage `p` of `P` runs `P - p - 1` forwards ahead and holds one more. Interleaved,
    `V` chunks a stage take turns of `G` microbatches, `G = P` if nothing else is said: `2 (P - p - 1) + (V - 1) G`
    ahead, and one more.

    Source:
        Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021,
        section 2.2.

    Example:
        >>> passes_in_flight(Division(pp=4, microbatches=8), 0)
        (0, 0, 0, 0)

        Four stages of three chunks: the last one holds 2·0 + 2·4 + 1.

        >>> passes_in_flight(Division(pp=4, chunks=3, microbatches=8), 3)
        (0, 0, 0, 0, 1, 1, 1, 1, 2)
    """
    behind = division.pp - stage - 1
    if division.pp == 1:
        return (0,)
    if division.chunks == 1:
        return (0,) * min(behind + 1, division.microbatches)
    group = division.group or division.pp
    count = min(2 * behind + (division.chunks - 1) * group + 1, division.microbatches * division.chunks)
    return tuple(index // group % division.chunks for index in range(count))
