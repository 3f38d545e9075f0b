"""Laws of fed steps, whatever samples take."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st
from tests import builders
from tests.builders import cluster, network, table_for

from trimaran.pricing import input_pipeline as fed_step
from trimaran.pricing.program import price
from trimaran.pricing.tables import SampleCosts
from trimaran.pricing.types import Cost
from trimaran.program.lowering.lower import lower
from trimaran.program.strategy import IN_LINE, Feeding
from trimaran.simulator.engine import simulate, with_waits

GRAPH = network(2)
TIMES = st.floats(min_value=0.0, max_value=0.1)


@st.composite
def costs(draw: st.DrawFn) -> Cost:
    low, seconds, high = sorted(draw(TIMES) for _ in range(3))
    return Cost(seconds, low, high, "drawn")


SAMPLES = st.builds(
    SampleCosts,
    read=costs(),
    read_again=costs(),
    prepare=costs(),
    batch=costs(),
    take=costs(),
    take_per_byte=st.floats(min_value=0.0, max_value=1e-6),
    start_s=TIMES,
    sample_bytes=st.integers(min_value=1, max_value=10**6),
    stored_bytes=st.integers(min_value=0, max_value=10**6),
    samples=st.integers(min_value=1, max_value=10**6),
    repeats=st.booleans(),
    give=costs(),
    recall=costs(),
)
FEEDINGS = st.builds(Feeding, workers=st.integers(0, 40), cached=st.booleans())


@given(samples=SAMPLES, feeding=FEEDINGS, size=st.integers(1, 64))
def test_costs_lie_in_their_intervals_and_grow_with_the_microbatch(
    samples: SampleCosts, feeding: Feeding, size: int
) -> None:
    small, large = (fed_step.load(samples, feeding, microbatch=one) for one in (size, size + 1))
    assert 0.0 <= small.low <= small.seconds <= small.high
    assert small.seconds <= large.seconds * (1 + 1e-12)
    found = fed_step.period(samples, feeding, microbatch=size, microbatches=2, cores=2, busy_s=0.01)
    assert 0.0 <= found.low <= found.seconds <= found.high


@given(samples=SAMPLES, workers=st.integers(1, 40), size=st.integers(1, 64), cores=st.integers(1, 64))
def test_one_more_worker_or_core_never_makes_the_period_longer(
    samples: SampleCosts, workers: int, size: int, cores: int
) -> None:
    def period(workers: int, cores: int) -> float:
        feeding = Feeding(workers=workers)
        return fed_step.period(
            samples, feeding, microbatch=size, microbatches=1, readers=2, busy_s=0.05, cores=cores
        ).seconds

    before = period(workers, cores) * (1 + 1e-12)
    assert period(workers + 1, cores) <= before
    assert period(workers, cores + 1) <= before


@given(samples=SAMPLES, workers=st.integers(1, 40), microbatches=st.sampled_from((1, 2)))
def test_a_fed_step_takes_at_least_the_period_and_at_least_what_it_takes_with_its_data_there(
    samples: SampleCosts, workers: int, microbatches: int
) -> None:
    """And no longer than the longer of the two."""
    strategy = builders.strategy(dp=2, microbatches=microbatches, feeding=Feeding(workers=workers))
    table = table_for(GRAPH)
    step = dataclasses.replace(table.steps[GRAPH.digest], samples=samples)
    table = dataclasses.replace(table, steps={GRAPH.digest: step}, interference={})
    program = lower(GRAPH, strategy, batch=8)
    priced = price(program, GRAPH, strategy, table, cluster(), batch=8)
    assert priced.period is not None
    alone_s = simulate(program, dataclasses.replace(priced, period=None)).makespan_s
    step_s = simulate(program, with_waits(program, priced)).makespan_s
    longer_s = max(alone_s, priced.period.seconds)
    assert longer_s * (1 - 1e-9) <= step_s <= longer_s * (1 + 1e-9)


@given(samples=SAMPLES, factor=st.floats(min_value=0.0, max_value=10.0), size=st.integers(1, 16))
def test_a_data_set_that_is_as_many_times_slower_loads_as_many_times_longer(
    samples: SampleCosts, factor: float, size: int
) -> None:
    for feeding in (IN_LINE, Feeding(workers=2), Feeding(cached=True)):
        one, other = (fed_step.load(each, feeding, microbatch=size) for each in (samples, samples.scaled(factor)))
        assert abs(other.seconds - factor * one.seconds) <= 1e-9 * (1.0 + other.seconds)
