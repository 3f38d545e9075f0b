"""Memory of a rank, by part, worked by hand."""

from dataclasses import replace

import pytest
from tests import builders
from tests.raising import raises

from trimaran.pricing.analytical.layers import parameter_count
from trimaran.pricing.analytical.memory import Bookkeeping, largest_rank, layer_activations, rank_memory
from trimaran.pricing.analytical.shapes import gpt_shape
from trimaran.program.strategy import Degrees

SHAPE = gpt_shape(layers=12, hidden=512, heads=8)
TOKENS = 4 * 1024
STATISTICS = 16
"""Bytes of two norms' means and deviations, of each token."""


def kept(degrees: Degrees, attention: str = "math", shape: object = SHAPE) -> float:
    """Bytes of a layer for each token."""
    return layer_activations(shape, degrees, attention=attention).kept / TOKENS  # type: ignore[arg-type]


def test_a_layer_keeps_34_h_and_5_a_s() -> None:
    """34 · 512 + 5 · 8 · 1024 + 16."""
    assert kept(builders.degrees(microbatch=4)) == 34 * 512 + 5 * 8 * 1024 + STATISTICS


def test_fused_attention_keeps_its_output_twice_and_a_statistic_for_each_head() -> None:
    """34 h, another 2 h for the output, 4 bytes for each of 8 heads."""
    assert kept(builders.degrees(microbatch=4), "flash2") == 36 * 512 + 4 * 8 + STATISTICS


def test_tensor_ranks_share_all_but_the_residual_stream() -> None:
    """(10 + 24 / t) h + 5 a s / t, t = 4."""
    assert kept(builders.degrees(microbatch=4, tensor=4)) == (10 + 24 / 4) * 512 + 5 * 8 * 1024 / 4 + STATISTICS


def test_with_the_stream_sharded_too_they_share_everything() -> None:
    whole = kept(builders.degrees(microbatch=4))
    assert kept(builders.degrees(microbatch=4, tensor=4, sequence_parallel=True)) == whole / 4


def test_without_dropout_there_are_no_masks() -> None:
    """32 h: two masks of a byte less; 2 a s: neither mask nor result of dropout."""
    plain = replace(SHAPE, hidden_dropout=False, attention_dropout=False)
    assert kept(builders.degrees(microbatch=4), shape=plain) == 32 * 512 + 2 * 8 * 1024 + STATISTICS


def test_computing_attention_again_leaves_34_h() -> None:
    assert kept(builders.degrees(microbatch=4, recomputed=frozenset({"attention"}))) == 34 * 512 + STATISTICS


def test_computing_layers_again_leaves_their_inputs() -> None:
    assert kept(builders.degrees(microbatch=4, recomputed=frozenset({"layers"}))) == 2 * 512


def test_grouped_heads_keep_fewer_keys_and_values() -> None:
    """2 heads of keys in place of 8: 2 · 2 · (512 - 128) bytes less."""
    grouped = replace(SHAPE, kv_heads=2)
    assert kept(builders.degrees(microbatch=4)) - kept(builders.degrees(microbatch=4), shape=grouped) == 2 * 2 * (
        512 - 128
    )


def test_state_is_18_bytes_a_parameter_and_replicas_divide_12_then_16_then_all() -> None:
    count = parameter_count(SHAPE)
    states = [
        rank_memory(SHAPE, builders.degrees(data=8, sharding=sharding)).state
        for sharding in ("none", "optimizer", "gradients")
    ]
    assert states == pytest.approx([18 * count, 6 * count + 12 * count / 8, 2 * count + 16 * count / 8], abs=2)
    sharded = rank_memory(SHAPE, builders.degrees(data=8, sharding="parameters"))
    layer_and_table = 2 * (12 * 512**2 + 13 * 512 + 50304 * 512)
    assert sharded.state == pytest.approx(18 * count / 8 + layer_and_table, abs=3)


