"""How ranks are fed: two layers and a loss, 12 ms a sample of forward and backward, on two cores.

Loading in line takes what its samples say. There are cores enough for workers, unless a test says otherwise.
"""

import dataclasses

import pytest
from tests import builders
from tests.builders import exact, problem
from tests.raising import raises
from tests.unit.pricing.test_fed_step import SAMPLES

from trimaran.planner.candidates import Candidate
from trimaran.planner.input_pipeline import MOST_FED, WORKER_BYTES
from trimaran.planner.pins import Pins, pins_of_strategy
from trimaran.planner.problem import Problem, Room
from trimaran.planner.result import Search
from trimaran.planner.search import search
from trimaran.planning.input_pipeline import feeding_notes
from trimaran.pricing import input_pipeline as fed_step
from trimaran.pricing.tables import SampleCosts
from trimaran.program.strategy import IN_LINE, Feeding

GIB = 2**30
ONE_DEVICE = builders.pins(dp=1, pp=1, microbatches=1)


def _problem(
    samples: SampleCosts,
    *,
    cores: int = 64,
    epochs: int = 1,
    memory_bytes: int = 64 * GIB,
    pins: Pins | None = None,
) -> Problem:
    plain = problem()
    table, digest = plain.table, plain.graph.digest
    load = {size: fed_step.load(samples, IN_LINE, microbatch=size) for size in (1, 8)}
    step = dataclasses.replace(table.steps[digest], load=load, samples=samples)
    return dataclasses.replace(
        plain,
        table=dataclasses.replace(
            table, steps={digest: step}, fingerprint=dataclasses.replace(table.fingerprint, cores=cores)
        ),
        room=Room(memory_bytes=memory_bytes, epochs=epochs),
        pins=pins or builders.pins(),
    )


def _reading(read_ms: float, *, prepare_ms: float = 0.0, repeats: bool = False) -> SampleCosts:
    return dataclasses.replace(
        SAMPLES,
        read=exact(read_ms * 1e-3),
        read_again=exact(read_ms * 1e-3),
        prepare=exact(prepare_ms * 1e-3),
        batch=exact(0.0),
        give=exact(0.0),
        repeats=repeats,
    )


def _feeding(found: Search[Candidate]) -> Feeding:
    return found.chosen.strategy.feeding


def test_quick_data_stay_in_line_and_it_is_said_what_workers_would_save() -> None:
    """0.01 ms a sample beside 12 ms."""
    found = search(_problem(_reading(0.01)))
    assert _feeding(found) == IN_LINE
    assert found.feeding[0].startswith("data are loaded in line: workers would save at most")
    assert all(candidate.strategy.feeding == IN_LINE for candidate in found.candidates)


def test_without_room_or_figures_nothing_is_fed() -> None:
    slow = _problem(_reading(50.0))
    assert search(dataclasses.replace(slow, room=None)).feeding == ()


