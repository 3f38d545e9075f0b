"""Sums within nodes and across them, on the clock: the middle level starts when the first has ended, not when told."""

import dataclasses

import pytest
from tests import builders
from tests.graphs import chain

from trimaran.base.timeline import Timeline
from trimaran.machine.find import find_machine
from trimaran.pricing.machine_transfers import machine_transfer
from trimaran.pricing.types import Cost, ProgramCosts, Transfer
from trimaran.program.lowering.lower import lower
from trimaran.program.types import Instruction, Kind, Program
from trimaran.simulator.engine import simulate

LEVELS = builders.strategy(dp=4, sync="hierarchical", nodes=2)
FLOWS_S = {Kind.REDUCE_SCATTER: 1.0, Kind.ALL_GATHER: 1.0}
COMPUTE_S = {Kind.FORWARD: 1.0, Kind.BACKWARD: 4.0}


def priced(program: Program, *, host_blocks: bool) -> ProgramCosts:
    """A forward of 1 s and a backward of 4 s, whose buckets are ready at half and at the end of it.

    Scatters and gathers take 1 s, sums across nodes 2 s, all on links of their own; the rest takes nothing.
    """

    def flow(item: Instruction) -> Transfer:
        across = 2.0 if item.kind is Kind.ALL_REDUCE and item.segment is not None else 0.0
        seconds = FLOWS_S.get(item.kind, across)
        links = (f"{item.group}",) if seconds else ()
        return Transfer(latency_s=0.0, flow_s=seconds, links=links, low=seconds, high=seconds, source="by hand")

    def cost(item: Instruction) -> Cost:
        seconds = COMPUTE_S.get(item.kind, 0.0)
        return Cost(seconds, seconds, seconds, "by hand")

    last = {mark.name for item in program for mark in item.marks}
    return ProgramCosts(
        compute={item.id: cost(item) for item in program if not item.communicates},
        transfers={item.id: flow(item) for item in program if item.communicates},
        marks={(item.id, mark.name): 1.0 if mark.name == max(last) else 0.5 for item in program for mark in item.marks},
        host_blocks=host_blocks,
    )


def ends(timeline: Timeline, *tokens: str) -> list[tuple[float, float]]:
    found = {span.instruction: (span.start_s, span.end_s) for span in timeline}
    return [found[f"r3/{token}"] for token in tokens]


@pytest.mark.parametrize("host_blocks", [True, False])
def test_a_sum_across_nodes_overlaps_the_backward(host_blocks: bool) -> None:
    """Backward from 1 to 5, b0 ready at 3: RS 3 to 4, AR 4 to 6 (from 5 on, were it the host that started it).

    b1 is ready at 5: RS 5 to 6, AR 6 to 8. AG b0 waits for AR b0 alone, 6 to 7, and AG b1 comes from 8 to 9.
    """
    strategy = dataclasses.replace(LEVELS, bucket_bytes=50)
    program = lower(chain(2), strategy, batch=8)
    timeline = simulate(program, priced(program, host_blocks=host_blocks))
    assert ends(timeline, "0RS#b0", "0AR#b0", "0AG#b0") == [(3.0, 4.0), (4.0, 6.0), (6.0, 7.0)]
    assert ends(timeline, "0RS#b1", "0AR#b1", "0AG#b1") == [(5.0, 6.0), (6.0, 8.0), (8.0, 9.0)]
    assert timeline.makespan_s == 9.0


def test_cards_of_a_node_are_shared_by_its_shards() -> None:
    """On two nodes with one card each, two sums of shards take the card together; alone, one is as fast again."""
    machine = find_machine("dgx1-v100:2@ethernet-25g")
    first, second = (machine_transfer("AR", 50_000_000, pair, machine) for pair in ((0, 8), (1, 9)))
    assert set(first.links) & set(second.links)
    assert machine.allocate(16).hosts == (0,) * 8 + (1,) * 8
