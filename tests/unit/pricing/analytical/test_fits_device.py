"""Whether a strategy fits a device, and with what: worked by hand."""

from dataclasses import replace

import pytest
from tests import builders
from tests.raising import raises

from trimaran.base.precision import Precision
from trimaran.machine.catalog import find_device
from trimaran.pricing.analytical.fits_device import (
    Reserve,
    admitted,
    bookkeeping_of,
    check_reserve,
    judge_fit,
    need_of,
    with_buffers,
)
from trimaran.pricing.analytical.layers import parameter_count
from trimaran.pricing.analytical.memory import Bookkeeping, largest_rank, rank_memory
from trimaran.pricing.analytical.shapes import decoder_of, gpt_shape
from trimaran.program.strategy import Degrees, GradientType, OptimizerState

SHAPE = gpt_shape(layers=12, hidden=512, heads=8)
COUNT = parameter_count(SHAPE)
GIB = 2**30


@pytest.mark.parametrize(
    ("gradients", "state", "each"),
    [
        (None, None, 18),
        ("bf16", None, 16),
        ("bf16", "remainders", 14),
        ("bf16", "precision-aware", 10),
        ("fp32", "bf16-moments", 14),
        (None, "adam-8bit", 2 + 4 + 4 + 2 * (1 + 4 / 256)),
    ],
)
def test_types_say_the_bytes_of_a_parameter(
    gradients: GradientType | None, state: OptimizerState | None, each: float
) -> None:
    rank = rank_memory(SHAPE, builders.degrees(gradients=gradients, optimizer_state=state))
    assert rank.state == pytest.approx(each * COUNT, abs=2)


@pytest.mark.parametrize(("precision", "each"), [("bf16", 18), ("fp16", 18), ("fp32", 16), ("tf32", 16), ("fp8", 20)])
def test_precisions_say_the_bytes_of_a_parameter(precision: Precision, each: int) -> None:
    """In 32 bits 4 of each and no copy; in 8 bits another two copies in 8 bits."""
    keeping = bookkeeping_of(precision, find_device("h100"))
    assert rank_memory(SHAPE, Degrees(), bookkeeping=keeping).state == each * COUNT


def test_moments_in_16_bits_of_training_in_32_bits_have_no_copy() -> None:
    """4 of the parameter, 4 of its gradient, 2 of each moment."""
    keeping = bookkeeping_of("fp32", find_device("h100"))
    rank = rank_memory(SHAPE, builders.degrees(optimizer_state="bf16-moments"), bookkeeping=keeping)
    assert rank.state == 12 * COUNT


def test_8_bits_keep_inputs_of_products_in_a_byte() -> None:
    """Two norms and the activation: (2 h + 4 h) a token less than in bf16."""
    sizes = [
        rank_memory(SHAPE, Degrees(), bookkeeping=bookkeeping_of(precision, find_device("h100"))).activations
        for precision in ("bf16", "fp8")
    ]
    assert sizes[0] - sizes[1] == 12 * 1024 * 6 * 512


def test_32_bits_double_activations_but_masks_and_statistics() -> None:
    plain = replace(SHAPE, hidden_dropout=False, attention_dropout=False)
    sizes = [
        rank_memory(plain, Degrees(), bookkeeping=bookkeeping_of(precision, find_device("h100"))).activations
        for precision in ("bf16", "fp32")
    ]
    assert 1.9 < sizes[1] / sizes[0] <= 2.0


def test_the_interval_stands_around_the_usual_need() -> None:
    degrees = builders.degrees(tensor=2, data=2, sharding="optimizer")
    need = need_of(with_buffers(largest_rank(SHAPE, degrees), degrees), degrees)
    assert need.least < need.usual < need.most
    bare = largest_rank(SHAPE, degrees)
    assert need.least - bare.peak == 2 * 8 * 4 * 2**20
    assert need.most - need.least == pytest.approx(2 * 256 * 2**20 + 0.1 * (bare.activations + bare.transient), abs=2)


def test_a_reserve_takes_the_place_of_buffers_and_fragments() -> None:
    degrees, room = builders.degrees(tensor=2, data=2), 10 * GIB
    fit = judge_fit(SHAPE, degrees, keeping=Bookkeeping(), device_bytes=room, reserve=Reserve(nbytes=GIB))
    assert fit.room == 9 * GIB
    assert fit.need.least == fit.need.most == largest_rank(SHAPE, degrees).peak


