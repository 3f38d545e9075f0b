"""Devices that stay idle where that is faster, batches near by, and limits of work."""

import time
from collections import Counter
from dataclasses import replace

import pytest
from tests import builders

from trimaran.machine.find import find_machine
from trimaran.planner.analytical.candidates import (
    AnalyticalCandidate,
    AnalyticalModel,
    AnalyticalProblem,
    Choice,
    Least,
    boxes_below,
    groups,
    members,
    partly_recomputed,
)
from trimaran.planner.analytical.search import _nearest, fastest, nearby_batches, search_degrees, transformer_problem
from trimaran.planner.pins import Pins
from trimaran.pricing.analytical.shapes import TransformerShape, decoder_of, gpt_shape
from trimaran.program.strategy import Strategy

SMALL = gpt_shape(layers=8, hidden=1024, heads=16, vocabulary=51200, sequence=1024)


def choice_of(group: Strategy) -> Choice:
    return Choice(*(getattr(group, name) for name in Choice._fields))


def problem(nodes: int, batch: int, network: str = "llama2:70b", **asked: object) -> AnalyticalProblem:
    shape = decoder_of(network, 4096)
    assert shape is not None
    return transformer_problem(shape, find_machine(f"dgx-h100:{nodes}"), batch=batch, **asked)  # type: ignore[arg-type]


def test_a_hundred_nodes_are_not_slower_than_96() -> None:
    """1,024 sequences divide over 768 devices in more ways than over 800."""
    fewer, more = fastest(problem(96, 1024)), search_degrees(problem(100, 1024))
    assert more.chosen.step_time_s <= fewer.step_time_s
    assert more.chosen.devices <= 768
    assert more.on_all is not None
    assert more.on_all.devices == 800
    assert more.on_all.step_time_s > 1.1 * more.chosen.step_time_s


def test_numbers_of_fewer_devices_do_not_depend_on_how_many_there_are() -> None:
    """Each up to 64, then whole nodes; of 36 nodes all that 35 have."""
    few, many = (
        {box.devices for box in boxes_below(asked, float("inf"), most=asked.devices - 1)}
        for asked in (problem(35, 96), problem(36, 96))
    )
    assert few <= many
    assert max(many) < 36 * 8
    assert {count for count in many if count > 64 and count % 8} == set()
    assert {1, 2, 3, 5, 7, 12, 63} <= set(many)


def test_pins_decide_which_numbers_there_are() -> None:
    pinned = problem(4, 64, pins=Pins(tp=8, pp=1, cp=1))
    assert {box.devices for box in boxes_below(pinned, float("inf"), most=31)} == {16, 8}
    found = search_degrees(replace(pinned, pins=Pins(dp=2, tp=8, pp=1, cp=1)))
    assert (found.chosen.devices, found.on_all) == (16, None)


WIDE = gpt_shape(layers=2, hidden=8192, heads=64, vocabulary=1024, sequence=1024)
EXPERTS = replace(WIDE, experts=builders.experts(count=64, active=2, ffn=4096))
"""Alone a rank has all of them, whose products are small and leave units idle."""

FIRST_DENSE = replace(WIDE, layers=5, experts=builders.experts(count=8, active=2, ffn=4096, dense_layers=2))


@pytest.mark.parametrize(
    ("cluster", "shape"),
    [
        ("dgx-a100:2", SMALL),
        ("dgx1-v100", SMALL),
        ("dgx-h100", EXPERTS),
        ("dgx-h100:2@ethernet-10g", EXPERTS),
        ("dgx-a100:3@ethernet-10g", SMALL),
        ("dgx-h100:2@ethernet-10g", FIRST_DENSE),
    ],
)
def test_no_strategy_is_faster_than_the_bounds_of_its_box_and_of_its_group(
    cluster: str, shape: TransformerShape
) -> None:
    precision = "fp16" if "v100" in cluster else "bf16"
    asked = transformer_problem(shape, find_machine(cluster), batch=24 if shape is SMALL else 8, precision=precision)
    least = Least(asked)
    for box in boxes_below(asked, float("inf"), most=asked.devices)[::3]:
        inside = box.pinned(asked)
        model = AnalyticalModel(problem=inside)
        for group in groups(inside, Counter()):
            bound_s = model.bound(group)
            near = least.with_waits(replace(box, microbatch=group.microbatch), model)
            assert box.bound_s <= near.bound_s
            assert model.least_alone(group, choice_of(group)) * model.times_alone(group) <= bound_s * (1 + 1e-9)
            bound_s = max(bound_s, near.bound_s)
            assert all(bound_s <= model.price(one).step_time_s * (1 + 1e-9) for one in members(inside, group))


def test_over_slow_links_bounds_count_what_replicas_and_stages_wait_for() -> None:
    """Two nodes over 10 Gbit/s: gradients alone take longer than all that is computed."""
    shape = replace(WIDE, layers=8)
    asked = transformer_problem(shape, find_machine("dgx-h100:2@ethernet-10g"), batch=64)
    found = search_degrees(asked)
    assert found.is_complete
    assert found.bound_s > 0.9 * found.chosen.step_time_s
    model, spread = AnalyticalModel(problem=asked), Strategy(dp=16, microbatch=4)
    assert model.waits(spread, 1e-6) > 0.5 * model.price(replace(spread, zero=1)).step_time_s


