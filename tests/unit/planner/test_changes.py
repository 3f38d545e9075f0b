"""What a change would give, worked by hand; the figures are those of `problems.py`, in milliseconds."""

import dataclasses
from typing import Any

import pytest
from tests import builders
from tests.builders import GRADIENT_BYTES, UPDATE_MS, exact, flat, problem, proportional
from tests.raising import raises

from trimaran.planner.explanation.remedies import Outcome, default_changes, outcome_of
from trimaran.planner.explanation.what_if import changed, parse_change
from trimaran.planner.problem import Problem, assess
from trimaran.planner.search import search
from trimaran.pricing.curves import at_size
from trimaran.program.strategy import Strategy

# Load, forward, backward, exchange, update of two replicas.
STEP_MS = 0.5 + 16.0 + 32.0 + 10.0 + UPDATE_MS


# The sum of the losses, which is nothing but for its size, may be exposed.
WITHOUT_LOSS = 1e-3


def outcome(text: str, given: Problem, strategy: Strategy | None = None) -> Outcome:
    chosen = assess(builders.strategy(dp=2) if strategy is None else strategy, given)
    return outcome_of(parse_change(text), chosen, given)


@pytest.mark.parametrize(
    ("text", "saved_ms"),
    [
        ("compute=x2", (48.0 + UPDATE_MS) / 2),
        ("load=0", 0.5),
        ("load=x0.5", 0.25),
        ("interference=0", 0.0),
        ("link=x2", 5.0),
        ("wire=x0.5", 5.0),
    ],
)
def test_a_change_saves_what_it_takes_away(text: str, saved_ms: float) -> None:
    found = outcome(text, problem(all_reduce=proportional(10e-3)))
    assert found.gain == pytest.approx(saved_ms / STEP_MS, rel=WITHOUT_LOSS, abs=WITHOUT_LOSS)
    assert found.kept is not None
    assert found.kept.step_time_s == pytest.approx((STEP_MS - saved_ms) * 1e-3, rel=WITHOUT_LOSS)
    assert not found.switches


def test_without_latency_messages_of_any_size_cost_nothing() -> None:
    """A pipeline of 90.248 ms sends one message each way that nothing hides, 2 ms however small."""
    found = outcome("latency=0", problem(), builders.strategy(pp=2, microbatches=2))
    assert found.gain == pytest.approx(4.0 / 90.248, rel=1e-4)


def test_a_faster_link_does_not_shorten_latency() -> None:
    assert outcome("link=x2", problem(), builders.strategy(pp=2, microbatches=2)).gain == 0.0


def test_a_faster_link_makes_another_plan_win() -> None:
    """An exchange of 100 ms loses to one device (98.5 ms); at a tenth of it, replicas take 60 ms."""
    given = problem(all_reduce=proportional(100e-3), message=flat(1.0))
    chosen = search(given).chosen
    assert chosen.strategy == builders.strategy()
    found = outcome_of(parse_change("link=x10"), chosen, given)
    assert found.gain == 0.0
    assert found.switches
    assert found.best is not None
    assert found.best.strategy == builders.strategy(dp=2)
    assert found.best_gain == pytest.approx(1 - found.best.step_time_s / chosen.step_time_s)


def test_a_plan_that_no_longer_fits_is_replaced() -> None:
    """Two replicas need 368 bytes, stages 288; sharded state is forbidden here."""
    given = dataclasses.replace(problem(), pins=builders.pins(forbid=("zero", "p2p")))
    found = outcome("memory=300B", given)
    assert found.kept is None
    assert found.obstacle == "rank 0 needs 368 B, its device has 300 B"
    assert found.best is not None
    assert found.best.strategy.pp == 2


def test_where_nothing_fits_that_is_said() -> None:
    found = outcome("memory=10B", problem())
    assert found.best is None
    assert found.best_gain is None
    assert "no strategy fits" in found.obstacle


def test_fewer_devices_leave_what_runs_on_them() -> None:
    found = outcome("devices=1", problem())
    assert found.kept is None
    assert found.best is not None
    assert found.best.strategy.devices == 1


def test_a_machine_with_more_devices_has_as_many_cores_more() -> None:
    """Two ranks on two cores here: workers of four ranks have four. Fewer devices leave the cores that there are."""
    for devices, cores in ((4, 4), (2, 2), (1, 2)):
        fingerprint = changed(problem(), parse_change(f"devices={devices}")).table.fingerprint
        assert (fingerprint.ranks, fingerprint.cores) == (cores, cores)


