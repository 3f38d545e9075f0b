"""Which strategies are tried, and why others are not."""

import dataclasses

import pytest
from tests import builders
from tests.graphs import chain, parameter

from trimaran.graph.types import Graph
from trimaran.planner.choice import simplicity
from trimaran.planner.pins import pins_of_strategy
from trimaran.planner.space import bucket_sizes, enumerate_strategies
from trimaran.program.gradients import DEFAULT_BUCKET_BYTES
from trimaran.program.strategy import Execution

MIB = 2**20


def owners(*sizes: int) -> Graph:
    """A chain whose operations have a weight of so many bytes each, and no bias."""
    graph = chain(len(sizes))
    ops = tuple(dataclasses.replace(op, parameters=op.parameters[:1]) for op in graph.ops)
    parameters = tuple(parameter(f"op{number}.weight", nbytes) for number, nbytes in enumerate(sizes))
    return dataclasses.replace(graph, ops=ops, parameters=parameters)


def test_every_way_to_use_two_devices_or_one() -> None:
    """All gradients of this network are one bucket, whatever its size."""
    kept, rejected = enumerate_strategies(chain(3), devices=2, batch=64)
    names = [strategy.name for strategy in kept]
    assert names[:6] == ["one device", "one device m2", "one device m4", "dp2", "dp2 m2", "dp2 m4"]
    orders = ("gpipe", "1f1b", "interleaved x2", "zero-bubble")
    assert {name for name in names if name.startswith("pp2")} == {
        f"pp2 {order} m{count}" for order in orders for count in (2, 4, 8)
    }
    shared = {f"dp2 zero{stage}{count}" for stage in (1, 2, 3) for count in ("", " m2")}
    assert set(names[6:]) - {name for name in names if name.startswith("pp2")} == {*shared, "dp2 p2p"}
    assert rejected == []


def test_everything_is_tried_in_each_execution() -> None:
    eager, _ = enumerate_strategies(chain(3), devices=2, batch=64)
    both, _ = enumerate_strategies(chain(3), devices=2, batch=64, executions=("eager", "compiled"))
    compiled = [dataclasses.replace(strategy, execution="compiled") for strategy in eager]
    assert both[: len(eager)] == eager
    plain = ("gpipe", "1f1b")
    assert both[len(eager) :] == [
        one for one in compiled if one.zero == 0 and one.sync == "all-reduce" and one.schedule in plain
    ]


def test_a_batch_that_does_not_divide_is_rejected_with_the_figures() -> None:
    _, rejected = enumerate_strategies(chain(3), devices=2, batch=6)
    assert "a global batch of 6 does not divide into 1 × 4 shares" in {rejection.reason for rejection in rejected}
    assert {rejection.cause for rejection in rejected} == {"batch"}


def test_a_network_without_cuts_has_no_pipelines() -> None:
    kept, rejected = enumerate_strategies(dataclasses.replace(chain(3), split_points=()), devices=2, batch=64)
    assert all(strategy.pp == 1 for strategy in kept)
    assert {rejection.reason for rejection in rejected} == {"the network cannot be split into stages"}


def test_hybrids_are_tried_on_four_devices() -> None:
    kept, _ = enumerate_strategies(chain(3), devices=4, batch=64)
    assert any(strategy.dp == 2 and strategy.pp == 2 for strategy in kept)


@pytest.mark.parametrize(
    ("sizes", "execution", "expected"),
    [
        # 3 × 100 KiB: the default's first bucket, of 1 MiB, holds all; 128 KiB is reached by the second of them.
        ((100 * 2**10,) * 3, "eager", (DEFAULT_BUCKET_BYTES, 2**17)),
        # 3 × 2 MiB: the default sends the last layer alone, 1 MiB and 128 KiB send each alone, 8 MiB holds all.
        ((2 * MIB,) * 3, "eager", (DEFAULT_BUCKET_BYTES, MIB, 8 * MIB)),
        # 3 × 600 KiB: the default's first and 1 MiB hold two, 128 KiB sends each alone, 2 MiB holds all.
        ((600 * 2**10,) * 3, "eager", (DEFAULT_BUCKET_BYTES, 2**17, 2 * MIB)),
        # Torch's compiler refuses buckets below 1 MiB.
        ((600 * 2**10,) * 3, "compiled", (DEFAULT_BUCKET_BYTES, 2 * MIB)),
    ],
)
def test_sizes_of_buckets_that_make_a_difference(
    sizes: tuple[int, ...], execution: str, expected: tuple[int, ...]
) -> None:
    assert bucket_sizes(owners(*sizes), execution=execution) == expected  # type: ignore[arg-type]


