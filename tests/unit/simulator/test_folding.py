"""One replica in place of all."""

import dataclasses

import pytest
from tests import builders
from tests.builders import network, table_for
from tests.graphs import boundaries, paired

from trimaran.graph.types import Graph
from trimaran.machine.find import find_machine
from trimaran.machine.types import Allocation
from trimaran.pricing.program import can_fold, price
from trimaran.program.lowering.lower import lower, lower_replica
from trimaran.program.lowering.tensor_parallel import find_shards
from trimaran.program.strategy import Strategy
from trimaran.simulator.engine import simulate

CHAIN = network(6)
PAIRS = dataclasses.replace(paired(3), storages={})


def direct(devices: int) -> Allocation:
    """Every two devices have a link of their own."""
    return builders.cluster(devices, kind="cuda", joint=builders.link(bytes_per_s=1e6, latency_s=1e-4))


@pytest.mark.parametrize(
    ("graph", "strategy"),
    [
        (CHAIN, builders.strategy(dp=6, bucket_bytes=50)),
        (
            CHAIN,
            builders.strategy(dp=3, pp=3, boundaries=boundaries(3), schedule="1f1b", microbatches=4, bucket_bytes=1),
        ),
        (CHAIN, builders.strategy(dp=2, pp=2, boundaries=("op2",), schedule="zero-bubble", microbatches=3)),
        (CHAIN, builders.strategy(dp=4, zero=3, microbatches=2)),
        (CHAIN, builders.strategy(dp=4, zero=1)),
        (CHAIN, builders.strategy(dp=6, sync="hierarchical", nodes=2, bucket_bytes=50)),
        (PAIRS, builders.strategy(dp=3, tp=2, pp=1, shards=find_shards(PAIRS, 2), microbatches=2)),
    ],
)
def test_one_replica_takes_as_long_as_all(graph: Graph, strategy: Strategy) -> None:
    graph = dataclasses.replace(
        graph, ops=tuple(dataclasses.replace(op, content=f"content of {op.id}") for op in graph.ops)
    )
    table, cluster = table_for(graph), direct(strategy.devices)
    batch = 4 * strategy.dp * strategy.microbatches
    whole, one = lower(graph, strategy, batch=batch), lower_replica(graph, strategy, batch=batch)
    replicas = strategy.dp // strategy.nodes if strategy.sync == "hierarchical" else 1
    assert one.ranks == whole.ranks[: replicas * strategy.pp * strategy.tp]
    assert can_fold(one, strategy, table, cluster)
    times = [
        simulate(program, price(program, graph, strategy, table, cluster, batch=batch)) for program in (whole, one)
    ]
    assert times[0].makespan_s == pytest.approx(times[1].makespan_s, rel=1e-12)
    assert times[0].peak_bytes(0) == times[1].peak_bytes(0)


def test_replicas_that_share_a_link_for_their_own_messages_are_not_folded() -> None:
    strategy = builders.strategy(dp=2, pp=2, boundaries=("op2",))
    program = lower_replica(CHAIN, strategy, batch=8)
    shared = builders.linked(direct(4))
    assert can_fold(program, strategy, table_for(CHAIN), direct(4))
    assert not can_fold(program, strategy, table_for(CHAIN), shared)


def test_replicas_whose_own_links_differ_are_not_folded() -> None:
    """No NVLink joins devices 0 and 5 of a DGX-1; some join 1 and 2, and as many 0 and 1 as 4 and 5."""
    strategy = builders.strategy(dp=2, pp=2, boundaries=("op2",), device_order=(0, 5, 1, 2))
    table = builders.cost_table(fingerprint=builders.fingerprint(kind="cuda"))
    machine = find_machine("dgx1-v100").allocate()
    assert not can_fold(lower_replica(CHAIN, strategy, batch=8), strategy, table, machine)
    alike = dataclasses.replace(strategy, device_order=(0, 1, 4, 5))
    assert can_fold(lower_replica(CHAIN, alike, batch=8), alike, table, machine)


def test_homes_make_replicas_differ() -> None:
    strategy = builders.strategy(dp=4, sync="p2p")
    assert not can_fold(lower_replica(CHAIN, strategy, batch=8), strategy, table_for(CHAIN), direct(4))
