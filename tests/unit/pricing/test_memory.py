"""Operations of the graphs used here make 4 bytes a sample and keep them; the batch has 2 + 1 bytes a sample."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st
from tests import builders
from tests.builders import network
from tests.graphs import boundaries

from trimaran.graph.types import Affine
from trimaran.pricing.memory import memory_changes, segment_memory
from trimaran.pricing.types import Cost, ProgramCosts, Transfer
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.types import Program
from trimaran.simulator.engine import simulate

TWO = builders.strategy(pp=2, boundaries=("op1",))


def _costs(program: Program, memory: dict[str, tuple[int, int]]) -> ProgramCosts:
    moment = Cost(1.0, 1.0, 1.0, "example")
    transfer = Transfer(latency_s=0.5, flow_s=0.5, links=("wire",), low=1.0, high=1.0, source="example")
    return ProgramCosts(
        compute={item.id: moment for item in program if not item.communicates},
        transfers={item.id: transfer for item in program if item.communicates},
        marks={(item.id, mark.name): 0.5 for item in program for mark in item.marks},
        resident_bytes=(0,) * len(program.ranks),
        memory=memory,
    )


def test_a_segment_keeps_what_its_operations_keep() -> None:
    """4 operations and the loss, 4 B a sample each, 8 samples: 160 B."""
    (memory,) = segment_memory(network(4), builders.strategy(), batch=8)
    assert memory.kept == 160


def test_a_storage_that_two_operations_keep_is_there_once() -> None:
    graph = network(4)
    again = dataclasses.replace(graph.ops[1], saved=("t0", "t1"))
    (memory,) = segment_memory(
        dataclasses.replace(graph, ops=(graph.ops[0], again, *graph.ops[2:])), builders.strategy(), batch=8
    )
    assert memory.kept == 160


def test_what_was_received_is_counted_by_the_message_and_not_again() -> None:
    """op2 keeps the received t1: segment 1 keeps t2, t3 and the loss, 96 B; the message brings the 32 B of t1."""
    graph = network(4)
    reader = dataclasses.replace(graph.ops[2], saved=("t1", "t2"))
    graph = dataclasses.replace(graph, ops=(*graph.ops[:2], reader, *graph.ops[3:]))
    assert [memory.kept for memory in segment_memory(graph, TWO, batch=8)] == [64, 96]
    program = lower(graph, TWO, batch=8)
    changes = memory_changes(program, segment_memory(graph, TWO, batch=8))
    assert changes["r1/1RECV_F0<0"] == (32, 0)


def test_a_workspace_that_only_its_operation_knows_is_kept() -> None:
    """80 B fixed and 1 B a sample beside the 160 B."""
    graph = network(4)
    inner = dataclasses.replace(graph.ops[0], saved=("t0", "op0/1"))
    graph = dataclasses.replace(
        graph, ops=(inner, *graph.ops[1:]), storages={**graph.storages, "op0/1": Affine(80.0, 1.0)}
    )
    (memory,) = segment_memory(graph, builders.strategy(), batch=8)
    assert memory.kept == 160 + 88


def test_a_tensor_for_another_segment_is_kept_once_however_many_read_it() -> None:
    """t0 goes to segments 1 and 2 and is kept by op0 anyway: 32 B."""
    graph = network(3, skips=((0, 2),))
    strategy = builders.strategy(pp=3, boundaries=boundaries(3))
    assert segment_memory(graph, strategy, batch=8)[0].kept == 32


def test_what_nobody_keeps_is_there_while_an_operation_makes_it() -> None:
    """op1 makes 32 B that nobody keeps; they come and go within the forward."""
    graph = network(4)
    forgetful = dataclasses.replace(graph.ops[1], saved=())
    graph = dataclasses.replace(graph, ops=(graph.ops[0], forgetful, *graph.ops[2:]))
    (memory,) = segment_memory(graph, builders.strategy(), batch=8)
    assert (memory.kept, memory.forward_peak) == (128, 32)
    changes = memory_changes(lower(graph, builders.strategy(), batch=8), (memory,))
    assert changes["r0/0F0"] == (128 + 32, 32)


def test_the_first_stage_of_gpipe_keeps_all_microbatches_and_that_of_1f1b_as_many_as_stages() -> None:
    """Two stages, 4 microbatches of 2 samples, 16 B kept by each on stage 0: at most 4 and 2 of them at a time."""
    graph = network(4)
    peaks = []
    for schedule in ("gpipe", "1f1b"):
        strategy = dataclasses.replace(TWO, schedule=schedule, microbatches=4)
        lowered = lower(graph, strategy, batch=8)
        # Without the bytes of the messages, and of what comes and goes within an instruction.
        program = dataclasses.replace(
            lowered, ranks=tuple(tuple(dataclasses.replace(item, nbytes=0) for item in rank) for rank in lowered.ranks)
        )
        kept = [
            dataclasses.replace(memory, forward_peak=0, backward_peak=0)
            for memory in segment_memory(graph, strategy, batch=2)
        ]
        timeline = simulate(program, _costs(program, memory_changes(program, kept)))
        peaks.append(timeline.peak_bytes(0))
    assert peaks == [64, 32]


@given(
    pp=st.integers(1, 3),
    dp=st.integers(1, 2),
    microbatches=st.integers(1, 4),
    schedule=st.sampled_from(["gpipe", "1f1b"]),
    skips=st.sampled_from([(), ((0, 3),), ((0, 2), (1, 4))]),
    training=st.booleans(),
)
def test_what_lives_in_a_step_dies_in_it(
    pp: int, dp: int, microbatches: int, schedule: str, skips: tuple[tuple[int, int], ...], training: bool
) -> None:
    """Live bytes never fall below what is resident, and are back at it when the step has ended."""
    graph = network(4, skips=skips)
    strategy = builders.strategy(
        dp=dp,
        pp=pp,
        boundaries=boundaries(pp),
        schedule=schedule,
        microbatches=microbatches,  # type: ignore[arg-type]
    )
    batch = 2 * dp * microbatches
    program = (lower if training else lower_evaluation)(graph, strategy, batch=batch)
    memory = memory_changes(program, segment_memory(graph, strategy, batch=2))
    timeline = simulate(program, _costs(program, memory))
    for changes in timeline.memory:
        assert changes[-1][1] == 0
        assert all(live >= 0 for _, live in changes)