def test_slow_reads_get_the_fewest_workers_that_are_ahead() -> None:
    """50 ms a sample: on one device 8 samples are read in 400 ms, beside a step of some 100 ms.

    Workers must make a batch in 85 % of the step.
    """
    found = search(_problem(_reading(50.0)))
    chosen = found.chosen
    samples = 8 // chosen.strategy.dp
    rest_s = chosen.step_time_s
    assert _feeding(found).workers == -(-samples * 50e-3 // (0.85 * rest_s))
    in_line = next(
        one for one in found.candidates if one.strategy == dataclasses.replace(chosen.strategy, feeding=IN_LINE)
    )
    assert chosen.step_time_s < 0.5 * in_line.step_time_s
    assert found.chosen.step_time_s == pytest.approx(rest_s)


def test_a_fed_step_is_that_without_loading() -> None:
    """Loading as it is handed over: 0.5 ms and a few bytes."""
    slow = search(_problem(_reading(50.0))).chosen
    free = dataclasses.replace(_reading(0.0), take=exact(0.0), take_per_byte=0.0)
    plain = search(_problem(free)).chosen
    assert slow.step_time_s == pytest.approx(plain.step_time_s, rel=0.02)


def test_work_that_fills_the_cores_already_stays_in_line() -> None:
    """Decoding of 6 ms a sample on two cores: two ranks have them both, and workers would only share them.

    One device with a worker beside it computes and decodes at the same time, as two ranks in line do; no more than two
    cores' work is done.
    """
    found = search(_problem(_reading(0.0, prepare_ms=6.0), cores=2, pins=builders.pins(dp=2)))
    assert _feeding(found) == IN_LINE
    assert any("is not worth it" in reason for reason in found.feeding)


def test_workers_fit_the_memory_that_ranks_leave() -> None:
    """Half of what is there is for them: room for three."""
    taken = sum(search(_problem(_reading(50.0), pins=ONE_DEVICE)).chosen.peak_bytes)
    found = search(_problem(_reading(500.0), memory_bytes=taken + 7 * WORKER_BYTES, pins=ONE_DEVICE))
    assert _feeding(found).workers == 3


def test_no_room_for_workers_is_said() -> None:
    slow = _problem(_reading(50.0), memory_bytes=0, pins=ONE_DEVICE)
    found = search(slow)
    assert _feeding(found) == IN_LINE
    reason = "no worker has room: one for each rank that reads takes 256.0 MiB, and the ranks leave 0 B"
    assert reason in found.feeding[0]
    assert feeding_notes(found) == found.feeding
    assert feeding_notes(search(_problem(_reading(0.01)))) == ()


def test_pinned_workers_are_taken_as_they_are() -> None:
    for workers in (0, 1, 7):
        found = search(_problem(_reading(50.0), pins=builders.pins(workers=workers)))
        assert _feeding(found).workers == workers
        assert {one.strategy.feeding.workers for one in found.candidates} == {workers}


def test_samples_are_kept_where_that_pays_over_the_epochs() -> None:
    """One device, reads of 500 ms, memory for one worker: each epoch but the first is without them."""
    room = 3 * WORKER_BYTES
    kept = search(_problem(_reading(500.0, repeats=True), epochs=10, memory_bytes=room))
    assert _feeding(kept).cached
    assert any("the host keeps the samples" in reason for reason in kept.feeding)
    once = search(_problem(_reading(500.0, repeats=True), epochs=1, memory_bytes=room))
    assert not _feeding(once).cached
    assert not any("kept" in reason for reason in once.feeding)


@pytest.mark.parametrize(
    ("change", "pins", "reason"),
    [
        ({"repeats": False}, builders.pins(), "not the same each time"),
        ({"stored_bytes": 0}, builders.pins(), "differ in shape"),
        ({"samples": 10**9}, builders.pins(), "and the ranks leave"),
        ({}, builders.pins(forbid=("cache",)), "--forbid cache"),
    ],
)
def test_what_cannot_be_kept_says_why(change: dict[str, object], pins: Pins, reason: str) -> None:
    samples = dataclasses.replace(_reading(500.0, repeats=True), **change)  # type: ignore[arg-type]  # one field
    found = search(_problem(samples, epochs=10, memory_bytes=3 * WORKER_BYTES, pins=pins))
    assert not _feeding(found).cached
    assert any(reason in text for text in found.feeding)


@pytest.mark.parametrize("words", ["one device cached", "one device w1 cached"])
def test_samples_are_kept_where_the_strategy_is_named_so(words: str) -> None:
    """Reads are quick, so that nothing else would keep them."""
    pins = pins_of_strategy(words)
    found = search(_problem(_reading(0.01, repeats=True), epochs=2, pins=pins))
    assert _feeding(found).cached
    pins.check_said(found.chosen.strategy)


def test_a_named_strategy_whose_samples_cannot_be_kept_is_refused() -> None:
    pins = pins_of_strategy("one device cached")
    with raises("strategy.not-cached", match="not the same each time"):
        search(_problem(_reading(0.01, repeats=False), epochs=2, pins=pins))
    with raises("strategy.not-cached", match="measured on the machine that trains"):
        search(dataclasses.replace(_problem(_reading(0.01), pins=pins), room=None))


def test_fed_candidates_are_those_of_few_strategies() -> None:
    found = search(_problem(_reading(50.0)))
    fed = {
        dataclasses.replace(one.strategy, feeding=IN_LINE)
        for one in found.candidates
        if one.strategy.feeding != IN_LINE
    }
    assert 1 <= len(fed) <= MOST_FED + 2


def test_the_same_problem_gives_the_same_feeding() -> None:
    assert search(_problem(_reading(50.0))) == search(_problem(_reading(50.0)))


@pytest.mark.parametrize(
    "pins",
    [
        builders.pins(dp=1, pp=1),
        builders.pins(pp=2),
        builders.pins(forbid=("dp",)),
        builders.pins(microbatches=4),
        builders.pins(zero=3, workers=2),
    ],
)
def test_what_goes_against_a_pin_is_not_fed(pins: Pins) -> None:
    """Plain replicas are the baseline, and with workers faster than what the pins leave."""
    found = search(_problem(_reading(50.0), pins=pins))
    assert _feeding(found).workers
    assert not any(pins.objection(one.strategy) for one in found.candidates)


def test_nothing_takes_less_than_the_bound() -> None:
    """Nor what is kept, although a sample out of memory takes less than a microbatch that is handed over."""
    quick = dataclasses.replace(_reading(500.0, repeats=True), recall=exact(0.0))
    found = search(_problem(quick, epochs=10, memory_bytes=3 * WORKER_BYTES))
    assert _feeding(found).cached
    assert found.bound_s <= min(one.objective_s for one in found.candidates)


@pytest.mark.parametrize(("room", "is_kept"), [(5, False), (7, True)])
def test_workers_and_kept_samples_share_the_memory(room: int, is_kept: bool) -> None:
    """Three workers, and samples that take as much as three: half of the memory must have room for six."""
    pins = dataclasses.replace(ONE_DEVICE, workers=3)
    taken = sum(search(_problem(_reading(50.0), pins=ONE_DEVICE)).chosen.peak_bytes)
    stored = _reading(500.0, repeats=True)
    many = dataclasses.replace(stored, samples=3 * WORKER_BYTES // stored.stored_bytes)
    found = search(_problem(many, epochs=10, memory_bytes=taken + 2 * room * WORKER_BYTES, pins=pins))
    assert _feeding(found) == Feeding(workers=3, cached=is_kept)
    assert is_kept or any("and the ranks leave" in reason for reason in found.feeding)
