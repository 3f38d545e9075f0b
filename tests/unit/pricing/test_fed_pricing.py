"""Loads of programs whose strategies feed, and how often their data come."""

import dataclasses

import pytest
from tests import builders
from tests.builders import cluster, network, table_for
from tests.unit.pricing.test_fed_step import SAMPLES

from trimaran.graph.types import Graph
from trimaran.pricing.program import price
from trimaran.pricing.tables import CostTable
from trimaran.pricing.types import ProgramCosts
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.strategy import Feeding, Strategy
from trimaran.program.types import Kind, Program

GRAPH = network(2)
FED = builders.strategy(dp=2, feeding=Feeding(workers=4))


def _table() -> CostTable:
    table = table_for(GRAPH)
    step = dataclasses.replace(table.steps[GRAPH.digest], samples=SAMPLES)
    return dataclasses.replace(table, steps={GRAPH.digest: step})


def _priced(strategy: Strategy, program: Program, *, table: CostTable, graph: Graph = GRAPH) -> ProgramCosts:
    return price(program, graph, strategy, table, cluster(), batch=8)


def _loads(program: Program, costs: ProgramCosts) -> set[float]:
    return {costs.compute[item.id].seconds for item in program if item.kind == Kind.LOAD}


def test_a_load_is_taking_a_microbatch_over() -> None:
    """4 samples: 0.5 ms and 4000 bytes at 1 ns."""
    program = lower(GRAPH, FED, batch=8)
    (load,) = _loads(program, _priced(FED, program, table=_table()))
    assert load == pytest.approx(0.504e-3)


def test_the_period_is_that_of_the_workers_or_of_the_cores() -> None:
    """4 samples: 20 ms standing still, 4 + 2 + 1 ms of a core.

    4 workers: 6.75 ms. Two cores: 2 times 7 ms of workers and what the ranks compute: 4 samples of layers of 1 and 2 ms
    and a loss of 1 ms, forward and twice that backward, are 48 ms a rank; 0.504 ms of taking over; the update of 1.496
    ms; and what the all-reduces move. So 57 ms, and a little.
    """
    program = lower(GRAPH, FED, batch=8)
    costs = _priced(FED, program, table=_table())
    assert costs.period is not None
    moved = sum(transfer.seconds for transfer in costs.transfers.values())
    assert costs.period.seconds == pytest.approx((14e-3 + 2 * (48e-3 + 0.504e-3 + 1.496e-3) + moved) / 2, rel=1e-6)
    many = dataclasses.replace(_table(), fingerprint=dataclasses.replace(_table().fingerprint, cores=64))
    period = _priced(FED, program, table=many).period
    assert period is not None
    assert period.seconds == pytest.approx(27e-3 / 4)


def test_in_line_nothing_changes() -> None:
    plain = builders.strategy(dp=2)
    program = lower(GRAPH, plain, batch=8)
    assert _priced(plain, program, table=_table()) == _priced(plain, program, table=table_for(GRAPH))


def test_an_evaluation_loads_in_line() -> None:
    program = lower_evaluation(GRAPH, FED, batch=8)
    assert _loads(program, _priced(FED, program, table=_table())) == {0.5e-3}


def test_what_nobody_measured_takes_at_most_what_it_takes_in_line() -> None:
    program = lower(GRAPH, FED, batch=8)
    costs = _priced(FED, program, table=table_for(GRAPH))
    (load,) = {costs.compute[item.id] for item in program if item.kind == Kind.LOAD}
    assert (load.low, load.seconds, load.high) == (0.0, 0.5e-3, 0.5e-3)
    assert costs.period is None
