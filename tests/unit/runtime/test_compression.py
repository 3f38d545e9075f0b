"""Codecs, with replicas that take turns in one process: what is lost comes later, whatever the buckets."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.program.gradients import parse_compression
from trimaran.runtime.communication.compression import GradientCodec, open_codec

ROUNDING = ("bf16", "fp16")
METHODS = (*ROUNDING, "powersgd:1", "powersgd:2")

UNIT = {"bf16": 2.0**-8, "fp16": 2.0**-11}
"""Largest relative error of rounding: half of the distance of two numbers above 1."""


def open_codecs(method: str, replicas: int) -> list[GradientCodec]:
    compression = parse_compression(method)
    assert compression is not None
    return [open_codec(compression, replicas=replicas, seed=3) for _ in range(replicas)]


def exchange(
    codecs: Sequence[GradientCodec], flats: Sequence[torch.Tensor], parameters: Sequence[Sequence[torch.Tensor]]
) -> list[torch.Tensor]:
    """Exchange one bucket between replicas: sums are exact, and rounded once to the dtype of the payload.

    Returns:
        The payloads of the first replica.
    """
    runs = [codec.rounds(flat, held) for codec, flat, held in zip(codecs, flats, parameters, strict=True)]
    sent = []
    while True:
        now = [next(run, None) for run in runs]
        payloads = [one.payload for one in now if one is not None]
        if not payloads:
            return sent
        assert len(payloads) == len(codecs)
        sent.append(payloads[0].clone())
        total = torch.stack([payload.double() for payload in payloads]).sum(0)
        for payload in payloads:
            payload.copy_(total)


def step(
    codecs: Sequence[GradientCodec], gradients: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Exchange the gradients of one matrix, one a replica; the sum that arrived."""
    flats = [gradient.clone().view(-1) for gradient in gradients]
    exchange(codecs, flats, [[weight] for weight in weights])
    for flat in flats:
        torch.testing.assert_close(flat, flats[0], rtol=0.0, atol=0.0, equal_nan=True)
    return flats[0].view(gradients[0].shape)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_what_bf16_rounds_off_is_sent_when_there_is_enough_of_it() -> None:
    """bf16 numbers above 1 are 8/1024 apart. 1 + 1/1024 is sent as 1, and 1/1024 is left; after four steps 4/1024 is
    left; the fifth would send 1 + 5/1024, which is nearer to 1 + 8/1024."""
    codecs, weight = open_codecs("bf16", 1), torch.zeros(1)
    arrived = [float(step(codecs, [torch.tensor([1 + 1 / 1024])], [weight])) for _ in range(5)]
    assert arrived == [1, 1, 1, 1, 1 + 8 / 1024]
    owed = codecs[0].lost(weight)
    assert owed is not None
    assert owed.tolist() == [-3 / 1024]


@settings(max_examples=80)
@given(
    st.sampled_from(METHODS),
    st.integers(1, 4),
    st.lists(st.sampled_from([(7, 9), (12, 2, 3), (5,), (2, 2), (1, 6), (8, 8)]), min_size=1, max_size=4),
    st.integers(1, 6),
    st.integers(0, 2**31),
)
def test_nothing_is_lost_for_good(
    method: str, replicas: int, shapes: list[tuple[int, ...]], steps: int, seed: int
) -> None:
    """In fp64: what arrived and what the replicas still owe are all the gradients; but a sum in 16 bits rounds once.

    The first step has one bucket, as DDP has it; then each parameter has its own, in reverse. Gradients grow tenfold.
    """
    generator = torch.Generator().manual_seed(seed)
    codecs = open_codecs(method, replicas)
    held = [[torch.zeros(shape, dtype=torch.float64) for shape in shapes] for _ in range(replicas)]
    sizes = [math.prod(shape) for shape in shapes]
    balance = [torch.zeros(size, dtype=torch.float64) for size in sizes]
    allowed = [torch.full((size,), 1e-9 * 10.0**steps, dtype=torch.float64) for size in sizes]
    unit = UNIT.get(method, 0.0) if replicas > 1 else 0.0
    for number in range(steps):
        for bucket in [list(range(len(shapes)))] if number == 0 else [[at] for at in reversed(range(len(shapes)))]:
            count = sum(sizes[at] for at in bucket)
            flats = [10.0**number * torch.randn(count, generator=generator).double() for _ in range(replicas)]
            wanted = torch.stack(flats).sum(0)
            exchange(codecs, flats, [[mine[at] for at in bucket] for mine in held])
            assert all(torch.equal(flat, flats[0]) for flat in flats)
            parts = [sizes[at] for at in bucket]
            for at, arrived, true in zip(bucket, flats[0].split(parts), wanted.split(parts), strict=True):
                balance[at] += true - arrived
                allowed[at] += unit * arrived.abs()
    for at in range(len(shapes)):
        owed = [codec.lost(mine[at]) for codec, mine in zip(codecs, held, strict=True)]
        missing = balance[at] - sum(one for one in owed if one is not None)
        assert (missing.abs() <= allowed[at]).all()


@pytest.mark.parametrize("method", ROUNDING)
def test_one_step_is_off_by_what_16_bits_round_off(method: str) -> None:
    """Each of three replicas rounds its own by at most a unit, and the sum rounds once more: by all that is sent, and a
    little for products of the two. Scaling by a power of two changes nothing of that."""
    gradients = [draw(40, seed=seed) for seed in range(3)]
    arrived = step(open_codecs(method, 3), gradients, [torch.zeros(40) for _ in gradients])
    magnitudes = torch.stack(gradients).abs().sum(0)
    off = (arrived - torch.stack(gradients).sum(0)).abs()
    assert (off <= 2.01 * UNIT[method] * magnitudes).all()
    assert off.max() > 0.0


