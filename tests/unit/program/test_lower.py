import dataclasses
from typing import Any

import pytest
from tests import builders
from tests.graphs import (
    BIAS_BYTES,
    BUFFER_BYTES,
    TENSOR_BYTES,
    WEIGHT_BYTES,
    boundaries,
    chain,
    lower_order,
    read_order,
)
from tests.raising import raises

from trimaran.graph.types import Graph
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.lowering.partition import tied_segments
from trimaran.program.rules.check import check_program
from trimaran.program.strategy import Strategy
from trimaran.program.types import Instruction, Mark, Program


def tokens(program: Program, rank: int) -> list[str]:
    return [instruction.token for instruction in program.ranks[rank]]


def find(program: Program, rank: int, token: str) -> Instruction:
    return next(instruction for instruction in program.ranks[rank] if instruction.token == token)


def two_stages(graph: Graph, *, microbatches: int = 2, batch: int = 8, **changes: object) -> Program:
    strategy = builders.strategy(pp=2, boundaries=("op0",), microbatches=microbatches, **changes)  # type: ignore[arg-type]
    return lower(graph, strategy, batch=batch)


def test_one_device_loads_computes_and_updates() -> None:
    program = lower(chain(2, buffers=True), builders.strategy(microbatches=2), batch=4)
    assert tokens(program, 0) == ["IN0", "0F0", "0B0", "IN1", "0F1", "0B1", "U"]


def test_replicas_broadcast_buffers_and_reduce_losses_and_buckets() -> None:
    """A limit of 50 bytes: op1's bias and weight (8 + 40) and op0's bias (8) fill b0, op0's weight is b1."""
    program = lower(chain(2, buffers=True), builders.strategy(dp=2, bucket_bytes=50), batch=4)
    for rank in range(2):
        assert tokens(program, rank) == [
            "0BC#buffers", "IN0", "0F0", "AR#loss", "0B0", "0AR#b0", "0AR#b1", "U",
        ]  # fmt: skip
    assert find(program, 0, "0BC#buffers").nbytes == 2 * BUFFER_BYTES
    assert find(program, 0, "0AR#b0").nbytes == WEIGHT_BYTES + 2 * BIAS_BYTES
    assert find(program, 0, "AR#loss").nbytes == 16


def test_buckets_go_to_their_homes_and_weights_come_back() -> None:
    """Buckets of 56, 40 bytes, as above: the first rank is home to b0, the second to b1."""
    program = lower(chain(2), builders.strategy(dp=2, bucket_bytes=50, sync="p2p"), batch=4)
    check_program(program)
    for rank in range(2):
        assert tokens(program, rank) == [
            "IN0", "0F0", "AR#loss", "0B0", "0RD#b0", "0RD#b1", "U", "0BC#b0", "0BC#b1",
        ]  # fmt: skip
        assert [find(program, rank, token).root_rank for token in ("0RD#b0", "0RD#b1", "0BC#b0", "0BC#b1")] == [
            0,
            1,
            0,
            1,
        ]
    assert find(program, 1, "0RD#b1").after == ("0B0!b1",)
    assert find(program, 1, "0BC#b1").nbytes == WEIGHT_BYTES


def test_a_bucket_byte_of_one_gives_every_parameter_a_home() -> None:
    """Weights of 40 bytes first, then biases of 8, each to the rank with the least so far."""
    program = lower(chain(2), builders.strategy(dp=2, bucket_bytes=1, sync="p2p"), batch=4)
    reduces = [item for item in program.ranks[0] if item.kind == "RD"]
    assert sorted((item.nbytes, item.root_rank) for item in reduces) == [(8, 0), (8, 1), (40, 0), (40, 1)]


def test_with_homes_the_norm_is_added_up_over_them() -> None:
    program = lower(chain(2), builders.strategy(dp=2, bucket_bytes=50, sync="p2p"), batch=4, clip=True)
    assert find(program, 0, "AR#norm").group == (0, 1)
    assert find(program, 0, "CLIP").after == ("AR#norm",)


