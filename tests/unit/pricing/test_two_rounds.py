"""What PowerSGD takes, whose buckets have two sums, on the network and by the table of `test_wire`."""

import dataclasses

import pytest
from tests import builders
from tests.builders import exact, network, table_for
from tests.graphs import parameter
from tests.unit.pricing.test_fed_step import SAMPLES
from tests.unit.pricing.test_wire import BATCH, CLUSTER, GRAPH, RANK2, coded_table, priced

from trimaran.machine.catalog import find_device
from trimaran.machine.find import find_machine
from trimaran.pricing.gradient_compression import code_program
from trimaran.pricing.program import price
from trimaran.program.lowering.lower import lower
from trimaran.program.strategy import Feeding
from trimaran.simulator.engine import simulate


def test_cores_that_workers_share_move_both_sums() -> None:
    """1 µs a byte: a rank sends P and the biases, 768 bytes, and Q, 512; half of twice that for each of two cores."""
    fed = builders.strategy(dp=2, compression=RANK2, feeding=Feeding(workers=64))

    def period_s(per_byte_s: float) -> float:
        table = coded_table(method=RANK2)
        step = dataclasses.replace(table.steps[GRAPH.digest], samples=SAMPLES)
        moved = {builders.curve_key("AR", 2): tuple((size, exact(size * per_byte_s)) for size in (1, 10**6))}
        table = dataclasses.replace(table, curves={**table.curves, **moved}, steps={GRAPH.digest: step})
        program, costs = priced(fed, table)
        assert costs.period is not None
        (loss,) = (item for item in program.ranks[0] if item.label == "loss")
        return costs.period.seconds - loss.nbytes * per_byte_s

    assert period_s(2e-6) - period_s(1e-6) == pytest.approx((768 + 512) * 1e-6)


def test_powersgd_is_measured_by_the_matrix_and_reduces_twice() -> None:
    """Two matrices in one bucket: twice the time of one. Three quarters of what follows P lie before Q."""
    strategy = builders.strategy(dp=2, compression=RANK2)
    table = coded_table(method=RANK2)
    program, costs = priced(strategy, table)
    assert costs.compute["r0/0B0"].seconds == pytest.approx(64e-3 + 2 * 4e-3)
    assert costs.decoding["r0/0AR#b0"].seconds == pytest.approx(2 * 0.5e-3)
    second = costs.second_rounds["r0/0AR#b0"]
    assert second.between.seconds == pytest.approx(2 * 1.5e-3)
    (reduce,) = (item for item in program.ranks[0] if item.label == "b0")
    # Of each matrix 2 (32 + 32) numbers, the biases as they are.
    assert reduce.nbytes == 2 * (4 * 2 * 64 + 128)
    for transfer in (costs.transfers[reduce.id], second.transfer):
        assert transfer.latency_s + transfer.flow_s == pytest.approx(10e-3)


def test_each_sum_of_powersgd_has_its_bytes() -> None:
    """1 µs a byte: P and the biases are 2 (4 · 2 · 32 + 128) bytes, Q is 2 · 4 · 2 · 32."""
    strategy = builders.strategy(dp=2, compression=RANK2)
    table = coded_table(method=RANK2)
    per_byte = tuple((size, exact(size * 1e-6)) for size in (1, 10**6))
    costs = priced(
        strategy, dataclasses.replace(table, curves={**table.curves, builders.curve_key("AR", 2): per_byte})
    )[1]
    first, second = costs.transfers["r0/0AR#b0"], costs.second_rounds["r0/0AR#b0"].transfer
    assert first.latency_s + first.flow_s == pytest.approx(768e-6)
    assert second.latency_s + second.flow_s == pytest.approx(512e-6)


