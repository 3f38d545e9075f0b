import dataclasses

from tests import builders
from tests.graphs import BIAS_BYTES, BUFFER_BYTES, WEIGHT_BYTES, boundaries, chain, parameter

from trimaran.pricing.memory import rank_states
from trimaran.program.lowering.lower import lower

LAYER = WEIGHT_BYTES + BIAS_BYTES


def test_each_stage_holds_its_own_parameters_and_buffers() -> None:
    """4 layers over 2 stages: 2 layers of 48 B and 2 buffers of 16 B each."""
    graph = chain(4, buffers=True)
    strategy = builders.strategy(pp=2, boundaries=("op1",))
    states = rank_states(lower(graph, strategy, batch=2), graph, strategy)
    assert [(state.parameters, state.trained_tensors, state.buffers) for state in states] == [
        (2 * LAYER, 4, 2 * BUFFER_BYTES)
    ] * 2


def test_a_weight_that_two_stages_share_is_on_both() -> None:
    """op0 and op3 share a weight: stage 0 holds it and two biases and op1's weight, stage 1 it, two biases, op2's."""
    graph = chain(4, tied=[(0, 3)])
    strategy = builders.strategy(pp=2, boundaries=("op1",))
    states = rank_states(lower(graph, strategy, batch=2), graph, strategy)
    assert [state.parameters for state in states] == [2 * LAYER, 2 * LAYER]
    assert sum(parameter.nbytes for parameter in graph.parameters) == 4 * LAYER - WEIGHT_BYTES


def test_a_weight_that_one_stage_uses_twice_is_there_once() -> None:
    graph = chain(4, tied=[(0, 1)])
    strategy = builders.strategy(pp=2, boundaries=("op1",))
    states = rank_states(lower(graph, strategy, batch=2), graph, strategy)
    assert [state.parameters for state in states] == [2 * LAYER - WEIGHT_BYTES, 2 * LAYER]


def test_replicas_hold_all_with_what_no_operation_reads() -> None:
    graph = dataclasses.replace(chain(2), parameters=(*chain(2).parameters, parameter("unused", 1000)))
    states = rank_states(lower(graph, builders.strategy(dp=2), batch=2), graph, builders.strategy(dp=2))
    assert [state.parameters for state in states] == [2 * LAYER + 1000] * 2


def test_frozen_parameters_have_neither_gradient_nor_state() -> None:
    """96 B of parameters, 48 B of them trained, with 2 B of state a byte: 96 + 48 + 96 B."""
    graph = chain(2)
    frozen = tuple(dataclasses.replace(part, trainable=not part.name.startswith("op0")) for part in graph.parameters)
    graph = dataclasses.replace(graph, parameters=frozen)
    (state,) = rank_states(lower(graph, builders.strategy(), batch=2), graph, builders.strategy())
    assert (state.parameters, state.trained, state.trained_tensors) == (2 * LAYER, LAYER, 2)
    assert state.resident_bytes(state_bytes_per_byte=2.0) == 96 + 48 + 96


def test_a_rank_with_two_segments_holds_both() -> None:
    """Three segments of one layer; the loss belongs to the last."""
    graph = chain(3)
    strategy = builders.strategy(pp=3, boundaries=boundaries(3))
    program = lower(graph, strategy, batch=3)
    both = dataclasses.replace(program, ranks=((*program.ranks[0], *program.ranks[1]), program.ranks[2]))
    assert [state.parameters for state in rank_states(both, graph, strategy)] == [2 * LAYER, LAYER]