def test_one_replica_needs_no_homes() -> None:
    assert tokens(lower(chain(2), builders.strategy(sync="p2p"), batch=4, clip=True), 0) == [
        "IN0",
        "0F0",
        "0B0",
        "CLIP",
        "U",
    ]


def test_homes_for_a_pipeline_are_refused() -> None:
    with raises("strategy.sync-with-stages"):
        two_stages(chain(2), sync="p2p")
    with raises("strategy.unknown-sync", match='"all-reduce".*"p2p".*"hierarchical"', sync="star"):
        lower(chain(2), builders.strategy(dp=2, sync="star"), batch=4)  # type: ignore[arg-type]


def test_a_bucket_is_reduced_at_a_mark_of_the_last_backward() -> None:
    program = lower(chain(2), builders.strategy(dp=2, microbatches=2), batch=4)
    assert find(program, 0, "0B0").marks == ()
    assert find(program, 0, "0B1").marks == (Mark(name="b0", op="op0"),)
    assert find(program, 0, "0AR#b0").after == ("0B1!b0",)


def test_the_first_forward_waits_for_the_buffers_of_replica_0() -> None:
    program = lower(chain(2, buffers=True), builders.strategy(dp=2, microbatches=2), batch=4)
    assert find(program, 1, "0F0").after == ("IN0", "0BC#buffers")
    assert find(program, 1, "0F1").after == ("IN1",)


def test_a_pipeline_sends_activations_on_and_gradients_back() -> None:
    program = two_stages(chain(2), microbatches=1)
    assert tokens(program, 0) == ["0RECV_B0<1", "IN0", "0F0", "0SEND_F0>1", "AR#loss", "0B0", "U"]
    assert tokens(program, 1) == ["1RECV_F0<0", "IN0", "1F0", "AR#loss", "1B0", "1SEND_B0>0", "U"]


def test_a_step_waits_for_what_it_receives_and_a_send_for_its_step() -> None:
    program = two_stages(chain(2))
    assert find(program, 1, "1F1").after == ("1RECV_F1<0", "IN1")
    assert find(program, 0, "0B1").after == ("0RECV_B1<1",)
    assert find(program, 0, "0SEND_F1>1").after == ("0F1",)


def test_a_receive_is_listed_one_step_before_the_step_that_reads_it() -> None:
    listed = tokens(two_stages(chain(2), microbatches=3, batch=6), 1)
    assert listed.index("1RECV_F2<0") == listed.index("1F1") - 2, "the load of microbatch 1 is between them"


def test_messages_have_the_bytes_of_a_microbatch() -> None:
    """8 samples over 2 microbatches: 4 samples of 4 bytes each."""
    program = two_stages(chain(2))
    assert find(program, 0, "0SEND_F0>1").nbytes == 4 * TENSOR_BYTES
    assert find(program, 1, "1RECV_F0<0").nbytes == 4 * TENSOR_BYTES


def test_a_long_skip_goes_straight_to_each_segment_that_reads_it() -> None:
    program = lower(chain(3, skips=[(0, 2)]), builders.strategy(pp=3, boundaries=boundaries(3)), batch=4)
    assert [token for token in tokens(program, 0) if "SEND_F" in token] == ["0SEND_F0>1", "0SEND_F0>2"]
    assert find(program, 0, "0SEND_F0>2").peer == 2
    assert find(program, 2, "2F0").after == ("2RECV_F0<0", "2RECV_F0<1", "IN0")


def test_tensors_without_a_gradient_send_none_back() -> None:
    graph = chain(2)
    first = graph.ops[0]
    frozen = dataclasses.replace(first.outputs[0], requires_grad=False)
    graph = dataclasses.replace(graph, ops=(dataclasses.replace(first, outputs=(frozen,)), *graph.ops[1:]))
    program = two_stages(graph)
    assert not [token for token in tokens(program, 0) if "RECV_B" in token]
    check_program(program)


