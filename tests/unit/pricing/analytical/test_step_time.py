"""Time of a sharded step, by part, on a device and a link that one can reckon with by head."""

from dataclasses import replace

import pytest
from tests import builders

from trimaran.machine.catalog import find_device
from trimaran.machine.types import Bandwidth, Peak
from trimaran.pricing.analytical.shapes import gpt_shape, parameter_count
from trimaran.pricing.analytical.step_time import (
    Program,
    backward,
    head_forward,
    layer_forward,
    least_seconds,
    step_constants,
    transformer_step,
)
from trimaran.program.strategy import Degrees

SHAPE = gpt_shape(layers=8, hidden=1024, heads=16, vocabulary=51200)
DEVICE = replace(
    find_device("a100-80gb"),
    compute={"bf16": Peak(flops_per_s=1e14, fraction=1.0, source="round")},
    bandwidth=Bandwidth(bytes_per_s=1e12, fraction=1.0, source="round"),
)
CONSTANTS = replace(
    step_constants(),
    large_products={"ampere": 1.0},
    **dict.fromkeys(("product_share", "attention_share", "early_attention_share", "unfused_attention_share"), 1.0),
    traffic=0.0,
    eager_traffic=0.0,
    host_layer_s=0.0,
    call_s=0.0,
    update_bytes=0.0,
    data_exposed=0.0,
    sum_bytes=0.0,
    host_softmax_s=0.0,
    tile=0.0,
    start=0.0,
    jitter=0.0,
    sharded_exposed=0.0,
    sharded_bytes=0.0,
)
"""Every share 1, nothing but products: what a step then takes can be written down."""


def link(op: str, nbytes: float, members: int, near: int) -> float:
    """A link of 100 GB/s; a ring's factor."""
    if members == 1:
        return 0.0
    factor = {"all_reduce": 2 * (members - 1) / members, "send_recv": 1.0}.get(op, (members - 1) / members)
    return nbytes * factor / 1e11


def seconds(degrees: Degrees, program: Program | None = None, constants: object = CONSTANTS) -> object:
    return transformer_step(
        SHAPE,
        degrees,
        program or Program(),
        device=DEVICE,
        exchange=link,
        constants=constants,  # type: ignore[arg-type]
    )


def test_one_device_computes_six_flop_a_weight_and_token_and_its_attention() -> None:
    """Weights of products: 8 · 12 h² + v h. Causal attention, fused: 4 s h / 2 forward, 3.5 times that in all."""
    tokens = 4 * 1024
    weights = 8 * 12 * 1024**2 + 51200 * 1024
    flops = tokens * (6 * weights + 8 * 3.5 * 2 * 1024 * 1024)
    assert seconds(builders.degrees(microbatch=4)).seconds == pytest.approx(flops / 1e14, rel=1e-9)  # type: ignore[attr-defined]


def test_layers_computed_again_add_a_third() -> None:
    plain, again = (
        transformer_step(
            SHAPE,
            builders.degrees(microbatch=4, recomputed=recomputed),
            Program(attention="unfused"),
            device=DEVICE,
            exchange=link,
            constants=CONSTANTS,
        ).seconds
        for recomputed in (frozenset(), frozenset({"layers"}))  # type: ignore[var-annotated]
    )
    forward = layer_forward(SHAPE, builders.degrees(microbatch=4), attention="unfused", layer=0)
    assert again - plain == pytest.approx(8 * (forward.products + forward.attention) / 1e14, rel=1e-9)


def test_a_bubble_is_the_other_stages_passes_over_chunks() -> None:
    """4 stages, the head on the last: the pipeline fills and drains in the time of the three others.

    Sends there and back, 2 · 2 h bytes a token: 3 while it fills; in each of 8 microbatches half of one, or, with
    two chunks, a share of two.
    """
    whole = seconds(builders.degrees(pipeline=4, microbatch=1, microbatches=8))
    parts = seconds(builders.degrees(pipeline=4, chunks=2, microbatch=1, microbatches=8))
    sends = 2 * 1024 * 1024 * 2 / 1e11
    filling = whole.bubble_s - (3 + 8 * 0.5) * sends  # type: ignore[attr-defined]
    with_chunks = parts.bubble_s - (3 + 8 * 2 * CONSTANTS.send_exposed) * sends  # type: ignore[attr-defined]
    assert filling == pytest.approx(2 * with_chunks, rel=1e-9)


