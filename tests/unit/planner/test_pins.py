"""Decisions of a person: read, respected, priced."""

import dataclasses
from typing import Any

import pytest
from tests import builders
from tests.builders import network, problem, proportional, table_for
from tests.graphs import chain
from tests.raising import raises

from trimaran.planner.pins import (
    NO_PINS,
    Pins,
    kinds_of,
    parse_pins,
    pins_of_strategy,
    read_kinds,
    read_pins,
    spreading,
)
from trimaran.planner.pipeline_stages import split_stages
from trimaran.planner.search import ALL_PINS, prices, search
from trimaran.planner.trials import Trials
from trimaran.planning.best_strategy import chooser
from trimaran.program.strategy import Feeding, Part, Shard, Strategy, read_strategy

PLACED = builders.strategy(pp=2, parts=(Part(ops=("op0",), row=0), Part(ops=("op1", "loss"), row=1)))
STAGES = builders.strategy(pp=2, boundaries=("op0",), microbatches=2, schedule="1f1b")


@pytest.mark.parametrize(
    ("strategy", "kinds"),
    [
        (builders.strategy(), set()),
        (builders.strategy(dp=2, zero=3), {"dp", "zero"}),
        (builders.strategy(dp=2, sync="p2p"), {"dp", "p2p"}),
        (builders.strategy(dp=4, sync="hierarchical", nodes=2), {"dp", "hierarchical"}),
        (STAGES, {"pp", "1f1b"}),
        (PLACED, {"placement"}),
        (builders.strategy(tp=2, shards=(Shard(op="fc", style="column"),)), {"tp"}),
        (builders.strategy(dp=2, shards=(Shard(op="fc", style="column"),)), {"dp", "sharded"}),
    ],
)
def test_kinds_of_strategies(strategy: Strategy, kinds: set[str]) -> None:
    assert kinds_of(strategy) == kinds


def test_replicas_that_share_their_state_are_not_plain_replicas() -> None:
    assert spreading(builders.strategy(dp=2, zero=1)) == {"zero"}
    assert builders.pins(allow=("zero",)).objection(builders.strategy(dp=2)) == "--allow zero"
    assert builders.pins(allow=("zero",)).objection(builders.strategy(dp=2, zero=1)) == ""


def test_a_word_that_means_nothing_is_refused_with_what_comes_near() -> None:
    with raises("plan.unknown-kind", value="pq"):
        read_kinds(["pq"], option="--forbid")
    with raises("plan.unknown-kind", match='"placement"'):
        read_kinds(["placment"], option="--allow")


@pytest.mark.parametrize(
    ("options", "code", "figures"),
    [
        ({"keep": ["layer4"]}, "pin.bad-keep", {"match": '"layer4=1"', "value": "layer4"}),
        ({"schedule": "fifo"}, "pin.unknown-schedule", {"match": "1f1b"}),
        ({"zero": 4}, "pin.bad-zero-stage", {"match": r"\b0\b.*\b1\b.*\b2\b.*\b3\b"}),
        ({"allow": ["pp"], "forbid": ["pp"]}, "pin.allowed-and-forbidden", {}),
        ({"powersgd_samples": 2.0}, "pin.powersgd-unused", {"match": "PowerSGD.*--allow"}),
        ({"powersgd_samples": 2.0, "compression": "bf16"}, "pin.powersgd-unused", {"match": "PowerSGD"}),
        ({"powersgd_samples": 2.0, "strategy": "dp8"}, "pin.powersgd-unused", {"match": "PowerSGD"}),
        ({"workers": 257, "strategy": "dp8"}, "input", {"match": "256"}),
    ],
)
def test_pins_that_mean_nothing_are_refused(options: dict[str, object], code: str, figures: dict[str, Any]) -> None:
    with raises(code, **figures):
        parse_pins(**options)  # type: ignore[arg-type]


def test_a_pin_is_taken_out_by_its_name() -> None:
    pins = parse_pins(keep=["op1=1", "op0=0"], forbid=["tp", "fsdp"], pp=2)
    for name in pins.names:
        assert set(pins.without(name).names) == set(pins.names) - {name}


