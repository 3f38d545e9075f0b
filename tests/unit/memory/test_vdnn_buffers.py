"""The paper's accounting, by hand: conv1 (x → a), relu (a in place), conv2 (a → b), pool (b → c), dense (c → d).

Maps: x 10, a 40, b 20, c 5, d 1 bytes. Steps of the forward 0–4, of the backward 5–9 (dense, pool, conv2, relu, conv1).
"""

import numpy
import pytest

from trimaran.memory.vdnn import LayerKind, Offload
from trimaran_studies.reproduce.vdnn_accounting import Buffers, PaperLayer, PaperNetwork, baseline, virtualized

X, A, B, C, D = range(5)


def layer(kind: LayerKind, inputs: int, output: int, **more: bool) -> PaperLayer:
    return PaperLayer(name=kind, kind=kind, inputs=(inputs,), output=output, forward_s=1.0, backward_s=2.0, **more)


NETWORK = PaperNetwork(
    layers=(
        layer(LayerKind.CONVOLUTION, X, A),
        layer(LayerKind.ACTIVATION, A, A),
        layer(LayerKind.CONVOLUTION, A, B),
        layer(LayerKind.POOLING, B, C),
        layer(LayerKind.LINEAR, C, D, classifies=True),
    ),
    map_bytes={X: 10, A: 40, B: 20, C: 5, D: 1},
    weight_bytes=7,
)


def policy(offload: Offload, rate: float = 1e9) -> Buffers:
    return virtualized(NETWORK, offload, to_host_bytes_per_s=rate, to_device_bytes_per_s=rate)


def test_baseline_holds_every_map_two_largest_gradients_and_weights_twice():
    """10 + 40 + 20 + 5 + 1 + 2 · 40 = 156, and 2 · 7."""
    found = baseline(NETWORK)
    assert found.peak_bytes == 156 + 14
    assert found.mean_without_weights_bytes == 156
    assert found.mean_bytes == found.peak_bytes


def test_maps_of_the_backward():
    """conv1 and conv2 read their X, pool its X and Y, relu its Y, dense its X; nobody reads d."""
    assert NETWORK.lives == {X: (0, 9), A: (0, 8), B: (2, 6), C: (3, 6), D: (4, 4)}


def test_gradients_live_from_the_reader_to_the_maker():
    assert NETWORK.gradients == {A: (7, 9), B: (6, 7), C: (5, 6), D: (5, 5)}


def test_nothing_offloaded_but_allocated_layer_by_layer():
    """Forward: x a; x a; x a b; x a b c; x a b c d. Backward: + dc dd; + db dc; (b, c gone) + da db; + da; x + da."""
    steps = [50, 50, 70, 75, 76, 75 + 5 + 1, 75 + 20 + 5, 50 + 40 + 20, 50 + 40, 10 + 40]
    assert policy(Offload.NONE).steps_bytes.tolist() == steps


def test_offloading_every_x():
    """x leaves in step 0, a in 2, b in 3; dense keeps c. Dense fetches b (5), pool a (6), conv2 x (7)."""
    steps = [
        50,  # x a
        40,  # a
        60,  # a b
        25,  # b c
        6,  # c d
        5 + 20 + 6,  # c, b on its way, dc dd
        5 + 20 + 40 + 25,  # c b, a on its way, db dc
        40 + 10 + 60,  # a, x on its way, da db
        40 + 10 + 40,  # a x, da
        10 + 40,  # x, da
    ]
    assert policy(Offload.ALL).steps_bytes.tolist() == steps


def test_offloading_the_x_of_convolutions_keeps_the_map_of_the_pooling():
    """b stays, so dense looks past the pool to conv2 and fetches a already."""
    found = policy(Offload.CONV).steps_bytes
    assert found[4] == 20 + 5 + 1
    assert found[5] == 20 + 5 + 40 + 5 + 1


def test_layers_wait_for_copies_that_take_longer():
    """10 bytes/s: forward max(1, 1), 1, max(1, 4), max(1, 2), 1; backward max(2, 2), max(2, 4), max(2, 1), 2, 2."""
    assert policy(Offload.ALL, rate=10.0).seconds.tolist() == [1, 1, 4, 2, 1, 2, 4, 2, 2, 2]


def test_what_a_layer_fetches_for_itself_comes_before_its_operations():
    """With no layer behind it, the pool is the first of the backward: 2 s of its own fetch, then a's 4 s beside it."""
    short = PaperNetwork(layers=NETWORK.layers[:4], map_bytes=NETWORK.map_bytes, weight_bytes=0)
    found = virtualized(short, Offload.ALL, to_host_bytes_per_s=10.0, to_device_bytes_per_s=10.0)
    assert found.seconds[4] == 6.0


def test_means_are_over_time():
    found = Buffers(steps_bytes=numpy.array([10, 20]), seconds=numpy.array([3.0, 1.0]), weight_bytes=1)
    assert found.mean_without_weights_bytes == pytest.approx(12.5)
    assert found.mean_bytes == pytest.approx(13.5)
    assert found.step_time_s == 4.0
