"""The paper's static policies on a step made by hand: conv1, relu in place, conv2, pool, loss.

    moment  0      1      2      3      4      5      6      7      8      9     10 ...
    event   pack x conv1  relu_  pack a pack a conv2  pack b pool   pack i loss  unpacks
            conv1         relu          conv2         pool          pool

The backward: unpack b 10, unpack i 11, op 12 (pool); unpack a 13, op 14 (conv2); unpack a 15, op 16 (relu); unpack x
17, op 18 (conv1).
"""

from dataclasses import replace

import pytest
from tests.unit.memory.traces import TraceMaker

from trimaran.graph.trace.types import Role, StepTrace
from trimaran.graph.types import Phase
from trimaran.memory.vdnn import LayerKind, Offload, backward_order, layers_of, vdnn_all, vdnn_conv, vdnn_dyn, vdnn_plan
from trimaran.pricing.offload_costs import measured_costs
from trimaran.program.memory import KEEP_ALL
from trimaran.simulator.memory import live_bytes, simulate_memory

MIB = 2**20
X, A, B, C = range(4)


def small_net(*, held: bool = False) -> StepTrace:
    maker = TraceMaker()
    x = maker.make(10 * MIB, Role.INPUT, before=True)
    maker.pack(x)
    a = maker.make(40 * MIB)
    maker.op([x], [a], 1.0, name="aten.convolution.default", module="conv1")
    if not held:
        maker.drop(x)
    maker.op([a], [a], 0.1, name="aten.relu_.default", module="relu")
    maker.pack(a)
    maker.pack(a)
    maker.drop(a)
    b = maker.make(20 * MIB)
    maker.op([a], [b], 1.0, name="aten.convolution.default", module="conv2")
    maker.pack(b)
    c, i = maker.make(5 * MIB), maker.make(5 * MIB)
    maker.op([b], [c, i], 0.1, name="aten.max_pool2d_with_indices.default", module="pool")
    maker.drop(b)
    maker.pack(i)
    maker.drop(i)
    maker.op([c], [maker.make(1)], 0.1, name="aten.mean.default")
    maker.drop(c)
    for packs, read in (((3, 4), b), ((2,), a), ((1,), a), ((0,), x)):
        for pack in packs:
            maker.unpack(pack)
        maker.op([read], [maker.make(1)], 0.2, phase=Phase.BACKWARD)
    return maker.trace()


def tokens(plan) -> list[str]:
    return [step.token for step in plan.steps]


def test_layers_are_runs_of_modules_with_their_maps():
    layers = layers_of(small_net())
    assert [layer.name for layer in layers] == ["conv1", "relu", "conv2", "pool", ""]
    assert [layer.kind for layer in layers] == [
        LayerKind.CONVOLUTION,
        LayerKind.ACTIVATION,
        LayerKind.CONVOLUTION,
        LayerKind.POOLING,
        LayerKind.OTHER,
    ]
    assert [layer.inputs for layer in layers] == [(X,), (A,), (A,), (B,), (C,)]
    assert [layer.outputs for layer in layers] == [(A,), (A,), (B,), (C,), ()]


def test_a_result_that_two_operations_pack_belongs_first_to_the_one_that_saves_it():
    assert [layer.packs for layer in layers_of(small_net())] == [(0,), (1,), (2,), (3, 4), ()]


def test_all_sends_each_map_while_its_last_reader_computes_and_waits_at_that_layers_end():
    """b leaves at 6 and is back at 10, at the turn of the step; i would only leave once it is fetched: it stays."""
    assert tokens(vdnn_all(small_net())) == [
        "0:OFF0",
        "3:DEL0",
        "4:OFF1",
        "6:DEL1",
        "6:OFF2",
        "8:DEL2",
        "10:PRE2",
        "10:PRE1",
        "13:PRE0",
    ]


def test_conv_sends_only_the_maps_that_convolutions_read():
    """The pool's backward (10) finds conv2's map, whose search finds conv1's (13)."""
    assert tokens(vdnn_conv(small_net())) == ["0:OFF0", "3:DEL0", "4:OFF1", "6:DEL1", "10:PRE1", "13:PRE0"]


def test_the_end_of_the_layer_waits_for_what_it_fetched():
    """x is fetched in the backward of conv2 (13), which ends where relu's begins (15); it is used at 17.

    a is fetched in the backward of the pool and used where that ends (13): nothing to add.
    """
    assert vdnn_all(small_net()).waits == {X: 15}


def test_an_early_wait_costs_time():
    """1 MiB/s back: x takes 10 s from the beginning of conv2's backward, of which 0.2 s are hidden with the wait at its
    end, and 0.4 s without it. Copies to the host and that of a, 40 s, cost the same both times.
    """
    trace = small_net()
    plan = vdnn_all(trace)
    costs = measured_costs(trace, to_host_bytes_per_s=MIB, to_device_bytes_per_s=MIB)
    early, late = (simulate_memory(trace, one, costs).step_time_s for one in (plan, replace(plan, waits={})))
    assert early - late == pytest.approx(0.2)


def test_the_backward_goes_through_the_layers_as_autograd_unpacks():
    trace = small_net()
    order, starts = backward_order(trace, layers_of(trace))
    assert order == [4, 3, 2, 1, 0]
    assert starts == {4: 10, 3: 10, 2: 13, 1: 15, 0: 17}


def test_a_map_that_two_layers_read_leaves_with_the_later_one():
    maker = TraceMaker()
    x = maker.make(10 * MIB, before=True)
    maker.pack(x)
    maker.op([x], [maker.make(MIB)], 1.0, name="aten.convolution.default", module="left")
    maker.pack(x)
    maker.op([x], [maker.make(MIB)], 1.0, name="aten.convolution.default", module="right")
    maker.drop(x)
    end = maker.make(MIB)
    maker.pack(end)
    maker.op([end], [maker.make(1)], 0.1, module="join")
    for pack in (2, 1, 0):
        maker.unpack(pack)
        maker.op([], [maker.make(1)], 0.1, phase=Phase.BACKWARD)
    assert tokens(vdnn_conv(maker.trace()))[:2] == ["2:OFF0", "4:DEL0"]


def test_what_the_caller_holds_stays():
    assert X not in vdnn_all(small_net(held=True)).moved


def test_none_keeps_everything():
    assert vdnn_plan(small_net(), Offload.NONE) is KEEP_ALL


def test_dense_layers_behind_the_last_convolution_keep_what_they_read():
    maker = TraceMaker()
    x = maker.make(10 * MIB, before=True)
    maker.pack(x)
    a = maker.make(10 * MIB)
    maker.op([x], [a], 1.0, name="aten.convolution.default", module="conv")
    maker.drop(x)
    maker.pack(a)
    b = maker.make(MIB)
    maker.op([a], [b], 1.0, name="aten.addmm.default", module="dense")
    maker.pack(b)
    maker.op([b], [maker.make(1)], 1.0, name="aten.addmm.default", module="dense2")
    for pack in (2, 1, 0):
        maker.unpack(pack)
        maker.op([], [maker.make(1)], 0.1, phase=Phase.BACKWARD)
    assert vdnn_all(maker.trace()).moved == (x,)


def test_dynamic_takes_the_first_that_fits():
    trace = small_net()
    kept, conv = (live_bytes(trace, plan).peak for plan in (KEEP_ALL, vdnn_conv(trace)))
    assert conv < kept
    assert vdnn_dyn(trace, budget_bytes=kept).moved == ()
    assert vdnn_dyn(trace, budget_bytes=kept - 1).moved == vdnn_conv(trace).moved