def test_replicas_are_tried_with_each_size_of_buckets() -> None:
    kept, _ = enumerate_strategies(owners(*(2 * MIB,) * 3), devices=2, batch=2)
    names = [strategy.name for strategy in kept if strategy.dp == 2]
    assert names[:3] == ["dp2", "dp2 b1MiB", "dp2 b8MiB"]


def test_simpler_means_fewer_mechanisms_before_fewer_devices() -> None:
    pipeline = builders.strategy(pp=2, boundaries=("a",), microbatches=2)
    hybrid = builders.strategy(dp=2, pp=2, boundaries=("a",), microbatches=2)
    assert sorted([hybrid, pipeline, builders.strategy(dp=4), builders.strategy()], key=simplicity) == [
        builders.strategy(),
        builders.strategy(dp=4),
        pipeline,
        hybrid,
    ]


def test_simpler_means_eager_then_default_buckets_then_fewer_microbatches() -> None:
    plain = builders.strategy(dp=2)
    in_order = [
        plain,
        dataclasses.replace(plain, microbatches=2),
        dataclasses.replace(plain, bucket_bytes=MIB),
        dataclasses.replace(plain, bucket_bytes=MIB, microbatches=2),
        dataclasses.replace(plain, execution="compiled"),
    ]
    assert sorted((in_order[place] for place in (3, 1, 4, 0, 2)), key=simplicity) == in_order


def test_replicas_on_several_hosts_may_sum_in_levels() -> None:
    """Only where each host has as many of them, two or more; four devices are the first that do."""
    kept, _ = enumerate_strategies(chain(3), devices=4, batch=64, hosts=(0, 0, 1, 1))
    levels = {strategy for strategy in kept if strategy.sync == "hierarchical"}
    assert {(strategy.name, strategy.nodes) for strategy in levels} == {
        (f"dp4 hierarchical{count}", 2) for count in ("", " m2", " m4")
    }
    for hosts in ((), (0, 0, 0, 0), (0, 1, 0, 1), (0, 0, 0, 1), (0, 1, 2, 3)):
        kept, _ = enumerate_strategies(chain(3), devices=4, batch=64, hosts=hosts)
        assert not any(strategy.sync == "hierarchical" for strategy in kept), hosts


def test_levels_can_be_forbidden_and_pinned() -> None:
    hosts = (0, 0, 1, 1)
    kept, _ = enumerate_strategies(
        chain(3), devices=4, batch=64, hosts=hosts, pins=builders.pins(forbid=("hierarchical",))
    )
    assert not any(strategy.sync == "hierarchical" for strategy in kept)
    kept, _ = enumerate_strategies(
        chain(3), devices=4, batch=64, hosts=hosts, pins=builders.pins(allow=("hierarchical",), dp=4)
    )
    assert {strategy.sync for strategy in kept} == {"hierarchical"}


def test_of_many_devices_the_most_by_which_the_batch_divides_are_tried() -> None:
    """A batch of 25 on 32 devices: 25 replicas of one sample each, where divisors of 32 leave one device."""
    kept, _ = enumerate_strategies(chain(3), devices=32, batch=25)
    assert max(strategy.devices for strategy in kept) == 25
    assert "dp25" in {strategy.name for strategy in kept}
    kept, _ = enumerate_strategies(chain(3), devices=32, batch=64)
    assert {strategy.devices for strategy in kept} == {1, 2, 4, 8, 16, 32}


@pytest.mark.parametrize(("devices", "hosts"), [(2, (0, 0)), (4, (0, 0, 1, 1))])
def test_the_name_of_a_strategy_pins_that_strategy_alone(devices: int, hosts: tuple[int, ...]) -> None:
    """Also what no degree says: owners of gradients, sums in levels, sharded classifiers, compiled segments."""
    graph = owners(4, 4, 64)
    found, _ = enumerate_strategies(graph, devices=devices, batch=24, executions=("eager", "compiled"), hosts=hosts)
    names = {strategy.name for strategy in found}
    words = {word for name in names for word in name.split()}
    assert {"p2p", "compiled", "zero1", "interleaved"} <= words
    assert devices == 2 or "hierarchical" in words
    for name in names:
        execution: Execution = "compiled" if "compiled" in name.split() else "eager"
        pinned, _ = enumerate_strategies(
            graph, devices=devices, batch=24, executions=(execution,), hosts=hosts, pins=pins_of_strategy(name)
        )
        assert {strategy.name for strategy in pinned} == {name}
