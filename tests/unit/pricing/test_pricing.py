"""Operations of network(4) take (1, 2, 3, 4, 1) ms a sample forward, twice that backward; see tests/builders.py."""

import dataclasses

import pytest
from tests import builders
from tests.builders import exact, network, table_for
from tests.graphs import boundaries, lower_order
from tests.raising import raises

from trimaran.base.timeline import COMPUTE
from trimaran.pricing.program import microbatch_size, price
from trimaran.pricing.transfers import HOST_COLLECTIVE, QUEUED
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.lowering.schedules import Compute
from trimaran.program.types import Instruction, Kind, Program
from trimaran.report.breakdown import Source, break_down
from trimaran.simulator.engine import simulate

GRAPH = network(4)
TABLE = table_for(GRAPH)
TWO = builders.strategy(pp=2, boundaries=("op1",))


def test_every_instruction_of_a_step_gets_a_cost() -> None:
    """One device, batch 8: forward 88 ms, backward 176 ms, load 1 ms, update 1 + 8 * 0.1 + 192 B * 1 µs = 1.992 ms."""
    costs = price(
        lower(GRAPH, builders.strategy(), batch=8), GRAPH, builders.strategy(), TABLE, builders.cluster(1), batch=8
    )
    seconds = {name: cost.seconds for name, cost in costs.compute.items()}
    assert seconds == pytest.approx({"r0/IN0": 1e-3, "r0/0F0": 0.088, "r0/0B0": 0.176, "r0/U": 1.992e-3})


def test_one_device_takes_the_serial_sum() -> None:
    """The simulator adds 1 + 88 + 176 + 1.992 ms."""
    program = lower(GRAPH, builders.strategy(), batch=8)
    costs = price(program, GRAPH, builders.strategy(), TABLE, builders.cluster(1), batch=8)
    assert simulate(program, costs).makespan_s == pytest.approx(0.266992)


def test_stages_are_priced_at_the_size_of_a_microbatch() -> None:
    """2 microbatches of 4 samples: stage 0 has (1 + 2) * 4 = 12 ms, stage 1 (3 + 4 + 1) * 4 = 32 ms."""
    strategy = dataclasses.replace(TWO, microbatches=2)
    costs = price(lower(GRAPH, strategy, batch=8), GRAPH, strategy, TABLE, builders.cluster(2), batch=8)
    assert costs.compute["r0/0F1"].seconds == pytest.approx(0.012)
    assert costs.compute["r1/1B0"].seconds == pytest.approx(0.064)


def test_a_batch_size_between_measured_ones_is_interpolated_and_says_so() -> None:
    """6 samples: 11 ms a sample."""
    costs = price(
        lower(GRAPH, builders.strategy(), batch=6), GRAPH, builders.strategy(), TABLE, builders.cluster(1), batch=6
    )
    assert costs.compute["r0/0F0"].seconds == pytest.approx(0.066)
    assert costs.compute["r0/0F0"].source.startswith("interpolated")


def test_a_bucket_is_complete_when_the_backward_has_passed_its_last_operation() -> None:
    """Buckets of 96 B hold two layers each: complete after op2 (8 + 32 + 24 of 88) and after op0 (all)."""
    strategy = builders.strategy(dp=2, bucket_bytes=96)
    costs = price(lower(GRAPH, strategy, batch=16), GRAPH, strategy, TABLE, builders.cluster(2), batch=16)
    assert costs.marks["r0/0B0", "b0"] == pytest.approx((8 + 32 + 24) / 88)
    assert costs.marks["r1/0B0", "b1"] == pytest.approx(1.0)


def test_both_ends_of_every_transfer_have_equal_costs() -> None:
    strategy = dataclasses.replace(TWO, microbatches=2)
    program = lower(GRAPH, strategy, batch=8)
    transfers = price(program, GRAPH, strategy, TABLE, builders.cluster(2), batch=8).transfers
    assert transfers["r0/0SEND_F1>1"] == transfers["r1/1RECV_F1<0"]
    assert transfers["r0/AR#loss"] == transfers["r1/AR#loss"]
    assert set(transfers) == {item.id for item in program if item.communicates}


def test_each_stage_updates_what_it_holds() -> None:
    """4 parameters of 96 B: 1 + 4 * 0.1 + 0.096 ms."""
    costs = price(lower(GRAPH, TWO, batch=8, clip=True), GRAPH, TWO, TABLE, builders.cluster(2), batch=8)
    assert costs.compute["r0/U"].seconds == pytest.approx(1.496e-3)
    assert costs.compute["r1/CLIP"].seconds == pytest.approx(1.496e-3)


