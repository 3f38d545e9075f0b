"""Compiled costs are measured only where they may pay."""

import dataclasses
from collections.abc import Collection, Sequence

from tests import builders
from tests.builders import network, table_for

from trimaran.base.errors import ExecutionError
from trimaran.base.job import Job
from trimaran.machine.types import Allocation
from trimaran.planner.candidates import Candidate
from trimaran.planner.epoch import EpochData
from trimaran.planner.result import Search
from trimaran.planner.space import enumerate_strategies
from trimaran.planning.best_strategy import WORTH_COMPILING_S, Trace, find_best, priced_sizes
from trimaran.planning.measurement import Calibrated
from trimaran.planning.preparation import Prepared
from trimaran.pricing.offload_costs import TracedStep
from trimaran.pricing.tables import CostTable
from trimaran.program.strategy import Execution

GRAPH = network(4)
CLUSTER = builders.cluster()


def table(executions: Sequence[Execution]) -> CostTable:
    """The whole model takes 11 ms a sample forward; compiled half of that."""
    known = table_for(GRAPH, whole_s=0.088)
    wholes = {}
    for execution in executions:
        for size in (2, 16):
            whole = known.wholes[builders.whole_key(GRAPH.digest, "graph")][8]
            factor = size / 8 * (0.5 if execution == "compiled" else 1.0)
            wholes.setdefault(builders.whole_key(GRAPH.digest, "graph", execution), {})[size] = builders.whole_cost(
                forward=whole.forward.scaled(factor),
                backward=whole.backward.scaled(factor),
                evaluation=whole.evaluation.scaled(factor),
            )
    return dataclasses.replace(known, wholes=wholes)


class Measured:
    """Gives costs by hand and remembers what was asked for."""

    def __init__(self, *, compiles: bool = True) -> None:
        self.asked: list[tuple[Execution, ...]] = []
        self._compiles = compiles

    def __call__(self, sizes: Collection[int], executions: Sequence[Execution]) -> CostTable:
        self.asked.append(tuple(executions))
        if "compiled" in executions and not self._compiles:
            raise ExecutionError("there is no compiler")
        return table(executions)


def job(epochs: int) -> Job:
    return Job(
        model=dict,  # type: ignore[arg-type]  # never made
        loss=None,
        optimizer=dict,  # type: ignore[arg-type]
        dataset=dict,  # type: ignore[arg-type]
        global_batch_size=16,
        epochs=epochs,
    )


def prepared(made: Job, cluster: Allocation) -> Prepared:
    data = EpochData(samples=1600)
    return Prepared(job=made, graph=GRAPH, cluster=cluster, data=data, calibrated=Calibrated())


def trace_nothing(sizes: Collection[int]) -> dict[int, TracedStep]:
    """There is memory enough, so that nobody asks."""
    raise AssertionError(f"microbatches of {sizes} were to be traced")


def find(
    epochs: int, *, compiles: bool = True, **asked: object
) -> tuple[Search[Candidate], list[tuple[Execution, ...]]]:
    """An epoch is 100 steps of 0.27 s on two replicas."""
    measured = Measured(compiles=compiles)
    request = builders.plan_request(**asked)  # type: ignore[arg-type]
    found, _ = find_best(prepared(job(epochs), CLUSTER), request, measured, trace_nothing)
    return found, measured.asked


def executions(found: Search[Candidate]) -> set[Execution]:
    return {candidate.strategy.execution for candidate in found.candidates}


def test_a_long_training_that_cannot_be_compiled_is_planned_without() -> None:
    found, asked = find(100, compiles=False)
    assert asked == [("eager",), ("eager", "compiled")]
    assert executions(found) == {"eager"}
    reasons = {one.reason for one in found.rejected if one.strategy.execution == "compiled"}
    assert reasons == {"it could not be compiled here: there is no compiler"}


def test_what_fails_in_its_trial_run_is_rejected_with_the_reason_and_another_plan_is_made() -> None:
    tried: list[str] = []

    def try_choice(candidate: Candidate, table: CostTable) -> CostTable | None:
        tried.append(candidate.strategy.name)
        if candidate.strategy.dp > 1:
            raise ExecutionError("rank 1 died")
        return None

    request = builders.plan_request(execution="eager")
    measured = Measured()
    found, _ = find_best(prepared(job(2), CLUSTER), request, measured, trace_nothing, try_choice)
    assert tried[0] == "dp2"
    assert found.chosen.strategy.name == tried[-1]
    assert found.chosen.strategy.dp == 1
    (reason,) = {one.reason for one in found.rejected if one.strategy.name == "dp2"}
    assert reason == "a trial run of dp2 failed: rank 1 died"


def test_a_short_training_is_not_compiled_for_and_the_figures_say_why() -> None:
    """2 epochs: 200 · 0.267 s = 53.4 s."""
    found, asked = find(2)
    assert asked == [("eager",)]
    assert executions(found) == {"eager"}
    reasons = {one.reason for one in found.rejected if one.strategy.execution == "compiled"}
    assert len(reasons) == 1
    assert reasons.pop().startswith("the whole training takes 53.4 s by dp2; compiling")


def test_every_compiled_strategy_is_listed_as_rejected() -> None:
    found, _ = find(2)
    both, _ = enumerate_strategies(GRAPH, devices=2, batch=16, executions=("eager", "compiled"))
    compiled = [one.strategy for one in found.rejected if one.cause == "compiling"]
    assert compiled == [strategy for strategy in both if strategy.execution == "compiled"]


def test_a_long_training_is() -> None:
    """30 epochs: 3,000 · 0.27 s = 13 min; compiled, half of it."""
    found, asked = find(30)
    assert 3000 * found.baseline.step_time_s > WORTH_COMPILING_S
    assert asked == [("eager",), ("eager", "compiled")]
    assert executions(found) == {"eager", "compiled"}
    assert found.chosen.strategy.name == "dp2 compiled"
    assert found.baseline.strategy.name == "dp2"


def test_eager_never_compiles() -> None:
    found, asked = find(30, execution="eager")
    assert asked == [("eager",)]
    assert all(one.strategy.execution == "eager" for one in (*found.candidates, *found.rejected))


def test_compiled_is_compiled_however_short_the_training_is() -> None:
    found, asked = find(1, execution="compiled")
    assert asked == [("eager", "compiled")]
    assert executions(found) == {"compiled"}


def test_the_objective_of_the_request_is_honoured() -> None:
    found, _ = find(1, objective="epoch")
    assert all(candidate.epoch_s is not None for candidate in found.candidates)


def test_sizes_that_are_measured_are_those_of_all_strategies() -> None:
    """16 samples: whole, halves, quarters, eighths; a pipeline of 2 stages has up to 8 microbatches."""
    assert priced_sizes(GRAPH, devices=2, batch=16) == (2, 4, 8, 16)


def test_where_steps_cannot_be_traced_what_fits_without_is_planned() -> None:
    def fail(sizes: Collection[int]) -> dict[int, TracedStep]:
        raise ExecutionError("rank 0 raised TypeError")

    def planned(memory_bytes: int, trace: Trace) -> Search[Candidate]:
        cluster = builders.cluster(memory_bytes=memory_bytes)
        request = builders.plan_request(execution="eager")
        return find_best(prepared(job(2), cluster), request, Measured(), trace)[0]

    peaks = sorted({max(one.peak_bytes) for one in planned(2**30, trace_nothing).candidates})
    found = planned(peaks[1], fail)
    assert all(max(one.peak_bytes) <= peaks[1] for one in found.candidates)
    assert any(one.reason.endswith("could not be traced: rank 0 raised TypeError") for one in found.rejected)
