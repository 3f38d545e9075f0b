"""What an explanation searches with."""

from tests import builders
from tests.unit.planner.test_search import GRAPH, TABLE, found
from tests.unit.planner.test_virtual import traced
from tests.unit.program.test_plan_file import PLAN

from trimaran.jobs.builtin import digits
from trimaran.jobs.resolve import JobSource
from trimaran.planning.explanation import problem_of


def test_a_plan_with_a_memory_budget_is_explained_by_the_steps_that_it_was_made_from() -> None:
    traces, result = {16: traced()}, found()
    planned = builders.planned(
        source=JobSource(reference="digits"),
        job=digits(),
        graph=GRAPH,
        cluster=builders.cluster(),
        table=TABLE,
        plan=PLAN,
        chosen=result.chosen,
        traces=traces,
        search=result,
    )
    assert problem_of(planned).traces is traces
