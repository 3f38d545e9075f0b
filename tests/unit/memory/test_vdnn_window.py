"""The paper's search for the layer to prefetch, on rows of layers small enough to follow by eye."""

from trimaran.memory.vdnn import find_prefetch_layer, prefetch_order

# VGG's beginning: conv relu conv relu pool conv relu
VGG = (True, False, True, False, False, True, False)


def find(layer: int, offloaded: set[int], prefetched: set[int]) -> int | None:
    return find_prefetch_layer(layer, offloaded=offloaded, prefetched=prefetched, convolutions=VGG)


def test_the_nearest_earlier_layer_is_found():
    assert find(5, {0, 2, 4, 5}, {5}) == 4


def test_a_layer_that_was_asked_for_is_passed_over_unless_it_is_a_convolution():
    assert find(5, {0, 2, 4, 5}, {4, 5}) == 2


def test_the_window_ends_at_a_convolution_that_was_fetched():
    assert find(3, {0, 2, 4, 5}, {2, 4, 5}) is None


def test_the_window_ends_at_a_convolution_that_was_never_offloaded():
    assert find(5, {0}, set()) is None


def test_a_convolution_inside_the_window_is_found_itself():
    assert find(5, {0, 2}, set()) == 2


def test_the_first_layer_finds_nothing():
    assert find(0, {0, 2}, {0, 2}) is None


def test_order_of_all_on_vgg():
    """6 relu fetches 5, 5 conv fetches 4, 4 pool fetches 2, 3 relu sees conv 2 fetched: nothing, 2 fetches 0."""
    order = prefetch_order(range(6, -1, -1), offloaded={0, 2, 4, 5}, convolutions=VGG)
    assert order == ((6, 5), (5, 4), (4, 2), (2, 0))


def test_order_of_conv_on_vgg():
    """The pool keeps its map, so conv 5 looks through it to conv 2, and the pool finds that one fetched."""
    order = prefetch_order(range(6, -1, -1), offloaded={0, 2, 5}, convolutions=VGG)
    assert order == ((6, 5), (5, 2), (2, 0))


def test_a_layer_that_no_one_fetched_for_fetches_its_own():
    order = prefetch_order(range(5, -1, -1), offloaded={2, 5}, convolutions=VGG)
    assert order == ((5, 5), (5, 2))


def test_every_offloaded_layer_is_fetched_once_and_not_after_its_own_backward():
    order = prefetch_order(range(6, -1, -1), offloaded={0, 2, 3, 4, 5, 6}, convolutions=VGG)
    assert sorted(found for _, found in order) == [0, 2, 3, 4, 5, 6]
    assert all(found <= layer for layer, found in order)
