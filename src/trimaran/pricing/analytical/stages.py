"""How a transformer is sharded over devices, and which layers a stage of the pipeline holds.

Ranks form a box: `tp` ranks share each layer, `cp` ranks each sequence, `pp` stages the stack, `dp` replicas the batch.
With experts, `ep` of the ranks that hold replicas of attention hold different experts.
"""

import functools
import itertools

from trimaran.pricing.analytical.shapes import TransformerShape
from trimaran.program.strategy import Degrees


def stage_chunks(shape: TransformerShape, degrees: Degrees, stage: int) -> tuple[range, ...]:
    """Layers of each chunk of a stage, counted from the first of the stack.

    A stage holds every `pipeline`-th part of the stack: chunk `c` of stage `p` is part `c * pipeline + p`. Layers that
    do not divide evenly go one each to the first parts.

    Example:
        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> shape = gpt_shape(layers=8, hidden=64, heads=4)
        >>> stage_chunks(shape, Degrees(pp=2), 1)
        (range(4, 8),)
        >>> stage_chunks(shape, Degrees(pp=2, chunks=2), 1)
        (range(2, 4), range(6, 8))
    """
    return _stages(shape.layers, degrees.pp, degrees.chunks, degrees.segment_layers)[stage]


@functools.lru_cache(maxsize=4096)
def _stages(layers: int, pipeline: int, chunks: int, parts: tuple[int, ...]) -> tuple[tuple[range, ...], ...]:
    count = pipeline * chunks
    sizes = parts or tuple(layers // count + (part < layers % count) for part in range(count))
    ends = list(itertools.accumulate(sizes))
    whole = [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    return tuple(tuple(whole[stage::pipeline]) for stage in range(pipeline))


def passes_in_flight(degrees: Degrees, stage: int) -> tuple[int, ...]:
    """Chunk of each pass whose activations a stage holds at once, at most.

    One forward, one backward (1F1B): stage `p` of `P` runs `P - p - 1` forwards ahead and holds one more. Interleaved,
    `V` chunks a stage alternate every `G` microbatches, `G = P` if nothing else is said: `2 (P - p - 1) + (V - 1) G`
    ahead, and one more.

    Source:
        Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021,
        section 2.2.

    Example:
        >>> passes_in_flight(Degrees(pp=4, microbatches=8), 0)
        (0, 0, 0, 0)

        Four stages of three chunks: the last one holds 2·0 + 2·4 + 1.

        >>> passes_in_flight(Degrees(pp=4, chunks=3, microbatches=8), 3)
        (0, 0, 0, 0, 1, 1, 1, 1, 2)
    """
    behind = degrees.pp - stage - 1
    if degrees.pp == 1:
        return (0,)
    if degrees.chunks == 1:
        return (0,) * min(behind + 1, degrees.microbatches)
    group = degrees.microbatch_group or degrees.pp
    count = min(2 * behind + (degrees.chunks - 1) * group + 1, degrees.microbatches * degrees.chunks)
    return tuple(index // group % degrees.chunks for index in range(count))
