from collections.abc import Mapping

import pytest

from trimaran.launch.world import World
from trimaran.measure.calibration.devices import ThreadStreams, open_clock
from trimaran.measure.findings import Timed
from trimaran.measure.rounds import MOST_ROUNDS, Item, measure_in_rounds
from trimaran.measure.wanted import WholeRun
from trimaran.runtime.streams import HostStreams

WHAT = Timed("conv", 8, "forward")


class Counted:
    """Says that it took as many seconds as it was run before."""

    def __init__(self) -> None:
        self.runs: list[int] = []

    def run(self, repeats: int) -> Mapping[Timed, list[float]]:
        self.runs.append(repeats)
        return {WHAT: [float(len(self.runs))] * repeats}


def test_short_items_are_repeated_in_every_round_and_the_warm_up_does_not_count() -> None:
    """Warm-ups run once each; then there is time for all rounds, of 4 repeats each."""
    item = Counted()
    rounds = measure_in_rounds(World(), [Item(label="conv", run=item.run)])
    warm = len(item.runs) - MOST_ROUNDS
    assert warm >= 3
    assert item.runs == [1] * warm + [4] * MOST_ROUNDS
    assert rounds[WHAT] == [[float(warm + number)] * 4 for number in range(1, MOST_ROUNDS + 1)]


def test_items_take_turns() -> None:
    order: list[str] = []

    def run(name: str) -> Mapping[Timed, list[float]]:
        order.append(name)
        return {}

    items = [Item(label=name, run=lambda repeats, name=name: run(name)) for name in "ab"]  # type: ignore[misc]
    measure_in_rounds(World(), items)
    assert order[-2 * MOST_ROUNDS :] == ["a", "b"] * MOST_ROUNDS


def test_of_long_items_the_second_run_counts_and_short_ones_have_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of 2 s take more than the time for all rounds."""
    now_s = 0.0

    class Lasting(Counted):
        def __init__(self, seconds: float) -> None:
            super().__init__()
            self.seconds = seconds

        def run(self, repeats: int) -> Mapping[Timed, list[float]]:
            nonlocal now_s
            now_s += self.seconds
            return {WHAT._replace(what=str(id(self))): super().run(repeats)[WHAT]}

    monkeypatch.setattr("trimaran.measure.rounds.time.perf_counter", lambda: now_s)
    items = [*(Lasting(2.0) for _ in range(4)), Lasting(0.01)]
    rounds = measure_in_rounds(World(), [Item(label="step", run=one.run) for one in items])
    assert [one.runs for one in items] == [[1, 1]] * 4 + [[1, 1, 1, 4]]
    assert list(rounds.values()) == [[[2.0]]] * 4 + [[[4.0] * 4]]


def test_nothing_to_measure_takes_no_round() -> None:
    assert measure_in_rounds(World(), []) == {}


def test_the_parent_hears_of_the_progress() -> None:
    heard: list[Mapping[str, object]] = []
    measure_in_rounds(World(report=heard.append), [Item(label="conv", run=Counted().run)])
    assert heard[0] == {"measuring": "warming up: conv", "done": 0, "total": 1}
    assert heard[-1] == {"measuring": "measuring operations", "done": MOST_ROUNDS - 1, "total": MOST_ROUNDS}


def test_a_run_that_fails_is_left_out_and_told() -> None:
    def fail(repeats: int) -> Mapping[Timed, list[float]]:
        raise ValueError("two samples")

    run, failed, other = WholeRun(form="module", execution="eager", batch=1), dict[WholeRun, str](), Counted()
    items = [Item(label="one", run=fail, whole=run), Item(label="conv", run=other.run)]
    assert list(measure_in_rounds(World(), items, failed=failed)) == [WHAT]
    assert list(failed) == [run]
    assert failed[run].startswith("ValueError: two samples")
    with pytest.raises(ValueError, match="two samples"):
        measure_in_rounds(World(), [Item(label="an operation", run=fail)], failed=failed)


def test_what_is_measured_alone_is_measured_where_there_is_one_rank() -> None:
    item = Counted()
    assert measure_in_rounds(World(), [Item(label="conv", run=item.run, alone=True)])[WHAT]


def test_with_more_ranks_than_cores_waiting_for_a_core_counts() -> None:
    assert isinstance(open_clock(World()), ThreadStreams)
    assert isinstance(open_clock(World(size=10**6, local_size=10**6)), HostStreams)


def test_the_clock_of_a_thread_runs_while_it_computes() -> None:
    clock = ThreadStreams()
    before = clock.nanoseconds(clock.stamp())
    total = sum(range(100_000))
    assert total == 4_999_950_000
    assert clock.nanoseconds(clock.stamp()) > before
