"""How many layers each stage holds: evenly, or with fewer at the ends, where the embedding and the head are.

The output layer costs the last stage as much as `w` layers. With layers of equal cost, the least load of the slowest
stage follows from giving each layer, one after another, to the stage that has least so far. Where stages have several
chunks, chunks must be equal, but for the first and the last one, which may have one layer less (as Megatron counts the
embedding and the loss as layers).
"""

from trimaran.costs.transformers.division import Division
from trimaran.costs.transformers.shapes import TransformerShape
from trimaran.costs.transformers.stage_work import head_forward, layer_forward


def layer_parts(
    shape: TransformerShape, pipeline: int, chunks: int, *, uneven: bool = True
) -> tuple[tuple[int, ...], ...]:
    """Choices of layers for each part of the stack; the empty one stands for equal parts.

    Args:
        shape: the network
        pipeline: stages
        chunks: parts of each
        uneven: parts may differ

    Returns:
        The choices; none where the stack cannot be cut so.

    Example:
        Eight layers and a head that costs two, on two stages: 4 and 4, or 5 and 3.

        >>> from trimaran.costs.transformers.shapes import gpt_shape
        >>> layer_parts(gpt_shape(layers=8, hidden=1024, heads=16, vocabulary=24576), 2, 1)
        ((), (5, 3))
    """
    count = pipeline * chunks
    if count > shape.layers:
        return ()
    even = ((),) if shape.layers % count == 0 else ()
    if pipeline == 1 or not uneven:
        return even
    if chunks > 1:
        return even + tuple(_lighter_ends(shape.layers, count))
    weighed = _weighed(shape.layers, pipeline, head_weight(shape))
    return even if even and len(set(weighed)) == 1 else (*even, weighed)


def head_weight(shape: TransformerShape) -> float:
    """What the output layer costs, in layers."""
    whole = Division()
    layer = layer_forward(shape, whole, attention="fused", layer=shape.layers - 1)
    return head_forward(shape, whole).products / (layer.products + layer.attention)


def _lighter_ends(layers: int, count: int) -> list[tuple[int, ...]]:
    found = []
    for first, last in ((0, 1), (1, 1)):
        each, rest = divmod(layers + first + last, count)
        if rest == 0 and each > 1:
            found.append((each - first, *[each] * (count - 2), each - last))
    return found


def _weighed(layers: int, stages: int, head: float) -> tuple[int, ...]:
    counts = [1] * stages
    for _ in range(layers - stages):
        loads = [count + (head if stage == stages - 1 else 0.0) for stage, count in enumerate(counts)]
        counts[loads.index(min(loads))] += 1
    return tuple(counts)