def test_the_wire_comes_on_top_of_what_a_transfer_takes_without() -> None:
    """96 bytes take 10 ms here, and 10 ms more at 9,600 bytes a second."""
    held = changed(problem(all_reduce=proportional(10e-3)), parse_change("link=76.8kb/s"))
    assert at_size(held.table.curves[builders.curve_key("AR", 2)], GRADIENT_BYTES).seconds == pytest.approx(20e-3)


def test_a_link_that_is_held_is_released_as_far_as_it_is_held() -> None:
    """Held to 1 kB/s, 1,001 bytes flow for 1 s, at 10 kB/s for 0.1 s. If half of it is there bare: 0.5 s + 0.05 s."""
    key = builders.curve_key("AR", 2)
    given = problem(all_reduce=((1, exact(1e-3)), (1001, exact(1.001))))
    held = builders.linked(given.cluster, link=builders.link(bytes_per_s=1e3, source="asked"))
    given = dataclasses.replace(given, cluster=held)
    change = parse_change("link=80kb/s")
    assert at_size(changed(given, change).table.curves[key], 1001).seconds == pytest.approx(0.101)
    bare = dataclasses.replace(given, bare_curves={key: ((1, exact(1e-3)), (1001, exact(0.501)))})
    assert at_size(changed(bare, change).table.curves[key], 1001).seconds == pytest.approx(0.551)


def test_what_is_asked_of_any_plan() -> None:
    """A batch of 8 divides among 4 devices, not among 3."""
    texts = [change.text for change in default_changes(problem())]
    assert texts[-2:] == ["devices=1", "devices=4"]
    alone = dataclasses.replace(problem(), devices=1)
    assert [change.text for change in default_changes(alone)] == ["compute=x2", "load=0", "devices=2"]


@pytest.mark.parametrize(
    "text",
    [
        "link=x2",
        "link=1Gb/s",
        "network=x2",
        "network=1Gb/s",
        "latency=0",
        "wire=x0.5",
        "load=x0.25",
        "memory=8.0GiB",
        "devices=4",
    ],
)
def test_a_change_is_written_as_it_is_read(text: str) -> None:
    assert parse_change(text).text == text


@pytest.mark.parametrize(
    ("text", "code", "figures"),
    [
        ("lnk=x2", "what-if.unknown-name", {"match": '"link"'}),
        ("link", "what-if.no-value", {"match": '"link=10Gb/s"', "what_if": "link"}),
        ("link=fast", "what-if.unknown-link", {}),
        ("link=0", "what-if.zero", {"match": "means nothing"}),
        ("compute=x0", "what-if.zero", {"match": "means nothing"}),
        ("compute=2", "what-if.factor-expected", {}),
        ("load=xx", "what-if.not-a-number", {}),
        ("load=x-1", "what-if.zero", {"match": "means nothing"}),
        ("load=xnan", "what-if.zero", {"match": "means nothing"}),
        ("link=x1e7", "what-if.factor-out-of-range", {"match": "1e-06.*1e"}),
        ("wire=x1e-300", "what-if.factor-out-of-range", {"match": "1e-06.*1e"}),
        ("memory=1e400GiB", "quantity.out-of-bounds", {}),
        ("link=1e400Gb/s", "quantity.out-of-bounds", {}),
        ("memory=12", "quantity.malformed", {}),
        ("devices=0", "what-if.zero", {"match": "means nothing"}),
        ("devices=x2", "what-if.count-expected", {}),
        ("devices=many", "what-if.bad-device-count", {"match": r"\b1\b"}),
        ("network=fast", "quantity.malformed", {}),
    ],
)
def test_what_means_nothing_is_refused(text: str, code: str, figures: dict[str, Any]) -> None:
    with raises(code, **figures):
        parse_change(text)


def test_costs_of_two_ranks_are_not_those_of_a_thousand() -> None:
    with raises("what-if.bad-device-count", match=r"\b1\b.*\b64\b"):
        changed(problem(), parse_change("devices=1000"))


def test_ranks_of_one_host_have_no_network() -> None:
    with raises("what-if.catalog-only", match='"link"'):
        changed(problem(), parse_change("network=x2"))


def test_exact_sizes_keep_their_cost_when_the_wire_halves() -> None:
    """What 96 bytes took, 192 bytes would take."""
    curve = changed(problem(all_reduce=((96, exact(1.0)),)), parse_change("wire=x0.5")).table.curves[
        builders.curve_key("AR", 2)
    ]
    assert curve == ((192, exact(1.0)),)