def test_a_reserve_of_all_is_refused() -> None:
    with raises("memory.reserve-takes-all", device_bytes=GIB):
        check_reserve(Reserve(nbytes=2 * GIB), GIB)


def test_405_billion_parameters_on_576_devices_fit_with_bf16_gradients() -> None:
    """The degrees of a public run: by hand 5.6 billion parameters of 2 + 4 + 12 / 8 bytes, 81 GiB with activations."""
    shape, device = decoder_of("llama3:405b", 8192), find_device("h100")
    assert shape is not None
    degrees = builders.degrees(
        tensor=8,
        pipeline=9,
        chunks=7,
        context=2,
        data=4,
        microbatches=63,
        sharding="optimizer",
        sequence_parallel=True,
    )
    keeping = bookkeeping_of("bf16", device)
    fit = judge_fit(shape, degrees, keeping=keeping, device_bytes=device.usable_bytes)
    assert (fit.verdict, fit.lever) == ("fits with", "bf16 gradients")
    strategy, memory = admitted(shape, degrees, keeping=keeping, room=device.usable_bytes)
    assert strategy == replace(degrees, gradients="bf16")
    assert memory.peak == fit.need.most
    asked = judge_fit(shape, replace(degrees, gradients="fp32"), keeping=keeping, device_bytes=device.usable_bytes)
    assert not asked.lever.startswith("bf16")


def test_what_a_strategy_says_of_its_types_stays() -> None:
    degrees = builders.degrees(data=4, sharding="optimizer", gradients="fp32", optimizer_state="fp32")
    assert admitted(SHAPE, degrees, keeping=Bookkeeping(), room=10**8)[0] == degrees


def test_rounded_moments_are_taken_only_where_nothing_else_fits() -> None:
    """By hand: 2 + 2 + 10 / 4 bytes a parameter at least, and 2 + 2 + 6 / 4 with moments in bf16."""
    degrees = builders.degrees(data=4, sharding="optimizer", microbatch=1)
    own = with_buffers(largest_rank(SHAPE, degrees), degrees, usual=True).peak
    room = own - round(COUNT * (2 + 5.5 / 4))
    assert admitted(SHAPE, degrees, keeping=Bookkeeping(), room=room)[0] == degrees
    allowed, memory = admitted(SHAPE, degrees, keeping=Bookkeeping(), room=room, lenient=True)
    assert allowed.optimizer_state == "precision-aware"
    assert memory.peak <= room


@pytest.mark.parametrize("room", [10**9, 2 * 10**9, 3 * 10**9, 4 * 10**9])
@pytest.mark.parametrize("more", [10**7, 10**8, 10**9])
def test_more_memory_never_makes_a_verdict_worse(room: int, more: int) -> None:
    degrees = builders.degrees(data=4, sharding="optimizer", microbatch=4)
    before, after = (
        judge_fit(SHAPE, degrees, keeping=Bookkeeping(), device_bytes=each) for each in (room, room + more)
    )
    verdicts = ("does not fit", "not sure", "fits with", "fits")
    assert verdicts.index(after.verdict) >= verdicts.index(before.verdict)


def test_where_only_the_most_is_too_much_it_fits_with_what_makes_it_sure_as_in_a_plan() -> None:
    degrees = builders.degrees(data=4, sharding="optimizer", microbatch=4)
    need = need_of(with_buffers(largest_rank(SHAPE, degrees), degrees), degrees)
    fit = judge_fit(SHAPE, degrees, keeping=Bookkeeping(), device_bytes=need.most - 1)
    assert (fit.verdict, fit.lever) == ("fits with", "16-bit remainders of parameters in the optimizer")
    assert fit.need.most == admitted(SHAPE, degrees, keeping=Bookkeeping(), room=need.most - 1)[1].peak
    said = replace(degrees, gradients="fp32", optimizer_state="fp32")
    assert judge_fit(SHAPE, said, keeping=Bookkeeping(), device_bytes=need.most - 1).verdict == "not sure"