def test_only_ranks_that_read_the_batch_load_it() -> None:
    """x has 2 bytes a sample and feeds stage 0, y has 1 and feeds the loss, the stage between reads neither."""
    program = lower(chain(3), builders.strategy(pp=3, boundaries=boundaries(3)), batch=4)
    assert [[i.nbytes for i in instructions if i.token == "IN0"] for instructions in program.ranks] == [[8], [], [4]]


def test_ranks_are_laid_out_replica_by_replica() -> None:
    program = lower(chain(2), builders.strategy(dp=2, pp=2, boundaries=("op0",)), batch=4)
    assert [find(program, rank, f"{rank % 2}F0").segment for rank in range(4)] == [0, 1, 0, 1]
    assert find(program, 2, "0AR#b0").group == (0, 2)
    assert find(program, 3, "1SEND_B0>0").peer == 2


def test_the_loss_is_reduced_over_all_ranks_and_overlaps_the_backward() -> None:
    program = lower(chain(2), builders.strategy(dp=2, pp=2, boundaries=("op0",), microbatches=4), batch=8)
    for rank in range(4):
        assert find(program, rank, "AR#loss").group == (0, 1, 2, 3)
        listed = tokens(program, rank)
        assert listed.index("AR#loss") < listed.index(f"{rank % 2}B3")
    assert find(program, 1, "AR#loss").after == ("1F3",)
    assert find(program, 0, "AR#loss").after == ()


def test_a_tied_weight_is_summed_over_its_stages_after_its_replicas() -> None:
    graph = chain(3, tied=[(0, 2)])
    program = lower(graph, builders.strategy(dp=2, pp=3, boundaries=boundaries(3)), batch=4)
    tie = find(program, 5, "AR#tie0")
    assert (tie.group, tie.after, tie.nbytes) == ((3, 5), ("2AR#b0",), WEIGHT_BYTES)
    assert "AR#tie0" not in tokens(program, 4)


def test_a_tied_weight_without_replicas_is_summed_after_the_backwards() -> None:
    program = lower(chain(3, tied=[(0, 2)]), builders.strategy(pp=3, boundaries=boundaries(3)), batch=4)
    assert find(program, 0, "AR#tie0").after == ("0B0",)


def test_the_number_of_a_tie_is_its_place_among_the_tied_parameters() -> None:
    graph = chain(4, tied=[(0, 3), (1, 2)])
    assert tied_segments(graph, graph.parts(("op1",))) == {"op0.weight": (0, 1), "op1.weight": (0, 1)}


def test_a_weight_shared_inside_a_segment_needs_no_sum() -> None:
    program = lower(chain(3, tied=[(0, 1)]), builders.strategy(pp=2, boundaries=("op1",)), batch=4)
    assert not [token for token in tokens(program, 0) if "tie" in token]


def test_clipping_in_a_pipeline_needs_the_norm_over_the_stages_of_a_replica() -> None:
    program = lower(chain(2), builders.strategy(dp=2, pp=2, boundaries=("op0",)), batch=4, clip=True)
    assert tokens(program, 2)[-4:] == ["0AR#b0", "AR#norm", "CLIP", "U"]
    assert find(program, 2, "AR#norm").group == (2, 3)
    assert find(program, 2, "U").after == ("CLIP", "AR#loss")


def test_clipping_on_one_stage_needs_no_other_rank() -> None:
    program = lower(chain(2), builders.strategy(dp=2), batch=4, clip=True)
    assert tokens(program, 0)[-2:] == ["CLIP", "U"]
    assert find(program, 0, "CLIP").after == ("0B0", "0AR#b0")


def test_the_update_waits_for_everything() -> None:
    program = lower(chain(2), builders.strategy(dp=2, bucket_bytes=50), batch=4)
    assert find(program, 0, "U").after == ("0B0", "0AR#b0", "0AR#b1", "AR#loss")


def test_an_evaluation_has_forwards_and_a_metric() -> None:
    program = lower_evaluation(chain(2, buffers=True), builders.strategy(dp=2, pp=2, boundaries=("op0",)), batch=4)
    assert tokens(program, 0) == ["IN0", "0EV0", "0SEND_F0>1", "AR#metric"]
    assert tokens(program, 1) == ["1RECV_F0<0", "IN0", "1EV0", "AR#metric"]
    check_program(program)


