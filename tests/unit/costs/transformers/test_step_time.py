"""Time of a divided step, by part, on a device and a link that one can reckon with by head."""

from dataclasses import replace

import pytest

from trimaran.cluster.catalog import find_device
from trimaran.cluster.catalog_types import Bandwidth, Peak
from trimaran.costs.transformers.division import Division
from trimaran.costs.transformers.shapes import gpt_shape, parameter_count
from trimaran.costs.transformers.stage_work import backward, head_forward, layer_forward
from trimaran.costs.transformers.step_constants import step_constants
from trimaran.costs.transformers.step_time import Program, divided_step

SHAPE = gpt_shape(layers=8, hidden=1024, heads=16, vocabulary=51200)
DEVICE = replace(
    find_device("a100-80gb"),
    compute={"bfloat16": Peak(flops_per_s=1e14, fraction=1.0, source="round")},
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
)
"""Every share 1, nothing but products: what a step then takes can be written down."""


def link(op: str, nbytes: float, members: int, near: int) -> float:
    """A link of 100 GB/s; a ring's factor."""
    if members == 1:
        return 0.0
    factor = {"all_reduce": 2 * (members - 1) / members, "send_recv": 1.0}.get(op, (members - 1) / members)
    return nbytes * factor / 1e11


def seconds(division: Division, program: Program | None = None, constants: object = CONSTANTS) -> object:
    return divided_step(
        SHAPE,
        division,
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
    assert seconds(Division(microbatch=4)).seconds == pytest.approx(flops / 1e14, rel=1e-9)  # type: ignore[attr-defined]


def test_layers_computed_again_add_a_third() -> None:
    plain, again = (
        divided_step(
            SHAPE,
            Division(microbatch=4, recomputed=recomputed),
            Program(attention="unfused"),
            device=DEVICE,
            exchange=link,
            constants=CONSTANTS,
        ).seconds
        for recomputed in (frozenset(), frozenset({"layers"}))  # type: ignore[var-annotated]
    )
    forward = layer_forward(SHAPE, Division(microbatch=4), attention="unfused", layer=0)
    assert again - plain == pytest.approx(8 * (forward.products + forward.attention) / 1e14, rel=1e-9)


def test_a_bubble_is_the_other_stages_passes_over_chunks() -> None:
    """4 stages, the head on the last: the pipeline fills and drains in the time of the three others."""
    whole = seconds(Division(pipeline=4, microbatch=1, microbatches=8))
    parts = seconds(Division(pipeline=4, chunks=2, microbatch=1, microbatches=8))
    sends = 3 * 2 * 1024 * 1024 * 2 / 1e11
    assert (whole.bubble_s - sends) == pytest.approx(2 * (parts.bubble_s - sends), rel=1e-9)  # type: ignore[attr-defined]


def test_tensor_ranks_exchange_four_times_a_layer() -> None:
    """Each all-reduce moves 2 · 3/4 of 4096 tokens · h · 2 bytes at 100 GB/s."""
    step = seconds(Division(tensor=4, microbatch=4))
    assert step.tensor_s == pytest.approx(8 * 4 * 1.5 * 4096 * 1024 * 2 / 1e11, rel=1e-9)  # type: ignore[attr-defined]


def test_replicas_that_do_not_overlap_wait_for_all_gradients() -> None:
    """Two bytes a parameter, 2 · 1/2 of them on the link."""
    step = seconds(Division(data=2), Program(overlaps=False, gradient_bytes=2))
    assert step.data_s == pytest.approx(parameter_count(SHAPE) * 2 / 1e11, rel=1e-9)  # type: ignore[attr-defined]


def test_frozen_weights_need_two_thirds_of_the_products() -> None:
    forward = head_forward(SHAPE, Division())
    assert backward(forward, attention="fused", frozen=True).products == forward.products
    assert backward(forward, attention="fused").products == 2 * forward.products


def test_a_host_that_is_slower_than_the_device_decides() -> None:
    """8 layers of 3 ms, walked through forward and twice as long backward: 24 ms against 13 ms of kernels."""
    slow = replace(CONSTANTS, host_layer_s=30e-3, sharpness=8.0)
    assert seconds(Division(), constants=slow).seconds == pytest.approx(8 * 30e-3, rel=0.01)  # type: ignore[attr-defined]


def test_eight_bits_shorten_products_of_layers_but_not_the_head() -> None:
    fast = replace(CONSTANTS, eight_bit_share=1.0)
    full, half = (seconds(Division(), Program(precision=precision), fast) for precision in ("bfloat16", "float8"))
    products = 3 * 8 * layer_forward(SHAPE, Division(), attention="fused", layer=0).products / 1e14
    assert full.seconds - half.seconds == pytest.approx(products / 2, rel=1e-9)  # type: ignore[attr-defined]


def test_cards_of_few_watts_sustain_less_of_their_peak() -> None:
    """72 W for 121 TFLOP/s, where 350 W for 362 TFLOP/s are usual: the square root of 0.615."""
    constants = step_constants()
    share = constants.share("bfloat16", find_device("l4")) / constants.share("bfloat16", find_device("l40s"))
    assert share == pytest.approx((72 / 121 / (350 / 362)) ** 0.5, rel=0.01)
