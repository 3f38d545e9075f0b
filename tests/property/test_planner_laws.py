"""Laws of the planner, on random networks whose costs are drawn at random.

A lower bound is never above what is simulated, and a search that leaves candidates out because of their bounds finds
what a search finds that simulates all of them.
"""

import dataclasses
import random
from dataclasses import dataclass

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests import builders
from tests.builders import HERE, network

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.graph.types import Graph
from trimaran.machine.types import Allocation
from trimaran.planner.bounds import busiest_part
from trimaran.planner.candidates import Candidate, evaluate
from trimaran.planner.choice import choose, is_plain
from trimaran.planner.epoch import EpochData
from trimaran.planner.problem import Problem, quick_bounds, split_for
from trimaran.planner.search import search
from trimaran.planner.space import enumerate_strategies
from trimaran.pricing.program import least_peaks
from trimaran.pricing.tables import CostTable, TensorFit
from trimaran.pricing.types import Cost, Interference
from trimaran.program.rules.fits_graph import check_strategy
from trimaran.program.strategy import Strategy

# Sums of tens of floats near 1, in another order than the simulator's.
TOLERANCE = 1e-9
BATCHES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a problem is made from; small, so that a counterexample can be read."""

    length: int
    skips: tuple[tuple[int, int], ...]
    buffers: bool
    clip: bool
    devices: int
    linked: bool
    kind: str
    interference: Interference
    seed: int
    epoch: EpochData | None

    @property
    def graph(self) -> Graph:
        return network(self.length, skips=self.skips, buffers=self.buffers)

    @property
    def cluster(self) -> Allocation:
        numbers = random.Random(self.seed)
        link = builders.link(bytes_per_s=numbers.uniform(50, 5000), latency_s=numbers.random(), source="drawn")
        return builders.cluster(self.devices, name="drawn", joint=link if self.linked else None)

    @property
    def table(self) -> CostTable:
        numbers = random.Random(self.seed)

        def cost(scale: float = 1.0) -> Cost:
            seconds = scale * numbers.choice([0.0, 1.0, numbers.uniform(0.0, 2.0)])
            return Cost(seconds, seconds * numbers.uniform(0.3, 1.0), seconds * numbers.uniform(1.0, 3.0), "drawn")

        def fit() -> TensorFit:
            fixed, tensor, byte = (numbers.uniform(0.0, size) for size in (1.0, 0.1, 0.01))
            return builders.tensor_fit(
                fixed_s=fixed, per_tensor_s=tensor, per_byte_s=byte, low=0.5, high=2.0, source="drawn"
            )

        def curve() -> tuple[tuple[int, Cost], ...]:
            first, each = cost(0.5).seconds, numbers.uniform(0.0, 0.02)
            points = ((size, first + size * each) for size in (1, 16, 256, 4096))
            return tuple((size, Cost(seconds, 0.7 * seconds, 1.5 * seconds, "drawn")) for size, seconds in points)

        graph = self.graph
        keys = [
            builders.curve_key("SEND", 2),
            *(builders.curve_key(kind, ranks) for kind in ("AR", "BC") for ranks in (2, 3, 4)),
        ]
        return builders.cost_table(
            fingerprint=dataclasses.replace(HERE, kind=self.kind, cores=numbers.choice([2, 8])),
            operations={
                builders.operation_key(op.content): {
                    size: builders.op_cost(forward=cost(), backward=cost()) for size in (1, 8)
                }
                for op in graph.ops
            },
            steps={
                graph.digest: builders.step_costs(
                    update=fit(), clip=fit(), load={1: cost(), 16: cost()}, state_bytes_per_byte=2.0
                )
            },
            curves={key: curve() for key in keys},
            interference={"AR": self.interference, "SEND": self.interference},
        )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    length = draw(st.integers(2, 5))
    ends = st.tuples(st.integers(0, length), st.integers(0, length))
    factors = st.sampled_from([0.5, 1.0, 1.25, 3.0])
    epochs = st.builds(
        EpochData, samples=st.integers(16, 60), evaluation_samples=st.integers(0, 40), drop_last=st.booleans()
    )
    return Case(
        length=length,
        skips=tuple((source, target) for source, target in draw(st.lists(ends, max_size=2)) if target > source + 1),
        buffers=draw(st.booleans()),
        clip=draw(st.booleans()),
        devices=draw(st.integers(1, 3)),
        linked=draw(st.booleans()),
        kind=draw(st.sampled_from(["cpu", "cuda"])),
        interference=builders.interference(compute=draw(factors), communication=draw(factors), latency=draw(factors)),
        seed=draw(st.integers(0, 2**32 - 1)),
        epoch=draw(st.none() | epochs),
    )


def strategies(case: Case) -> list[Strategy]:
    kept, _ = enumerate_strategies(case.graph, devices=case.devices, batch=16)
    # Buckets of a weight and a bias, which networks as small as these would not be given.
    kept += [dataclasses.replace(one, bucket_bytes=50) for one in kept if one.dp > 1]
    kept += [dataclasses.replace(one, sync="p2p") for one in kept if one.dp > 1 and is_plain(one)]
    found = []
    # A few of each case; over many cases all of them.
    for strategy in random.Random(case.seed).sample(kept, min(len(kept), 12)):
        try:
            found.append(split_for(strategy, problem(case, case.cluster)))
            check_strategy(case.graph, found[-1], batch=16)
        except InfeasibleError:
            continue
        except InputError:
            # A combination that no program has.
            found.pop()
    return found


def simulated(case: Case, strategy: Strategy) -> Candidate:
    return evaluate(strategy, problem(case, case.cluster))


def problem(case: Case, cluster: Allocation) -> Problem:
    return builders.problem(
        graph=case.graph,
        table=case.table,
        cluster=cluster,
        batch=16,
        clip=case.clip,
        epoch=case.epoch,
        # Placements are solved with a limit of their own, and have laws of their own.
        pins=builders.pins(forbid=("placement",)),
    )


LATENCY_IS_HIDDEN = Case(
    length=2,
    skips=(),
    buffers=False,
    clip=False,
    devices=2,
    linked=False,
    kind="cpu",
    interference=builders.interference(communication=0.5, latency=0.5),
    seed=1,
    epoch=None,
)


@given(cases())
@example(LATENCY_IS_HIDDEN)
def test_a_bound_is_never_above_the_simulation(case: Case) -> None:
    for strategy in strategies(case):
        candidate = simulated(case, strategy)
        given = problem(case, case.cluster)
        quick = quick_bounds(given).of(strategy)
        assert quick.step_time_s <= candidate.step_time_s * (1 + TOLERANCE), strategy.name
        assert max(quick.peak_bytes) <= max(candidate.peak_bytes), strategy.name
        for bounded, taken in zip(quick.cases, candidate.cases, strict=True):
            assert bounded <= taken * (1 + TOLERANCE), strategy.name
        if not strategy.parts:
            peaks = least_peaks(case.graph, strategy, case.table, batch=given.batch)
            for rank, peak_bytes in enumerate(candidate.peak_bytes):
                assert peaks[rank % len(peaks)] <= peak_bytes, strategy.name
                if strategy.pp == 1 and strategy.sync != "p2p":
                    assert peaks[rank % len(peaks)] == peak_bytes, strategy.name


@given(cases())
def test_no_step_is_shorter_than_what_its_busiest_part_does(case: Case) -> None:
    for strategy in strategies(case):
        if strategy.parts:
            continue
        candidate = simulated(case, strategy)
        taken = (candidate.interval_s[0], candidate.step_time_s, candidate.interval_s[1])
        for bounded, seconds in zip(busiest_part(strategy, problem(case, case.cluster)), taken, strict=True):
            assert bounded <= seconds * (1 + TOLERANCE), strategy.name


def everything_simulated(case: Case, strategies: list[Strategy]) -> list[Candidate]:
    """The simulation of each strategy that can be cut and lowered."""
    everything = []
    for strategy in strategies:
        try:
            everything.append(simulated(case, split_for(strategy, problem(case, case.cluster))))
        except (InfeasibleError, InputError):
            continue
    return everything


@settings(max_examples=25)
@given(cases(), st.sampled_from([1.0, 0.6, 0.3]))
def test_what_is_left_out_does_not_change_the_choice(case: Case, memory: float) -> None:
    """Against a simulation of everything, with all the memory that is needed or only a part of it.

    What a search tries beyond the space, in more microbatches, is compared as well.
    """
    kept, _ = enumerate_strategies(
        case.graph, devices=case.devices, batch=16, pins=builders.pins(forbid=("placement",))
    )
    everything = everything_simulated(case, kept)
    most = round(memory * max(max(candidate.peak_bytes) for candidate in everything))
    cluster = dataclasses.replace(case.cluster, memory_bytes=(most,) * case.devices)
    if any(candidate.strategy.pp > 1 and max(candidate.peak_bytes) > most for candidate in everything):
        # Stages that are too large are cut again, for memory: `test_stages_are_cut_for_memory`.
        kept = [strategy for strategy in kept if strategy.pp == 1]
        case_pins = builders.pins(forbid=("placement", "pp"))
    else:
        case_pins = builders.pins(forbid=("placement",))
    fitting = [one for one in everything if max(one.peak_bytes) <= most and not case_pins.objection(one.strategy)]
    if not fitting:
        return
    result = search(dataclasses.replace(problem(case, cluster), pins=case_pins))
    fitting += [one for one in result.candidates if one.strategy.microbatches > 4 * one.strategy.pp]
    assert result.chosen.strategy == choose(fitting).strategy
    assert len(result.candidates) + len(result.rejected) >= len(kept)