def test_what_is_kept_on_a_row_is_found_by_module_or_operation() -> None:
    pins = builders.pins(keep=(("op1", 1),))
    assert pins.rows(chain(3)) == {"op1": 1}


def test_a_module_that_is_not_there_is_refused() -> None:
    with raises("pin.no-such-module", module="layer4"):
        builders.pins(keep=(("layer4", 1),)).rows(chain(3))


def test_stages_keep_what_is_kept() -> None:
    """Layers of 1 to 4 ms and a loss of 1 ms are cut 6 | 5; with the third layer on row 1 it is 3 | 8."""
    graph = network(4)
    free = split_stages(STAGES, graph, table_for(graph), batch=16)
    assert free.boundaries == ("op2",)
    kept = builders.pins(keep=(("op2", 1),)).rows(graph)
    assert split_stages(STAGES, graph, table_for(graph), batch=16, kept=kept).boundaries == ("op1",)


def test_what_goes_against_a_pin_is_not_chosen_and_shown_as_a_baseline_only() -> None:
    found = search(dataclasses.replace(problem(), pins=builders.pins(allow=("pp",))))
    assert all(not candidate.strategy.dp > 1 for candidate in found.candidates)
    assert "dp2" in {candidate.strategy.name for candidate in found.references}
    assert {one.role for one in found.baselines if one.candidate} >= {"one device", "data parallelism"}


def test_the_price_of_a_pin_is_the_plan_with_it_over_the_plan_without() -> None:
    """Replicas with an exchange of 10 ms take 60.0 ms, one device 98.5 ms: forbidding them costs 64 %."""
    only = builders.pins(forbid=("dp", "pp", "tp"))
    given = dataclasses.replace(problem(all_reduce=proportional(10e-3)), pins=only)
    trials = Trials(given)
    found = search(given, trials)
    assert found.chosen.strategy == builders.strategy()
    paid = {one.pin: one for one in prices(given, found, chooser(builders.no_steps, trials))}
    assert paid["--forbid tp"].price == 0.0
    free = paid[ALL_PINS]
    assert free.without is not None
    assert free.without.strategy == search(dataclasses.replace(given, pins=NO_PINS)).chosen.strategy
    assert free.price == pytest.approx(found.chosen.step_time_s / free.without.step_time_s - 1)
    assert free.price == pytest.approx(0.64, abs=0.01)


def test_a_gap_ends_the_search_early_and_is_kept_to() -> None:
    whole, early = search(problem()), search(dataclasses.replace(problem(), gap=1.0))
    assert len(early.candidates) <= len(whole.candidates)
    assert early.gap is not None
    assert early.gap <= 1.0
    assert early.chosen.step_time_s <= 2.0 * whole.bound_s


def test_searches_for_the_prices_of_pins_share_the_time_of_one() -> None:
    given = dataclasses.replace(problem(), time_limit_s=6.0)
    assert given.shared_among(3).time_limit_s == 2.0
    assert problem().shared_among(3) == problem()


def test_when_the_time_is_over_the_best_so_far_is_taken_and_said() -> None:
    found = search(dataclasses.replace(problem(), time_limit_s=0.0))
    assert not found.is_complete
    assert {one.cause for one in found.rejected} >= {"time"} or (found.gap is not None and found.gap > 0.0)


INTERLEAVED = builders.strategy(
    pp=2, chunks=2, boundaries=("op0", "op1", "op2"), microbatches=2, schedule="interleaved"
)


def test_a_pipeline_that_is_allowed_is_a_plain_one_unless_its_order_is_named() -> None:
    assert builders.pins(allow=("pp",)).objection(STAGES) == ""
    assert builders.pins(allow=("pp",)).objection(INTERLEAVED) == "--allow pp"
    assert builders.pins(allow=("pp", "interleaved")).objection(INTERLEAVED) == ""
    assert builders.pins(allow=("interleaved",)).objection(INTERLEAVED) == ""
    assert builders.pins(allow=("interleaved",)).objection(STAGES) == "--allow interleaved"