def test_the_last_stage_holds_a_copy_of_a_tied_embedding() -> None:
    """3 layers, the last norm, and 50,304 · 512 of the copy; no positions."""
    rank = rank_memory(SHAPE, builders.degrees(pipeline=4, microbatches=4), stage=3)
    assert rank.weights == 2 * (3 * (12 * 512**2 + 13 * 512) + 2 * 512 + 50304 * 512)


def test_the_loss_of_the_last_stage_has_logits_in_16_and_32_bits() -> None:
    rank = rank_memory(SHAPE, builders.degrees(microbatch=4, pipeline=4, microbatches=4), stage=3)
    assert rank.transient == TOKENS * 50304 * 6


@pytest.mark.parametrize(("sequence_parallel", "inputs"), [(False, 1), (True, 2)])
def test_of_wide_networks_the_backward_of_the_head_needs_more_than_the_loss(
    sequence_parallel: bool, inputs: int
) -> None:
    """Two bytes of each logit's gradient, of each weight of 6,400 rows and 8,192 columns, and of inputs of the head."""
    wide = gpt_shape(layers=4, hidden=8192, heads=64, vocabulary=51200, sequence=1024)
    degrees = builders.degrees(tensor=8, sequence_parallel=sequence_parallel)
    expected = 2 * (1024 * 6400 + 8192 * 6400 + inputs * 1024 * 8192)
    assert rank_memory(wide, degrees).transient == expected > 6 * 1024 * 6400


def test_gradients_that_are_kept_have_one_of_each_shape_whatever_the_layers() -> None:
    """Queries with keys and values, their output, and two of the feed-forward network: 3 + 1 + 4 + 4 squares of h."""
    keeping = Bookkeeping(keeps_weight_gradients=True)
    for layers in (4, 12):
        shape = gpt_shape(layers=layers, hidden=512, heads=8)
        assert rank_memory(shape, Degrees(), bookkeeping=keeping).workspace == 2 * 12 * 512**2


def test_the_first_stage_has_most_in_flight() -> None:
    shape = gpt_shape(layers=96, hidden=4096, heads=32)
    degrees = builders.degrees(tensor=8, pipeline=8, microbatches=64, sequence_parallel=True)
    assert largest_rank(shape, degrees).stage == 0


def test_experts_state_is_divided_by_their_own_replicas() -> None:
    """4 ranks hold different experts, so the optimizer of experts is divided by 8 / 4 replicas."""
    shape = replace(SHAPE, experts=builders.experts(count=8, active=2, ffn=64))
    plain = rank_memory(
        replace(SHAPE, ffn=0, experts=builders.experts(count=0, active=0, ffn=0)), builders.degrees(data=8)
    )
    degrees = builders.degrees(data=8, expert=4, sharding="optimizer")
    per_rank = 12 * 2 * (2 * 512 * 64 + 64 + 512)
    routers = 12 * 8 * 512
    dense = plain.weights // 2 + routers
    expected = 12 * dense / 8 + 12 * per_rank / 2
    assert rank_memory(shape, degrees).optimizer == pytest.approx(expected, abs=2)


def test_a_stage_that_is_not_there_is_named() -> None:
    with raises("degrees.no-such-stage", stage=4, pipeline=4):
        rank_memory(SHAPE, builders.degrees(pipeline=4), stage=4)


def test_a_degree_below_one_is_named() -> None:
    with raises("degrees.degree-too-small", match=r"\b1\b", tp=0):
        rank_memory(SHAPE, builders.degrees(tensor=0))


def test_a_dense_mask_adds_a_byte_for_each_pair_of_tokens() -> None:
    plain, masked = (
        rank_memory(SHAPE, builders.degrees(microbatch=4), bookkeeping=Bookkeeping(dense_mask=mask)).peak
        for mask in (False, True)
    )
    assert masked - plain == 4 * 1024 * 1024
