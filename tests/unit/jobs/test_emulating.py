"""What is emulated of a plan: its program, in the order in which it was written."""

from tests import builders
from tests.builders import network, table_for
from tests.graphs import lower_order, read_order
from tests.raising import raises

from trimaran.jobs.resolve import JobSource
from trimaran.planning.emulated import EmulatedJob, priced_program
from trimaran.program.lowering.lower import lower

GRAPH = network(4)
PRETENDED = EmulatedJob(
    job=JobSource(reference="digits", global_batch_size=16).make(),
    graph=GRAPH,
    table=table_for(GRAPH),
    cluster=builders.cluster(),
)
STAGES = builders.strategy(pp=2, boundaries=("op1",), microbatches=2)


def test_without_a_program_the_strategy_is_lowered() -> None:
    program, costs = priced_program(PRETENDED, STAGES)
    assert program == lower(GRAPH, STAGES, batch=16)
    assert all(item.id in (costs.transfers if item.communicates else costs.compute) for item in program)


def test_a_program_in_an_order_of_its_own_is_emulated_as_it_is() -> None:
    order = read_order("0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n")
    own = lower_order(GRAPH, order, boundaries=("op1",), batch=16)
    program, costs = priced_program(PRETENDED, STAGES, own)
    assert program is own
    assert "r0/0B1" in costs.compute


def test_a_program_of_another_strategy_is_refused() -> None:
    with raises("program.other-strategy", match=r"\b4\b.*\b2\b"):
        priced_program(
            PRETENDED, STAGES, lower(GRAPH, builders.strategy(pp=2, boundaries=("op1",), microbatches=4), batch=16)
        )