def test_an_interleaved_order_sends_between_the_segments_of_each_rank() -> None:
    """Segments 0 and 2 on rank 0, 1 and 3 on rank 1: a forward goes to rank 1, back to rank 0, and to rank 1 again."""
    order = read_order("0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n")
    program = lower_order(chain(4), order, boundaries=boundaries(4), batch=2)
    check_program(program)
    assert [token for token in tokens(program, 0) if "SEND" in token] == ["0SEND_F0>1", "2SEND_F0>3", "2SEND_B0>1"]


def test_neighbours_on_one_rank_exchange_nothing() -> None:
    """Segments 1 and 2 are both on rank 1."""
    order = read_order("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n")
    program = lower_order(chain(4), order, boundaries=boundaries(4), batch=2)
    check_program(program)
    assert [token for token in tokens(program, 1) if "SEND" in token] == ["2SEND_F0>3", "1SEND_B0>0"]


def test_a_split_backward_sends_after_its_input_half_and_reduces_in_its_weight_half() -> None:
    order = read_order("0F0,0I0,0W0\n1F0,1I0,1W0\n")
    program = lower_order(chain(2), order, boundaries=("op0",), batch=2, dp=2)
    check_program(program)
    assert find(program, 1, "1SEND_B0>0").after == ("1I0",)
    assert find(program, 1, "1AR#b0").after == ("1W0!b0",)


def test_a_weight_shared_by_two_segments_of_a_rank_is_reduced_once_after_the_later() -> None:
    """op0 and op2 share a weight, and segments 0 and 2 are on rank 0; segment 0 runs its backward last."""
    order = read_order("0F0,2F0,2B0,0B0\n1F0,1B0\n")
    program = lower_order(chain(3, tied=[(0, 2)]), order, boundaries=boundaries(3), batch=2, dp=2)
    check_program(program)
    assert find(program, 0, "2AR#b0").nbytes == BIAS_BYTES
    assert find(program, 0, "0AR#b0").nbytes == WEIGHT_BYTES + BIAS_BYTES
    assert "AR#tie0" not in tokens(program, 0)


@pytest.mark.parametrize(
    ("strategy", "code", "figures"),
    [
        (builders.strategy(dp=0), "strategy.degree-too-small", {"match": r"Strategy.dp.*\b1\b"}),
        (builders.strategy(pp=2), "strategy.wrong-boundary-count", {"match": r"\b1\b.*\b0\b"}),
        (
            builders.strategy(pp=2, boundaries=("loss",)),
            "strategy.cannot-split-after",
            {"match": "op0", "boundary": "loss"},
        ),
        (builders.strategy(pp=3, boundaries=("op1", "op0")), "strategy.boundaries-out-of-order", {"match": "op0"}),
        (
            builders.strategy(pp=3, boundaries=("op0", "op0")),
            "strategy.boundaries-out-of-order",
            {"match": "must be different"},
        ),
    ],
)
def test_a_strategy_that_does_not_fit_is_refused(strategy: Strategy, code: str, figures: dict[str, Any]) -> None:
    with raises(code, **figures):
        lower(chain(3), strategy, batch=8)


def test_a_batch_that_does_not_divide_is_refused_with_numbers_that_would_do() -> None:
    """30 samples over 2 replicas of 4 microbatches: 24 and 32 divide by 8; a share of 15 divides by 1, 3, 5 and 15."""
    with raises("strategy.batch-not-divisible", match="24 or 32.*1, 3, 5, 15", batch=30, multiple_of=8):
        lower(chain(2), builders.strategy(dp=2, microbatches=4), batch=30)


def test_a_batch_smaller_than_its_parts_is_refused() -> None:
    with raises("strategy.batch-not-divisible", multiple_of=8):
        lower(chain(2), builders.strategy(dp=2, microbatches=4), batch=4)
