"""Time of a sharded step, by part, on a device and a link that one can reckon with by head."""

from dataclasses import replace

import pytest
from tests import builders

from trimaran.machine.catalog import find_device
from trimaran.machine.types import Bandwidth, Peak
from trimaran.pricing.analytical.huggingface_config import shape_of_configuration
from trimaran.pricing.analytical.layers import (
    AttentionKernel,
    PassWork,
    Product,
    backward,
    layer_forward,
    parameter_count,
)
from trimaran.pricing.analytical.shapes import gpt_shape
from trimaran.pricing.analytical.step_time import (
    TransformerProgram,
    head_forward,
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
    **dict.fromkeys(("product_share", "attention_share", "cudnn_share"), 1.0),
    **dict.fromkeys(("early_attention_share", "unfused_attention_share"), 1.0),
    attention_length=0.0,
    traffic=0.0,
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


def seconds(degrees: Degrees, program: TransformerProgram | None = None, constants: object = CONSTANTS) -> object:
    return transformer_step(
        SHAPE,
        degrees,
        program or TransformerProgram(),
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


@pytest.mark.parametrize(("sequence", "factor"), [(1024, 2.0), (3072, 4 / 3)])
def test_attention_over_few_tokens_is_slower(sequence: int, factor: float) -> None:
    """4 s h / 2 forward, 3.5 times that in all; batched products know of no such start."""
    shape = replace(SHAPE, sequence=sequence)

    def found(length: float, attention: AttentionKernel) -> float:
        return transformer_step(
            shape,
            builders.degrees(microbatch=4),
            TransformerProgram(attention=attention),
            device=DEVICE,
            exchange=link,
            constants=replace(CONSTANTS, attention_length=length),
        ).seconds

    work_s = 4 * sequence * 8 * 3.5 * 2 * sequence * 1024 / 1e14
    assert found(1024.0, "flash3") - found(0.0, "flash3") == pytest.approx((factor - 1) * work_s, rel=1e-6)
    assert found(1024.0, "math") == found(0.0, "math")


def test_layers_computed_again_add_a_third() -> None:
    plain, again = (
        transformer_step(
            SHAPE,
            builders.degrees(microbatch=4, recomputed=recomputed),
            TransformerProgram(attention="math"),
            device=DEVICE,
            exchange=link,
            constants=CONSTANTS,
        ).seconds
        for recomputed in (frozenset(), frozenset({"layers"}))  # type: ignore[var-annotated]
    )
    forward = layer_forward(SHAPE, builders.degrees(microbatch=4), attention="math", layer=0)
    assert again - plain == pytest.approx(8 * (forward.products + forward.attention) / 1e14, rel=1e-9)


def test_a_bubble_is_the_other_stages_passes_over_chunks() -> None:
    """4 stages, the head on the last: the pipeline fills and drains in the time of the three others.

    Sends there and back, 2 · 2 h bytes a token: 3 while it fills; in each of 8 microbatches half of one, or, with
    two chunks, a share of two.
    """
    whole = seconds(builders.degrees(pipeline=4, microbatch=1, microbatches=8))
    parts = seconds(builders.degrees(pipeline=4, chunks=2, microbatch=1, microbatches=8))
    sends = 2 * 1024 * 1024 * 2 / 1e11
    assert whole.send_s == pytest.approx((3 + 8 * 0.5) * sends, rel=1e-9)  # type: ignore[attr-defined]
    assert parts.send_s == pytest.approx((3 + 8 * 2 * CONSTANTS.send_exposed) * sends, rel=1e-9)  # type: ignore[attr-defined]
    assert whole.bubble_s == pytest.approx(2 * parts.bubble_s, rel=1e-9)  # type: ignore[attr-defined]


def test_sends_may_have_a_rate_of_their_own() -> None:
    """A pipeline of 2 and one microbatch waits for 1.5 sends there and back: at 1 GB/s for 99 parts of 100 more."""
    slow, fast = (
        seconds(builders.degrees(pipeline=2), TransformerProgram(send_bytes_per_s=rate)).seconds  # type: ignore[attr-defined]
        for rate in (1e9, 1e11)
    )
    assert slow - fast == pytest.approx(1.5 * 2 * 1024 * 1024 * 2 * 0.99 / 1e9, rel=1e-9)


def test_tensor_ranks_exchange_four_times_a_layer() -> None:
    """Each all-reduce moves 2 · 3/4 of 4096 tokens · h · 2 bytes at 100 GB/s."""
    step = seconds(builders.degrees(tensor=4, microbatch=4))
    assert step.tensor_s == pytest.approx(8 * 4 * 1.5 * 4096 * 1024 * 2 / 1e11, rel=1e-9)  # type: ignore[attr-defined]


def test_replicas_that_do_not_overlap_wait_for_all_gradients() -> None:
    """Two bytes a parameter, 2 · 1/2 of them on the link."""
    step = seconds(builders.degrees(data=2), TransformerProgram(overlaps=False, gradient_bytes=2))
    assert step.data_s == pytest.approx(parameter_count(SHAPE) * 2 / 1e11, rel=1e-9)  # type: ignore[attr-defined]


def test_frozen_weights_need_two_thirds_of_the_products() -> None:
    forward = head_forward(SHAPE, builders.degrees())
    assert backward(forward, attention="flash2", frozen=True).products == forward.products
    assert backward(forward, attention="flash2").products == 2 * forward.products


def test_a_host_that_is_slower_than_the_device_decides() -> None:
    """8 layers, the head and half as much for the embedding, 30 ms each: 285 ms against 13 ms of kernels."""
    slow = replace(CONSTANTS, host_layer_s=30e-3, sharpness=8.0)
    assert seconds(builders.degrees(), constants=slow).seconds == pytest.approx(9.5 * 30e-3, rel=0.01)  # type: ignore[attr-defined]


def test_a_softmax_of_many_kernels_costs_the_host_more() -> None:
    """16 heads on 8 ranks: two heads do not fill a block of four rows, those of two sequences do. 8 layers of 5 ms."""
    slow = replace(CONSTANTS, host_layer_s=30e-3, host_softmax_s=5e-3, sharpness=32.0, tensor_exposed=0.0)
    program = TransformerProgram(attention="math", tensor_overlaps=True)
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
        transformer_step(
            odd, builders.degrees(), TransformerProgram(), device=DEVICE, exchange=link, constants=constants
        ).seconds
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
    program = TransformerProgram(overlaps=False)
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
    program = TransformerProgram(overlaps=False, gradient_bytes=2)
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
        SHAPE, degrees, TransformerProgram(), device=find_device("a100-80gb"), exchange=link, constants=step_constants()
    )
    for parts in ((), (2,) * 4 if chunks == 1 else (1,) * 8, (3, 2, 2, 1) if chunks == 1 else (2, 1, 1, 1, 1, 1, 1, 0)):
        step = transformer_step(
            SHAPE,
            replace(degrees, segment_layers=parts),
            TransformerProgram(),
            device=find_device("a100-80gb"),
            exchange=link,
            constants=step_constants(),
        )
        assert bound <= step.seconds


def test_a_product_of_few_tiles_takes_longer_than_its_flop() -> None:
    """A quarter of a million elements of half a wave, 256 of a start: (m n + tile)(k + start) for each product."""
    lost = replace(CONSTANTS, tile=262144 / DEVICE.multiprocessors, start=256.0)
    plain, longer = (seconds(builders.degrees(), constants=each).compute_s for each in (CONSTANTS, lost))  # type: ignore[attr-defined]
    products = [(1024, 3072, 1024), (1024, 1024, 1024), (1024, 4096, 1024), (1024, 1024, 4096)]
    every = 8 * products + [(1024, 51200, 1024)]
    more = sum(
        2 * ((a * b + 262144) * (c + 256) - a * b * c)
        for m, n, k in every
        for a, b, c in ((m, n, k), (m, k, n), (k, n, m))
    )
    assert longer - plain == pytest.approx(more / 1e14, rel=1e-9)


def test_narrow_shards_of_a_layer_reach_less_of_the_rate_than_wide_ones() -> None:
    shares = []
    for tensor in (1, 8):
        work = layer_forward(SHAPE, builders.degrees(tensor=tensor), attention="flash2", layer=0)
        lost = sum(product.overhead(4745 * 108, 255) for product in work.shapes)
        assert work.products == pytest.approx(sum(product.flops for product in work.shapes), rel=1e-12)
        shares.append(work.products / (work.products + lost))
    assert shares[1] < 0.7 * shares[0]


def test_experts_split_tokens_into_products_of_few_rows() -> None:
    """2,048 tokens for 2 of 8 experts: 512 rows each, of which half a tile of 64 is lost."""
    shape = replace(SHAPE, experts=builders.experts(count=8, active=2, ffn=2048))
    work = layer_forward(shape, builders.degrees(microbatch=2), attention="flash2", layer=0)
    grouped = [product for product in work.shapes if product.experts]
    assert [(product.m, product.n, product.k) for product in grouped] == [(512, 2048, 1024), (512, 1024, 2048)]
    assert [product.overhead(0, 0) / product.flops for product in grouped] == pytest.approx([64 / 512] * 2)


@pytest.mark.parametrize(
    ("tokens", "summed", "nbytes"),
    [
        (4, False, 2 * (4 * 1024 + 1024 * 2048 + 4 * 2048)),
        (4, True, 2 * (4 * 1024 + 1024 * 2048) + 8 * 4 * 2048),
        (4096, False, 0),
    ],
)
def test_experts_of_few_tokens_take_as_long_as_reading_their_weights(tokens: int, summed: bool, nbytes: int) -> None:
    """Eight experts at 1 TB/s: matrices of 16 bits, sums read and written in 32; of many tokens sums of 256 more."""
    constants = replace(CONSTANTS, expert_start=256.0)
    product = Product(tokens, 2048, 1024, 1.0, 8.0, summed=summed)
    work = PassWork(shapes=(product,))
    found = constants.device_seconds(work, "bf16", kernel="flash2", fused=True, device=DEVICE, year=2025.0)
    rate = constants.share("bf16", DEVICE) * 1e14
    computing = 8 * 2.0 * (tokens + 64) * 2048 * (1024 + 256) / rate
    assert found == pytest.approx(8 * nbytes / 1e12 if nbytes else computing, rel=1e-9)


def test_one_expert_of_a_rank_takes_as_long_as_two_with_the_same_tokens() -> None:
    """4,096 tokens of one or of two of 16 experts: the two have half a tile more, and read as many weights again."""
    shape, found = replace(SHAPE, experts=builders.experts(count=16, active=2, ffn=2048)), []
    for ranks in (16, 8):
        degrees = builders.degrees(data=16, expert=ranks, microbatch=2)
        work = layer_forward(shape, degrees, attention="flash2", layer=0)
        constants = replace(CONSTANTS, expert_start=2048.0)
        found.append(constants.device_seconds(work, "bf16", kernel="flash2", fused=True, device=DEVICE, year=2025.0))
    assert found[0] < found[1] < 1.03 * found[0]


def test_ranks_wait_for_the_slowest_of_them_the_more_there_are() -> None:
    """One share of jitter: 1.43 of it for 8 ranks, 3.23 for 1,024."""
    noisy = replace(CONSTANTS, jitter=0.01)
    few, many = (seconds(builders.degrees(data=data), constants=noisy) for data in (8, 1024))
    for step, waits in ((few, 0.01434), (many, 0.03233)):
        assert step.slowest_s / (step.seconds - step.slowest_s) == pytest.approx(waits, abs=1e-4)  # type: ignore[attr-defined]


def test_sharded_parameters_are_gathered_layer_by_layer_while_others_compute() -> None:
    """Short exchanges: the first gather and the last scatter are waited for, of nine units; a share of the rest."""
    program = TransformerProgram(gradient_bytes=2)
    free = seconds(builders.degrees(data=8, microbatch=64, sharding="parameters"), program)
    shared = seconds(
        builders.degrees(data=8, microbatch=64, sharding="parameters"),
        program,
        replace(CONSTANTS, sharded_exposed=0.5),
    )
    one = parameter_count(SHAPE) * 2 * 7 / 8 / 1e11
    assert free.data_s == pytest.approx(2 * one / 9, rel=1e-9)  # type: ignore[attr-defined]
    assert shared.data_s - free.data_s == pytest.approx(0.5 * 3 * one, rel=1e-9)  # type: ignore[attr-defined]


def test_parameters_that_are_flattened_are_copied_for_each_microbatch() -> None:
    copied = replace(CONSTANTS, sharded_bytes=16.0)
    degrees = builders.degrees(data=8, microbatch=64, microbatches=3, sharding="parameters")
    kept, flat = (seconds(degrees, TransformerProgram(tuned=tuned), copied).data_s for tuned in (True, False))  # type: ignore[attr-defined]
    assert flat - kept == pytest.approx(3 * parameter_count(SHAPE) * 16 / 1e12, rel=1e-9)


def test_pytorch_ends_a_repeated_forward_before_its_last_product() -> None:
    """The second product of the feed-forward network, 8 h^2 of 24 h^2 a token, is not repeated."""
    degrees = builders.degrees(microbatch=4, recomputed=frozenset({"layers"}))
    whole, early = (
        seconds(degrees, TransformerProgram(attention="math", stops_early=stops)).seconds  # type: ignore[attr-defined]
        for stops in (False, True)
    )
    assert whole - early == pytest.approx(8 * 4096 * 8 * 1024**2 / 1e14, rel=1e-9)


def test_tokens_go_once_to_a_node_however_many_of_its_experts_they_visit() -> None:
    """Eight experts on two nodes of eight: 2 (1 - 1/2^8) copies in place of 8."""
    shape = replace(SHAPE, experts=builders.experts(count=16, active=8, ffn=256))
    degrees = builders.degrees(data=16, expert=16, expert_tensor=1)
    each, once = (
        transformer_step(
            shape, degrees, TransformerProgram(once_a_node=node), device=DEVICE, exchange=link, constants=CONSTANTS
        ).tensor_s
        for node in (0, 8)
    )
    assert once / each == pytest.approx(2 * (1 - 0.5**8) / 8, rel=1e-9)


def test_eight_bits_shorten_products_of_layers_but_not_the_head() -> None:
    fast = replace(CONSTANTS, eight_bit_share=1.0)
    full, half = (
        seconds(builders.degrees(), TransformerProgram(precision=precision), fast) for precision in ("bf16", "fp8")
    )
    products = 3 * 8 * layer_forward(SHAPE, builders.degrees(), attention="flash2", layer=0).products / 1e14
    assert full.seconds - half.seconds == pytest.approx(products / 2, rel=1e-9)  # type: ignore[attr-defined]


def test_power_limits_blackwell_in_16_bits_and_not_in_8() -> None:
    """1,000 W for 2,250 TFLOP/s, where Hopper's 700 W for 989 are enough: the square root of 0.628."""
    constants, device = step_constants(), find_device("b200")
    usual = replace(device, power_w=2250 * 700 / 989)
    shares = [constants.share(precision, device) / constants.share(precision, usual) for precision in ("bf16", "fp8")]
    assert shares == pytest.approx([(1000 / 2250 / (700 / 989)) ** 0.5, 1.0])


def test_norms_and_sums_move_as_many_bytes_backward_as_forward() -> None:
    """22 h bytes a token of 22 h + 16 h are the stream's: twice the whole less the stream."""
    forward = layer_forward(SHAPE, builders.degrees(), attention="flash2", layer=0)
    assert backward(forward, attention="flash2").nbytes == 2 * forward.nbytes - 22 * 1024 * 1024


def test_cards_of_few_watts_sustain_less_of_their_peak() -> None:
    """72 W for 121 TFLOP/s, where 350 W for 362 TFLOP/s are usual: the square root of 0.615."""
    constants = step_constants()
    share = constants.share("bf16", find_device("l4")) / constants.share("bf16", find_device("l40s"))
    assert share == pytest.approx((72 / 121 / (350 / 362)) ** 0.5, rel=0.01)


def test_linear_attention_takes_each_token_as_much_work_and_memory_in_any_sequence() -> None:
    """Qwen3-Next: three layers of four, whose products and states do not grow; the fourth's attention does."""
    attention = {
        sequence: [
            layer_forward(
                shape_of_configuration({"model_type": "qwen3_next"}, sequence=sequence).shape,
                builders.degrees(),
                attention="flash2",
                layer=layer,
            ).attention
            / sequence
            for layer in (0, 3)
        ]
        for sequence in (4096, 65536)
    }
    assert attention[4096][0] == attention[65536][0] == 32 * (2 * 64 * 5 * 128 + 6 * 128**2)
    assert attention[65536][1] == 16 * attention[4096][1] == 2 * 65536 * 16 * 256