def test_a_second_sum_starts_when_the_next_bucket_is_complete() -> None:
    """Each all-reduce takes 10 ms, encoding 4, what lies between two sums 1.5, decoding 0.5.

    b1 is complete 5.5 ms before the end of the backward, where the rank goes on with b0, starts Q0, and encodes b1. So
    Q0 comes 6 ms after the backward. Then come P1, what lies between, Q1, and decoding b1; b0 was decoded beside Q1:
    6 + 10 + 1.5 + 10 + 0.5.
    """
    strategy = builders.strategy(dp=2, bucket_bytes=4096, compression=RANK2)
    program, costs = priced(strategy, coded_table(method=RANK2))
    assert costs.compute["r0/0B0"].seconds == pytest.approx(64e-3 + 2 * 4e-3 + 1.5e-3)
    sums = {
        name: (one.second_sum.instruction, one.second_sum.before)
        for name, one in costs.second_rounds.items()
        if one.second_sum
    }
    assert sums == {f"r{rank}/0AR#b0": (f"r{rank}/0B0", "b1") for rank in (0, 1)}
    found = {span.instruction: span for span in simulate(program, costs).select(rank=0)}
    backward, update = found["r0/0B0"], found["r0/U"]
    assert backward.end_s - backward.start_s == pytest.approx(costs.compute["r0/0B0"].seconds)
    assert found["r0/0AR#b0"].end_s == pytest.approx(backward.end_s + 6e-3)
    assert update.start_s - backward.end_s == pytest.approx(28e-3)


def test_a_backward_stands_still_until_a_first_sum_has_come() -> None:
    """Sums of 100 ms: that of b0 starts 52 ms into the backward, whose next bucket is complete 16 ms later."""
    table = coded_table(method=RANK2)
    slow = {**table.curves, builders.curve_key("AR", 2): tuple((size, exact(100e-3)) for size in (1, 10**6))}
    program, costs = priced(
        builders.strategy(dp=2, bucket_bytes=4096, compression=RANK2), dataclasses.replace(table, curves=slow)
    )
    found = {span.instruction: span for span in simulate(program, costs).select(rank=0)}
    loss, backward = found["r0/AR#loss"], found["r0/0B0"]
    come_s = max(loss.end_s, backward.start_s + 52e-3) + 100e-3
    assert backward.end_s == pytest.approx(come_s + 5.5e-3)


def test_buckets_that_are_complete_at_once_take_turns() -> None:
    """One layer of two matrices, each a bucket. When its backward has ended (16 ms for the loss, 16 for the layer), the
    rank encodes b0 in 4 ms, waits 10 for P0, goes on with it in 1.5, and encodes b1 in 4.
    """
    graph = network(1)
    matrices = tuple(parameter(one.name, 4096, shape=(32, 32)) for one in graph.parameters)
    graph = dataclasses.replace(graph, parameters=matrices)
    strategy = builders.strategy(dp=2, bucket_bytes=4096, compression=RANK2)
    program = lower(graph, strategy, batch=BATCH)
    table = dataclasses.replace(table_for(graph), curves=coded_table(method=RANK2).curves, interference={})
    costs = price(program, graph, strategy, table, CLUSTER, batch=BATCH)
    found = {span.instruction: span for span in simulate(program, costs).select(rank=0)}
    backward = found["r0/0B0"]
    assert backward.end_s - backward.start_s == pytest.approx(32e-3 + 4e-3 + 10e-3 + 1.5e-3 + 4e-3)


def test_on_a_gpu_powersgd_goes_over_its_matrices_eight_times() -> None:
    """P takes 16 bytes of a number: gradient and error are added (12), and read (4).

    What follows takes 16 too: 4 for Q, 8 for the error, and after the second sum 4 for P Qᵀ.

    Two matrices of 4,096 bytes: 2 launches each, then 4, and 2 a column.
    """
    device = find_device("v100-16gb")
    machine = find_machine("dgx1-v100").allocate(2)
    strategy = builders.strategy(dp=2, compression=RANK2)
    program = lower(GRAPH, strategy, batch=BATCH)
    coding = code_program(program, GRAPH, strategy, coded_table(method=RANK2), machine)["r0/0AR#b0"]
    assert coding.between is not None
    pass_s = 2 * 4096 / (device.bandwidth.bytes_per_s * device.bandwidth.fraction)
    assert coding.encode.seconds == pytest.approx(4 * pass_s + 2 * 2 * device.launch.seconds)
    after_s = 4 * pass_s + 2 * (4 + 2 * 2) * device.launch.seconds
    assert coding.between.seconds == pytest.approx(0.75 * after_s)
    assert coding.decode.seconds == pytest.approx(0.25 * after_s)
