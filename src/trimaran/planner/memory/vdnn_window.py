"""When the vDNN paper prefetches: the search for a layer, made once at each layer of the backward.

    backward of layer     4 (conv)    3 (pool)    2 (relu)    1 (conv)
    search finds          3           1           nothing     ...
    fetched by the end    X of 3      X of 1

The search goes back from the layer and takes the nearest one whose maps are on the host and not asked for yet. It ends
at the next convolution, fetched or not, so that nothing is fetched much earlier than it is used. One search starts the
copies of one layer; the end of the layer in whose backward they run waits for them.

Source:
    Rhu et al., MICRO 2016, section III-B and the figure with `findPrefetchLayer`.
"""

from collections.abc import Sequence, Set


def find_prefetch_layer(
    layer: int, *, offloaded: Set[int], prefetched: Set[int], convolutions: Sequence[bool]
) -> int | None:
    """The layer whose maps are to be fetched during the backward of a layer.

    Args:
        layer: whose backward begins
        offloaded: layers whose maps went to the host
        prefetched: those of them that were asked for already
        convolutions: by layer, whether it is a convolution

    Returns:
        Number of the layer, or None if the window holds none.

    Example:
        >>> layers = [True, False, True, False]  # conv, relu, conv, pool
        >>> find_prefetch_layer(3, offloaded={0, 2, 3}, prefetched={3}, convolutions=layers)
        2
        >>> find_prefetch_layer(3, offloaded={0, 2, 3}, prefetched={2, 3}, convolutions=layers) is None
        True
    """
    for earlier in range(layer - 1, -1, -1):
        if earlier in offloaded and earlier not in prefetched:
            return earlier
        if convolutions[earlier]:
            return None
    return None


def prefetch_order(
    backward: Sequence[int], *, offloaded: Set[int], convolutions: Sequence[bool]
) -> tuple[tuple[int, int], ...]:
    """What each layer of the backward fetches.

    Args:
        backward: layers in the order of the backward
        offloaded: layers whose maps went to the host
        convolutions: by layer, whether it is a convolution

    Returns:
        Pairs (layer of the backward, layer whose maps it fetches), in order. A layer whose own maps no one fetched by
        its beginning fetches them itself, first: (n, n).
    """
    prefetched: set[int] = set()
    order = []
    for layer in backward:
        if layer in offloaded and layer not in prefetched:
            prefetched.add(layer)
            order.append((layer, layer))
        found = find_prefetch_layer(layer, offloaded=offloaded, prefetched=prefetched, convolutions=convolutions)
        if found is not None:
            prefetched.add(found)
            order.append((layer, found))
    return tuple(order)