def test_fp16_finds_the_scale_of_gradients_that_it_cannot_hold() -> None:
    """Gradients of 1e9 and of 1e-9, where fp16 ends at 65504 and 6e-8. At scale 1 the first step sends what fits, or
    nothing; each step the scale moves, by 2^7 and more; and what was cut off is made up for."""
    for size in (1e9, 1e-9):
        gradient = size * (1 + draw(50).abs())
        codecs, weights = open_codecs("fp16", 2), [torch.zeros(50), torch.zeros(50)]
        arrived = [step(codecs, [gradient, gradient], weights) for _ in range(12)]
        assert all(torch.isfinite(one).all() for one in arrived)
        total, wanted = torch.stack(arrived).double().sum(0), 2 * 12 * gradient.double()
        assert ((total - wanted).abs() <= 0.01 * gradient).all()


@pytest.mark.parametrize("method", ["bf16", "fp16", "powersgd:1"])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_gradient_that_is_no_number_arrives_as_one(method: str, value: float) -> None:
    """So that the loss of the next step tells, as it does without compression."""
    gradients = [draw(6, 6, seed=1), draw(6, 6, seed=2)]
    gradients[1][2, 3] = value
    arrived = step(open_codecs(method, 2), gradients, [torch.zeros(6, 6), torch.zeros(6, 6)])
    assert not torch.isfinite(arrived).all()


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_sum_of_low_rank_goes_through_whole(rank: int) -> None:
    """Three replicas, each of which has other multiples of the same columns; in fp32, to 1e-5 of the largest number."""
    columns = draw(30, rank, seed=1)
    gradients = [columns @ draw(rank, 20, seed=2 + replica) for replica in range(3)]
    arrived = step(open_codecs(f"powersgd:{rank}", 3), gradients, [torch.zeros(30, 20) for _ in gradients])
    wanted = torch.stack(gradients).sum(0)
    assert (arrived - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def test_powersgd_sends_rows_and_columns_of_matrices_and_the_rest_as_it_is() -> None:
    """30 × 20 with rank 2: 60 numbers and the 25 of the others, then 40. Vectors and small matrices arrive exactly."""
    shapes = [(30, 20), (21,), (2, 2)]
    weights = [torch.zeros(shape) for shape in shapes]
    flat = draw(600 + 21 + 4)
    before = flat.clone()
    sent = exchange(open_codecs("powersgd:2", 1), [flat], [weights])
    assert [payload.numel() for payload in sent] == [60 + 25, 40]
    assert torch.equal(flat[600:], before[600:])
    assert not torch.allclose(flat[:600], before[:600])


def test_what_nothing_makes_smaller_goes_in_one_round() -> None:
    flat = draw(25)
    (sent,) = exchange(open_codecs("powersgd:2", 1), [flat], [[torch.zeros(21), torch.zeros(2, 2)]])
    assert sent.numel() == 25


@pytest.mark.parametrize("method", METHODS)
def test_gradients_of_16_bits_go_as_they_are(method: str) -> None:
    flat = draw(8 * 8).to(torch.bfloat16)
    (sent,) = exchange(open_codecs(method, 1), [flat], [[torch.zeros(8, 8, dtype=torch.bfloat16)]])
    assert torch.equal(sent, flat)


def test_a_subspace_that_has_died_out_starts_anew() -> None:
    """A gradient of zeros leaves no direction; then one whose first row is zero, of rank 1, arrives whole with the
    second step at the latest, because what the first one leaves out comes with it."""
    codecs, weights = open_codecs("powersgd:1", 1), [torch.zeros(9, 9)]
    gradient = torch.outer(torch.arange(9.0), draw(9))
    assert torch.equal(step(codecs, [torch.zeros(9, 9)], weights), torch.zeros(9, 9))
    arrived = step(codecs, [gradient], weights) + step(codecs, [gradient], weights)
    assert torch.allclose(arrived, 2 * gradient, atol=1e-5)


def test_the_subspace_of_one_step_is_where_the_next_begins() -> None:
    """A matrix with the singular values 4, 2, 1, ...: from a random Q, one step of rank 1 finds the first direction
    badly. Without what is owed, by a new gradient each time that takes it off again, the sixth step has it to 1 %."""
    left, right = torch.linalg.qr(draw(16, 16, seed=1)).Q, torch.linalg.qr(draw(16, 16, seed=2)).Q
    values = 4 * 0.5 ** torch.arange(16.0)
    matrix = left @ torch.diag(values) @ right.T
    best = values[0] * torch.outer(left[:, 0], right[:, 0])
    codecs, weight = open_codecs("powersgd:1", 1), torch.zeros(16, 16)
    off = []
    for _ in range(6):
        owed = codecs[0].lost(weight)
        fresh = matrix if owed is None else matrix - owed.view(16, 16)
        off.append(float((step(codecs, [fresh], [weight]) - best).norm() / best.norm()))
    assert off[0] > 0.1
    assert off[-1] < 0.01


def test_drawing_the_first_subspace_disturbs_no_other_draw() -> None:
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    step(open_codecs("powersgd:1", 1), [draw(9, 9)], [torch.zeros(9, 9)])
    assert torch.equal(torch.rand(3), wanted)