@pytest.mark.parametrize(
    ("pins", "devices", "words"),
    [
        (builders.pins(dp=2, pp=2), 2, "take 4 devices, and there are 2"),
        (builders.pins(tp=2), 1, "takes 2 devices, and there is 1"),
        (builders.pins(zero=3), 1, "two replicas or more"),
        (builders.pins(zero=1, pp=2), 2, "two replicas or more"),
        (builders.pins(schedule="1f1b", dp=2), 2, "two stages or more"),
        (builders.pins(tp=2, forbid=("tp",)), 2, "conflicts with --forbid tp"),
        (builders.pins(schedule="gpipe", forbid=("pp",)), 2, "conflicts with --forbid pp"),
        (builders.pins(pp=2, zero=1), 4, ""),
        (builders.pins(pp=2, forbid=("pp",)), 2, ""),  # a placement may take two rows
    ],
)
def test_pins_that_contradict_each_other_are_named(pins: Pins, devices: int, words: str) -> None:
    found = pins.conflict(devices)
    assert words in found
    assert bool(found) == bool(words)


DECIDED = (
    parse_pins(keep=["layer4=1", "head=0"], forbid=["pp", "fsdp"], tp=2, zero=0),
    parse_pins(dp=2, micro_batch=4, recompute="layers:3", schedule="1f1b", pp=4, workers=0),
    parse_pins(allow=["compress", "stale", "dualpipe"], powersgd_samples=1.5, nodes=2),
    parse_pins(strategy="dp8 zero1 m2", optimizer_state="adam-8bit"),
    parse_pins(strategy="dp8 zero1 adam-8bit", gradients="bf16", workers=2),
    parse_pins(strategy="dp8 powersgd-r2", powersgd_samples=1.5),
    Pins(forbid=("cp", "pp", "uneven")),
)


@pytest.mark.parametrize("pins", DECIDED, ids=lambda pins: " ".join(pins.options))
def test_what_was_decided_is_read_as_it_was_written(pins: Pins) -> None:
    """A plan file has it so."""
    assert read_pins(pins.options) == pins


@pytest.mark.parametrize("words", ["--dp", "--dp x", "--colour blue", "dp 2 3"])
def test_what_decides_nothing_is_refused(words: str) -> None:
    with raises("pin.unread"):
        read_pins([words])


def test_a_strategy_and_a_type_besides_are_two_decisions() -> None:
    pins = parse_pins(strategy="dp8 zero1", optimizer_state="adam-8bit")
    assert pins.names == ("--strategy dp8 zero1", "--optimizer-state adam-8bit")
    assert pins.without("--strategy dp8 zero1").names == ("--optimizer-state adam-8bit",)


@pytest.mark.parametrize(
    ("words", "plan"),
    [
        ("dp2 w1 a3", Strategy(dp=2, feeding=Feeding(workers=1))),
        ("dp2 cached", Strategy(dp=2)),
        ("dp2 in 4GiB", Strategy(dp=2)),
        ("dp4 group2", Strategy(dp=4)),
    ],
)
def test_a_word_that_a_plan_does_not_keep_is_refused(words: str, plan: Strategy) -> None:
    with raises("strategy.word-means-nothing"):
        pins_of_strategy(words).check_said(plan)


@pytest.mark.parametrize("words", ["dp2", "dp2 w1", "dp1 zero1", "placed on 2", "sharded"])
def test_what_a_name_leaves_open_is_kept_by_any_plan(words: str) -> None:
    said = read_strategy(words)
    feeding = dataclasses.replace(said.feeding, copies_ahead=1 if said.feeding.workers else 0)
    pins_of_strategy(words).check_said(dataclasses.replace(said, feeding=feeding, boundaries=(3,), zero=0))


def test_ulysses_takes_ranks_that_share_a_sequence() -> None:
    with raises("strategy.ulysses-alone"):
        pins_of_strategy("dp4 ulysses")
    assert pins_of_strategy("dp4 cp2 ulysses").ulysses
