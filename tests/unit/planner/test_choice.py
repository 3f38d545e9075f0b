"""A strategy must be believed faster, not only be measured so, before it displaces a simpler one."""

import pytest
from tests import builders

from trimaran.planner.candidates import Candidate
from trimaran.planner.choice import (
    GOALS,
    choose,
    is_reference,
    may_be_as_fast,
    pareto_front,
    rule_of_choice,
    shown,
    what_is_simpler,
    why_chosen,
)
from trimaran.program.strategy import Strategy

PIPELINE = builders.strategy(pp=2, boundaries=("a",), microbatches=4)
REPLICAS = builders.strategy(dp=2)


def candidate(
    strategy: Strategy, low: float, median: float, high: float, *, peak: int = 0, epoch_s: float | None = None
) -> Candidate:
    return builders.candidate(strategy, median, (low, high), peak_bytes=peak, epoch_s=epoch_s)


def certain(strategy: Strategy, seconds: float, peak: int = 0) -> Candidate:
    return candidate(strategy, seconds, seconds, seconds, peak=peak)


@pytest.mark.parametrize(
    ("pipeline", "chosen"),
    [
        # Half the time in every case: chosen, although its high end lies above the replicas' median.
        ((5.0, 6.0, 12.0), PIPELINE),
        # Slower where all costs are low: not believed.
        ((10.5, 9.0, 15.0), REPLICAS),
        # 2 % faster everywhere is less than what the model leaves out.
        ((9.8, 11.76, 19.6), REPLICAS),
    ],
)
def test_a_pipeline_displaces_replicas_only_if_faster_in_every_case(
    pipeline: tuple[float, float, float], chosen: Strategy
) -> None:
    """The replicas take 10, 12 and 20 s where all costs are low, at their median, and high."""
    replicas = candidate(REPLICAS, 10.0, 12.0, 20.0)
    assert choose([candidate(PIPELINE, *pipeline), replicas]).strategy == chosen


@pytest.mark.parametrize(
    "other",
    [
        builders.strategy(dp=2, bucket_bytes=2**20),
        builders.strategy(dp=2, microbatches=2),
        builders.strategy(dp=2, execution="compiled"),
    ],
)
def test_what_is_added_to_plain_replicas_must_pay(other: Strategy) -> None:
    """2 % faster is not enough, 4 % is."""
    replicas = certain(REPLICAS, 1.0)
    assert choose([certain(other, 0.98), replicas]).strategy == REPLICAS
    assert choose([certain(other, 0.96), replicas]).strategy == other


def test_the_time_of_an_epoch_decides_where_it_is_known() -> None:
    """The pipeline has the shorter step, and the longer epoch."""
    pipeline = candidate(PIPELINE, 1.0, 1.0, 1.0, epoch_s=30.0)
    assert choose([pipeline, candidate(REPLICAS, 2.0, 2.0, 2.0, epoch_s=20.0)]).strategy == REPLICAS


def test_the_front_has_what_nothing_beats_in_time_memory_and_devices() -> None:
    """On two devices (1 s, 9 B) and (3 s, 5 B) are on it, 2 s with 9 B and 4 s with 5 B lose to one of them.

    On one device 5 s with 9 B is on it: nothing else needs one only.
    """
    figures = [(3.0, 5, 2), (2.0, 9, 2), (1.0, 9, 2), (4.0, 5, 2), (5.0, 9, 1)]
    candidates = [certain(builders.strategy(dp=dp), seconds, peak) for seconds, peak, dp in figures]
    assert [one.step_time_s for one in pareto_front(candidates)] == [1.0, 3.0, 5.0]


def test_of_equals_the_simplest_is_on_the_front() -> None:
    assert pareto_front([certain(PIPELINE, 1.0, 5), certain(REPLICAS, 1.0, 5)])[0].strategy == REPLICAS


def test_what_people_do_without_a_plan() -> None:
    strategies = [
        builders.strategy(),
        builders.strategy(dp=4),
        builders.strategy(dp=4, microbatches=2),
        builders.strategy(dp=2),
        builders.strategy(microbatches=2),
        builders.strategy(dp=4, bucket_bytes=2**20),
        builders.strategy(dp=4, microbatches=4),
        PIPELINE,
    ]
    assert [is_reference(strategy, devices=4) for strategy in strategies] == [True] * 3 + [False] * 5