def test_sends_may_have_a_rate_of_their_own() -> None:
    """A pipeline of 2 and one microbatch waits for 1.5 sends there and back: at 1 GB/s for 99 parts of 100 more."""
    slow, fast = (
        seconds(builders.degrees(pipeline=2), Program(send_bytes_per_s=rate)).seconds  # type: ignore[attr-defined]
        for rate in (1e9, 1e11)
    )
    assert slow - fast == pytest.approx(1.5 * 2 * 1024 * 1024 * 2 * 0.99 / 1e9, rel=1e-9)


def test_tensor_ranks_exchange_four_times_a_layer() -> None:
    """Each all-reduce moves 2 · 3/4 of 4096 tokens · h · 2 bytes at 100 GB/s."""
    step = seconds(builders.degrees(tensor=4, microbatch=4))
    assert step.tensor_s == pytest.approx(8 * 4 * 1.5 * 4096 * 1024 * 2 / 1e11, rel=1e-9)  # type: ignore[attr-defined]


def test_replicas_that_do_not_overlap_wait_for_all_gradients() -> None:
    """Two bytes a parameter, 2 · 1/2 of them on the link."""
    step = seconds(builders.degrees(data=2), Program(overlaps=False, gradient_bytes=2))
    assert step.data_s == pytest.approx(parameter_count(SHAPE) * 2 / 1e11, rel=1e-9)  # type: ignore[attr-defined]


def test_frozen_weights_need_two_thirds_of_the_products() -> None:
    forward = head_forward(SHAPE, builders.degrees())
    assert backward(forward, attention="fused", frozen=True).products == forward.products
    assert backward(forward, attention="fused").products == 2 * forward.products


def test_a_host_that_is_slower_than_the_device_decides() -> None:
    """8 layers, the head and half as much for the embedding, 30 ms each: 285 ms against 13 ms of kernels."""
    slow = replace(CONSTANTS, host_layer_s=30e-3, sharpness=8.0)
    assert seconds(builders.degrees(), constants=slow).seconds == pytest.approx(9.5 * 30e-3, rel=0.01)  # type: ignore[attr-defined]


def test_a_softmax_of_many_kernels_costs_the_host_more() -> None:
    """16 heads on 8 ranks: two heads do not fill a block of four rows, those of two sequences do. 8 layers of 5 ms."""
    slow = replace(CONSTANTS, host_layer_s=30e-3, host_softmax_s=5e-3, sharpness=32.0, tensor_exposed=0.0)
    program = Program(attention="unfused", tensor_overlaps=True)
    apart, together = (
        seconds(builders.degrees(tensor=8, microbatch=microbatch), program, slow).seconds  # type: ignore[attr-defined]
        for microbatch in (1, 2)
    )
    assert apart - together == pytest.approx(8 * 5e-3, rel=0.02)


def test_odd_rows_of_a_vocabulary_slow_the_head() -> None:
    """50,257 rows: no load is aligned, so three products of 2 v h a token take 1 / share as long."""
    slow = replace(CONSTANTS, odd_share=0.25)
    odd = replace(SHAPE, vocabulary=50257)
    aligned, misaligned = (
        transformer_step(odd, builders.degrees(), Program(), device=DEVICE, exchange=link, constants=constants).seconds
        for constants in (replace(slow, odd_share=1.0), slow)
    )
    products = 3 * 2 * 1024 * 50257 * 1024 / 1e14
    assert misaligned - aligned == pytest.approx(3 * products, rel=1e-9)