def test_an_evaluation_costs_what_was_measured_without_gradients() -> None:
    """The forward takes 176 ms, twice the sum; the evaluation half of that, 88 ms, of which stage 0 has 24 / 88."""
    table = table_for(GRAPH, whole_s=0.176)
    program = lower_evaluation(GRAPH, TWO, batch=8)
    costs = price(program, GRAPH, TWO, table, builders.cluster(2), batch=8)
    assert costs.compute["r0/0EV0"].seconds == pytest.approx(0.024)
    assert costs.compute["r1/1EV0"].seconds == pytest.approx(0.064)


def test_a_rank_holds_parameters_gradients_and_one_byte_of_state_a_byte() -> None:
    """192 B three times."""
    costs = price(
        lower(GRAPH, builders.strategy(), batch=8), GRAPH, builders.strategy(), TABLE, builders.cluster(1), batch=8
    )
    assert costs.resident_bytes == (3 * 192,)


def test_a_split_backward_costs_as_much_as_a_whole_one() -> None:
    """64 + 32 ms a stage at 4 samples."""
    split = tuple(
        tuple(
            Compute(kind, stage, microbatch)
            for microbatch in range(2)
            for kind in (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
        )
        for stage in range(2)
    )
    program = lower_order(GRAPH, split, boundaries=("op1",), batch=8)
    compute = price(program, GRAPH, TWO, TABLE, builders.cluster(2), batch=8).compute
    assert compute["r1/1I0"].seconds + compute["r1/1W0"].seconds == pytest.approx(0.064)


def test_replicas_interfere_as_all_reduces_do_and_pipelines_as_messages() -> None:
    factors = {"AR": builders.interference(compute=1.5), "SEND": builders.interference(compute=1.25)}
    table = dataclasses.replace(TABLE, interference=factors)
    replicas = builders.strategy(dp=2)
    both = [
        price(
            lower(GRAPH, strategy, batch=16), GRAPH, strategy, table, builders.cluster(2), batch=16
        ).interference.compute
        for strategy in (replicas, TWO)
    ]
    assert both == [1.5, 1.25]


def test_a_gpu_runs_beside_its_host() -> None:
    table = dataclasses.replace(TABLE, fingerprint=dataclasses.replace(TABLE.fingerprint, kind="cuda"))
    program = lower(GRAPH, builders.strategy(), batch=8)
    assert not price(program, GRAPH, builders.strategy(), table, builders.cluster(1), batch=8).host_blocks


def test_the_largest_microbatch_counts() -> None:
    """10 samples over 2 replicas: 5; over 4 microbatches: 2, 1, 1, 1."""
    program = Program(ranks=((), ()), segments=1, microbatches=4)
    assert microbatch_size(program, builders.strategy(dp=2, microbatches=4), batch=10) == 2
    with raises("pricing.batch-too-small", batch=1, replicas=2):
        microbatch_size(program, builders.strategy(dp=2, microbatches=4), batch=1)


def test_a_job_whose_update_nobody_measured_is_refused() -> None:
    table = dataclasses.replace(TABLE, steps={})
    with raises("pricing.no-update-cost", match="r0/IN0"):
        price(
            lower(GRAPH, builders.strategy(), batch=8), GRAPH, builders.strategy(), table, builders.cluster(1), batch=8
        )


def test_an_instruction_that_nobody_can_price_is_named() -> None:
    offload = Instruction(kind=Kind.OFFLOAD, rank=0, segment=0, microbatch=0, stream=COMPUTE)
    program = Program(ranks=((offload,),), segments=1, microbatches=1)
    with raises("pricing.not-measured", match="r0/0OFF0", kind="OFF"):
        price(program, GRAPH, builders.strategy(), TABLE, builders.cluster(1), batch=8)


def test_intervals_come_with_every_figure() -> None:
    table = table_for(GRAPH, whole_s=0.176, part=0.2)
    strategy = builders.strategy(pp=4, boundaries=boundaries(4))
    costs = price(lower(GRAPH, strategy, batch=8), GRAPH, strategy, table, builders.cluster(4), batch=8)
    for cost in costs.compute.values():
        assert cost.low <= cost.seconds <= cost.high
    assert costs.compute["r0/0F0"].high > costs.compute["r0/0F0"].seconds


def test_a_rank_updates_and_keeps_state_for_what_it_is_home_to() -> None:
    """4 layers of 40 + 8 B, each parameter a bucket: 96 of 192 B and 4 of 8 tensors a rank, 1 + 4 * 0.1 + 0.096 ms.

    It holds 192 B of parameters and of gradients, and one byte of state for each of 96 B.
    """
    homes = builders.strategy(dp=2, bucket_bytes=1, sync="p2p")
    costs = price(lower(GRAPH, homes, batch=16, clip=True), GRAPH, homes, TABLE, builders.cluster(2), batch=16)
    for rank in range(2):
        assert costs.compute[f"r{rank}/U"].seconds == pytest.approx(1.496e-3)
        assert costs.compute[f"r{rank}/CLIP"].seconds == pytest.approx(1.496e-3)
    assert costs.resident_bytes == (192 + 192 + 96,) * 2


def test_a_backward_hands_every_bucket_to_its_home() -> None:
    """8 buckets, each 0.5 ms of the rank's thread, on top of a backward of 176 ms."""
    homes = builders.strategy(dp=2, bucket_bytes=1, sync="p2p")
    key = builders.curve_key(HOST_COLLECTIVE, 2)
    table = dataclasses.replace(TABLE, curves={**TABLE.curves, key: ((1, exact(5e-4)), (1000, exact(5e-4)))})
    program = lower(GRAPH, homes, batch=16)
    costs = price(program, GRAPH, homes, table, builders.cluster(2), batch=16)
    assert costs.compute["r0/0B0"].seconds == pytest.approx(0.176 + 8 * 5e-4)
    assert simulate(program, costs).makespan_s > 0.176 * 1.5


def test_queues_of_reductions_to_owners_go_as_fast_next_to_compute_as_alone() -> None:
    """Where they were measured; else they are taken for all-reduces, whose latency waits for a core."""
    owners = builders.strategy(dp=2, sync="p2p")
    program = lower(GRAPH, owners, batch=16)
    factors = dataclasses.replace(builders.interference(compute=1.5), communication=2.0, latency=9.0)
    queued = {
        builders.curve_key(f"{kind}{QUEUED}", 2): ((1, exact(1e-4)), (1000, exact(1e-4))) for kind in ("BC", "RD")
    }
    found = []
    for curves in (queued, {}):
        table = dataclasses.replace(TABLE, interference={"AR": factors}, curves={**TABLE.curves, **curves})
        taken = price(program, GRAPH, owners, table, builders.cluster(2), batch=16).interference
        found.append((taken.compute, taken.communication, taken.latency))
    assert found == [(1.5, 1.0, 1.0), (1.5, 2.0, 9.0)]


def test_what_lies_between_instructions_makes_a_step_longer_once_and_by_each_of_them() -> None:
    """A second for the step and a quarter for each gap within it, of the rank that has most instructions."""
    table = dataclasses.replace(TABLE, between=builders.between(1.0, 0.25))
    for strategy in (builders.strategy(dp=2), TWO):
        program = lower(GRAPH, strategy, batch=16)
        plain, longer = (
            simulate(program, price(program, GRAPH, strategy, costs, builders.cluster(2), batch=16))
            for costs in (TABLE, table)
        )
        most = max(len(instructions) for instructions in program.ranks)
        assert longer.makespan_s - plain.makespan_s == pytest.approx(1.0 + 0.25 * (most - 1))
        assert list(longer) == list(plain)
        parts = break_down(program, longer, Source.PREDICTED)
        assert [part.step_s for part in parts] == pytest.approx([longer.makespan_s] * 2)
        assert [part.unattributed_s for part in parts] == pytest.approx([longer.after_s] * 2)


def test_the_measured_wait_for_the_slowest_rank_is_idle_and_one_rank_has_none() -> None:
    """A tenth of what a rank computes: forwards and backwards of one rank, here all alike."""
    table = dataclasses.replace(TABLE, between=builders.between(0.0, 0.0, straggling=0.1))
    for strategy, ranks in ((builders.strategy(dp=2), 2), (builders.strategy(), 1)):
        program = lower(GRAPH, strategy, batch=16)
        plain, longer = (
            break_down(
                program,
                simulate(program, price(program, GRAPH, strategy, costs, builders.cluster(ranks), batch=16)),
                Source.PREDICTED,
            )
            for costs in (TABLE, table)
        )
        waits_s = 0.1 * (plain[0].forward_s + plain[0].backward_s) if ranks > 1 else 0.0
        for before, after in zip(plain, longer, strict=True):
            assert after.idle_s - before.idle_s == pytest.approx(waits_s, abs=1e-12)
            assert after.step_s - before.step_s == pytest.approx(waits_s, abs=1e-12)
            assert after.unattributed_s == pytest.approx(before.unattributed_s, abs=1e-12)