class TestShown:
    """40 candidates: replicas with 1 to 20 microbatches, then pipelines with 21 to 40."""

    CANDIDATES = tuple(
        certain(
            builders.strategy(dp=2 if count <= 20 else 1, pp=1 if count <= 20 else 2, microbatches=count), float(count)
        )
        for count in range(1, 41)
    )

    def rows(self, *, always: tuple[int, ...] = (), front: tuple[int, ...] = ()) -> list[int]:
        """Microbatches of those that are shown, with those of the arguments."""
        numbers = {candidate.strategy.microbatches: candidate for candidate in self.CANDIDATES}
        rows = shown(
            self.CANDIDATES, always=[numbers[one] for one in always], front=[numbers[one] for one in front], rows=6
        )
        return [candidate.strategy.microbatches for candidate in rows]

    def test_the_best_of_each_family(self) -> None:
        assert self.rows() == [1, 2, 3, 21, 22, 23]

    def test_the_front_goes_before_the_second_best_of_a_family(self) -> None:
        assert self.rows(front=(30, 31, 32)) == [1, 2, 21, 30, 31, 32]

    def test_what_must_be_there_is_there_in_any_number(self) -> None:
        assert self.rows(always=tuple(range(10, 18)), front=(30,)) == [*range(10, 18)]


class TestRule:
    """Why a plan was chosen over what is listed as faster; times are low, median and high, in seconds."""

    BEST = candidate(builders.strategy(dp=2, microbatches=4), 9.0, 10.0, 11.0)
    SLOWER = candidate(REPLICAS, 9.0, 11.0, 20.0)

    def test_the_fastest_needs_none(self) -> None:
        assert rule_of_choice(self.BEST, [self.BEST, self.SLOWER]) == ""

    def test_the_simpler_one_within_the_uncertainty_says_what_is_simpler(self) -> None:
        assert choose([self.BEST, self.SLOWER]) is self.SLOWER
        rule = rule_of_choice(self.SLOWER, [self.BEST, self.SLOWER])
        assert "9 % faster (10.0 s against 11.0 s), which is within the uncertainty" in rule
        assert rule.endswith("is chosen for fewer microbatches.")

    def test_what_is_surely_faster_than_the_chosen_one_loses_by_the_same_rule(self) -> None:
        """The chosen one may be as fast as the fastest, by its low end; by none of the three as fast as the third."""
        third = candidate(builders.strategy(dp=2, microbatches=2), 8.5, 10.5, 12.0)
        assert choose([self.BEST, third, self.SLOWER]) is self.SLOWER
        assert not may_be_as_fast(self.SLOWER.cases, third.cases)
        said = why_chosen(self.SLOWER, third, candidates=[self.BEST, third, self.SLOWER])
        assert "may be as fast as the fastest, dp2 m4, and is chosen for fewer microbatches" in said
        assert "plan again" not in said
        assert "plan again" in why_chosen(self.SLOWER, third)

    def test_what_goes_against_a_pin_is_told_apart(self) -> None:
        rule = rule_of_choice(self.SLOWER, [self.SLOWER], references=[self.BEST])
        assert rule.endswith("but it is ruled out by your options.")

    def test_a_plan_for_a_target_says_its_goal(self) -> None:
        slow = candidate(REPLICAS, 30.0, 40.0, 50.0)
        rule = rule_of_choice(slow, [self.BEST, slow], goal=GOALS["cost"])
        assert rule.endswith("is chosen for the least cost to the target.")

    def test_each_way_to_be_simpler_has_its_words(self) -> None:
        assert what_is_simpler(builders.strategy(dp=2), builders.strategy(dp=2, bucket_bytes=1)) == (
            "the usual size of buckets"
        )
        assert what_is_simpler(builders.strategy(dp=2), builders.strategy(dp=2, execution="compiled")) == (
            "no compilation"
        )