def test_gradients_of_microbatches_are_added_up() -> None:
    """Layers have 8 · (12 h² + 13 h) elements; 8 bytes each at 1 TB/s, for both microbatches."""
    adding = replace(CONSTANTS, sum_bytes=8.0)
    plain, more = (
        seconds(builders.degrees(microbatches=2), constants=each).seconds  # type: ignore[attr-defined]
        for each in (CONSTANTS, adding)
    )
    assert more - plain == pytest.approx(2 * 8 * (12 * 1024**2 + 13 * 1024) * 8 / 1e12, rel=1e-9)


def test_sharded_gradients_are_scattered_for_each_microbatch() -> None:
    """Nothing overlaps: 4 scatters of 4 bytes and a gather of 2, where the optimizer alone needs one scatter."""
    program = Program(overlaps=False)
    optimizer, gradients = (
        seconds(builders.degrees(data=2, microbatches=4, sharding=sharding), program).data_s  # type: ignore[attr-defined]
        for sharding in ("optimizer", "gradients")
    )
    count = parameter_count(SHAPE)
    assert optimizer == pytest.approx(count * 6 / 2 / 1e11, rel=1e-9)
    assert gradients == pytest.approx(count * (4 * 4 + 2) / 2 / 1e11, rel=1e-9)


def test_experts_are_summed_over_the_ranks_that_hold_the_same_ones() -> None:
    """8 experts of 2 · 2h · h elements and their biases in 8 layers: on 8 ranks nobody shares one, on 2 four do."""
    shape = replace(SHAPE, experts=builders.experts(count=8, active=2, ffn=2048))
    program = Program(overlaps=False, gradient_bytes=2)
    apart, shared = (
        transformer_step(
            shape,
            builders.degrees(data=8, expert=expert, expert_tensor=1),
            program,
            device=DEVICE,
            exchange=link,
            constants=CONSTANTS,
        ).data_s
        for expert in (8, 2)
    )
    each = 2 * 1024 * 2048 + 2048 + 1024
    assert shared - apart == pytest.approx(8 * 4 * each * 2 * 2 * 3 / 4 / 1e11, rel=1e-9)


@pytest.mark.parametrize("chunks", [1, 2])
def test_no_strategy_of_the_same_degrees_is_faster_than_their_bound(chunks: int) -> None:
    degrees = builders.degrees(pipeline=4, chunks=chunks, tensor=2, microbatches=8, data=2)
    bound = least_seconds(
        SHAPE, degrees, Program(), device=find_device("a100-80gb"), exchange=link, constants=step_constants()
    )
    for parts in ((), (2,) * 4 if chunks == 1 else (1,) * 8, (3, 2, 2, 1) if chunks == 1 else (2, 1, 1, 1, 1, 1, 1, 0)):
        step = transformer_step(
            SHAPE,
            replace(degrees, segment_layers=parts),
            Program(),
            device=find_device("a100-80gb"),
            exchange=link,
            constants=step_constants(),
        )
        assert bound <= step.seconds


def test_eight_bits_shorten_products_of_layers_but_not_the_head() -> None:
    fast = replace(CONSTANTS, eight_bit_share=1.0)
    full, half = (seconds(builders.degrees(), Program(precision=precision), fast) for precision in ("bf16", "fp8"))
    products = 3 * 8 * layer_forward(SHAPE, builders.degrees(), attention="fused", layer=0).products / 1e14
    assert full.seconds - half.seconds == pytest.approx(products / 2, rel=1e-9)  # type: ignore[attr-defined]


def test_cards_of_few_watts_sustain_less_of_their_peak() -> None:
    """72 W for 121 TFLOP/s, where 350 W for 362 TFLOP/s are usual: the square root of 0.615."""
    constants = step_constants()
    share = constants.share("bf16", find_device("l4")) / constants.share("bf16", find_device("l40s"))
    assert share == pytest.approx((72 / 121 / (350 / 362)) ** 0.5, rel=0.01)