def test_some_layers_are_recomputed_where_replicas_shard_gradients_too() -> None:
    asked = transformer_problem(SMALL, find_machine("dgx-h100"), batch=64)
    one = Strategy(dp=8, microbatch=8, zero=2)
    kept, none = (
        AnalyticalModel(problem=asked).admitted(each)[1].peak
        for each in (one, replace(one, recomputed=frozenset({"layers"})))
    )
    asked = replace(asked, memory_bytes=(kept + none) // 2)
    fewest = [again.recompute_layers for again in partly_recomputed(asked, one) if again.recompute_layers is not None]
    assert len(fewest) == 1
    assert 0 < fewest[0] < SMALL.layers


def test_a_batch_that_does_not_divide_names_those_near_by_that_do() -> None:
    """331 is prime, and 8 devices have equal shares of 328 and 336; of few more there are several ways."""
    asked = transformer_problem(SMALL, find_machine("dgx-h100"), batch=331)
    chosen = fastest(asked)
    below, above = nearby_batches(asked, chosen)
    assert below.batch < 331 < above.batch
    for near in (below, above):
        own = fastest(replace(asked, batch=near.batch))
        assert near.step_time_s == pytest.approx(own.step_time_s)
        rate, before = near.batch / near.step_time_s, 331 / chosen.step_time_s
        assert near.faster == pytest.approx(rate / before - 1.0)
        assert near.faster > 0.02


def test_where_ranks_of_experts_do_not_divide_the_nodes_batches_of_a_node_fewer_are_named() -> None:
    """On 19 nodes 64 experts have 8 ranks at most, on 18 nodes 16; 608 samples have no 144 or 72 equal shares."""
    experts = builders.experts(count=64, active=8, ffn=5120)
    shape = builders.transformer_shape(
        layers=48, hidden=2560, heads=40, kv_heads=40, head_size=64, ffn=5120, sequence=2048, experts=experts
    )
    asked = transformer_problem(shape, find_machine("dgx-a100:19"), batch=608)
    named = {near.batch: near for near in nearby_batches(asked, fastest(asked))}
    assert set(named) == {576, 648}
    assert all(near.faster > 0.1 for near in named.values())


def test_batches_that_divide_a_node_fewer_are_not_crowded_out_by_nearer_ones() -> None:
    """Of 4,128 on 129 nodes: 4,126 and 4,124 divide by 2 and 4 alone, 4,096 by all 1,024 devices of a node fewer."""
    shape = builders.transformer_shape(experts=builders.experts(count=16, active=2, ffn=5120))
    asked = transformer_problem(shape, find_machine("dgx-h100:129"), batch=4128)
    assert 4096 in _nearest(asked, -1)


def test_of_a_batch_that_divides_nothing_is_named() -> None:
    asked = transformer_problem(SMALL, find_machine("dgx-h100"), batch=512)
    assert nearby_batches(asked, fastest(asked)) == ()


def test_the_fastest_alone_is_the_one_that_the_search_chooses() -> None:
    asked = problem(13, 200)
    found = search_degrees(asked)
    assert fastest(asked) == found.chosen
    model = AnalyticalModel(problem=replace(asked, devices=found.chosen.devices))
    assert isinstance(found.chosen, AnalyticalCandidate)
    assert model.price(found.chosen.strategy) == found.chosen


@pytest.mark.parametrize("batch", [30240, pytest.param(16384, marks=pytest.mark.sweep), 16000])
def test_sixteen_thousand_devices_take_seconds(batch: int) -> None:
    """On an idle core less than 3 s; the time of this process counts, not that of the clock."""
    began = time.process_time()
    found = search_degrees(problem(2048, batch))
    assert time.process_time() - began < 10
    assert found.is_complete


def test_a_limit_of_work_ends_a_search_at_the_same_place_each_time() -> None:
    once, twice = (search_degrees(problem(13, 200, time_limit_s=0.05)) for _ in range(2))
    assert not once.is_complete
    assert replace(once, seconds=0.0) == replace(twice, seconds=0.0)
    experts = replace(SMALL, experts=builders.experts(count=8, active=2, ffn=2048))
    whole = search_degrees(transformer_problem(experts, find_machine("dgx-a100"), batch=16, time_limit_s=60.0))
    assert whole.is_complete


def test_a_search_may_end_when_it_is_as_near_to_its_bound_as_asked() -> None:
    whole, near = search_degrees(problem(16, 256)), search_degrees(problem(16, 256, gap=0.5))
    assert near.gap is not None
    assert near.gap <= 0.5
    assert near.priced < whole.priced


def test_a_step_is_not_shorter_than_without_exchanges_of_replicas() -> None:
    experts = replace(SMALL, experts=builders.experts(count=8, active=2, ffn=2048))
    asked = transformer_problem(experts, find_machine("dgx-h100:2"), batch=48)
    model = AnalyticalModel(problem=asked)
    for group in list(groups(asked, Counter()))[::23]:
        for one in members(asked, group):
            assert model.alone(one).bound_s <= model.step(one).seconds
