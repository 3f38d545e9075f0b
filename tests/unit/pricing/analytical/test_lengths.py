"""Sequences of documents: formulas against brute force, expected maxima, histograms as users write them."""

import itertools
import math
import random
from pathlib import Path

import pytest
from tests import builders
from tests.raising import raises

from trimaran.machine.find import find_machine
from trimaran.planner.analytical.candidates import AnalyticalModel
from trimaran.planner.analytical.search import transformer_problem
from trimaran.pricing.analytical.lengths import Documents, parse_documents, slowest_replica
from trimaran.pricing.analytical.memory import largest_rank, rank_memory
from trimaran.program.strategy import Strategy

SEQUENCE = 64
MIXED = Documents(tokens=(3, 20, 50, 150), shares=(0.4, 0.3, 0.2, 0.1))


def windows(documents: Documents, sequence: int, count: int, draw: random.Random) -> list[list[int]]:
    """Pieces of each window of a stream of documents, token by token."""
    owners: list[int] = []
    number = 0
    while len(owners) < sequence * (count + 40):
        owners += [number] * draw.choices(documents.tokens, documents.shares)[0]
        number += 1
    start = draw.randrange(sequence * 20)
    found = []
    for window in range(count):
        tokens = owners[start + window * sequence : start + (window + 1) * sequence]
        found.append([len(list(group)) for _, group in itertools.groupby(tokens)])
    return found


@pytest.mark.parametrize(
    "documents", [MIXED, Documents(tokens=(7,), shares=(1.0,)), Documents(tokens=(500,), shares=(1.0,))]
)
def test_attention_within_documents_is_that_of_a_stream(documents: Documents) -> None:
    pieces = windows(documents, SEQUENCE, 20_000, random.Random(5))
    squares = [sum(piece**2 for piece in window) / SEQUENCE**2 for window in pieces]
    mean = sum(squares) / len(squares)
    deviation = math.sqrt(sum((one - mean) ** 2 for one in squares) / len(squares))
    error = deviation / math.sqrt(len(squares))
    # Neighbouring windows share a document, so that they count as fewer.
    assert documents.attention(SEQUENCE, 1) == pytest.approx(mean, abs=6 * error + 1e-3)


@pytest.mark.parametrize(("window", "chunked"), [(8, False), (40, False), (16, True)])
def test_attention_within_documents_and_windows_is_that_of_a_stream(window: int, chunked: bool) -> None:
    pairs, count = 0, 3000
    for pieces in windows(MIXED, SEQUENCE, count, random.Random(9)):
        owner = [number for number, piece in enumerate(pieces) for _ in range(piece)]
        for first, second in itertools.product(range(SEQUENCE), repeat=2):
            near = first // window == second // window if chunked else abs(first - second) < window
            pairs += near and owner[first] == owner[second]
    chunks = SEQUENCE // window * window**2
    whole = chunks if chunked else sum(SEQUENCE - abs(far) for far in range(1 - window, window))
    found = MIXED.attention(SEQUENCE, 1, window=window, chunked=chunked)
    assert found == pytest.approx(pairs / count / whole, rel=0.03)


def test_a_document_of_any_length_has_no_more_attention_than_a_full_sequence() -> None:
    assert Documents(tokens=(10**8,), shares=(1.0,)).attention(SEQUENCE, 1) == pytest.approx(1.0, abs=1e-5)
    shares = [Documents(tokens=(length,), shares=(1.0,)).attention(SEQUENCE, 1) for length in (1, 8, 64, 512, 10**6)]
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx(1 / SEQUENCE)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("power", [1, 2])
def test_the_longest_of_some_documents_is_that_of_all_draws(count: int, power: int) -> None:
    expected = 0.0
    for drawn in itertools.product(range(len(MIXED.tokens)), repeat=count):
        probability = math.prod(MIXED.shares[index] for index in drawn)
        expected += probability * min(100, max(MIXED.tokens[index] for index in drawn)) ** power
    assert MIXED.longest(count, power, most=100) == pytest.approx(expected)


def test_the_slowest_replica_is_that_of_all_draws() -> None:
    """Two replicas of two microbatches of one padded document of two lengths: 16 outcomes."""
    documents = Documents(tokens=(10, 30), shares=(0.5, 0.5), packing="padded")
    expected = 0.0
    for a, b, c, d in itertools.product((10, 30), repeat=4):
        expected += max(a + b, c + d) / 16
    found = slowest_replica(documents, 64, replicas=2, microbatches=2, microbatch=1, square=0.0)
    assert found.ratio == pytest.approx(expected / 40, abs=4 * found.error)
    assert found.error < 0.005
    # With a fill of one microbatch, the longest one of a replica counts once more.
    filled = sum(max(a + b + max(a, b), c + d + max(c, d)) / 16 for a, b, c, d in itertools.product((10, 30), repeat=4))
    found = slowest_replica(documents, 64, replicas=2, microbatches=2, microbatch=1, fill=1.0, square=0.0)
    assert found.ratio == pytest.approx(filled / 60, abs=4 * found.error)
    # Replicas that wait for each other in each microbatch.
    each = sum(max(a, c) + max(b, d) for a, b, c, d in itertools.product((10, 30), repeat=4)) / 16
    found = slowest_replica(documents, 64, replicas=2, microbatches=2, microbatch=1, together=2, square=0.0)
    assert found.ratio == pytest.approx(each / 40, abs=4 * found.error)


def test_more_replicas_wait_longer_and_more_microbatches_less() -> None:
    def ratio(replicas: int, microbatches: int, together: int = 1) -> float:
        return slowest_replica(
            MIXED, SEQUENCE, replicas=replicas, microbatches=microbatches, microbatch=1, together=together
        ).ratio

    assert 1.0 == ratio(1, 4) < ratio(2, 4) < ratio(64, 4)
    assert ratio(16, 64) < ratio(16, 4) < ratio(16, 1)
    assert ratio(16, 8) < ratio(16, 8, together=16)


def test_equal_documents_wait_for_nobody() -> None:
    equal = Documents(tokens=(32,), shares=(1.0,), packing="padded")
    assert slowest_replica(equal, 64, replicas=64, microbatches=2, microbatch=2).ratio == pytest.approx(1.0)


SHAPE = builders.transformer_shape(layers=8, hidden=2048, heads=16, kv_heads=16, ffn=8192)
STRATEGY = Strategy(dp=8, microbatch=1, microbatches=4, zero=1)


def priced(documents: Documents | None, strategy: Strategy = STRATEGY):  # type: ignore[no-untyped-def]  # a candidate
    problem = transformer_problem(SHAPE, find_machine("dgx-a100"), batch=32, documents=documents)
    return AnalyticalModel(problem=problem).price(strategy)


def test_documents_change_the_step_as_their_attention_and_length_do() -> None:
    full = priced(None)
    long = Documents(tokens=(10**7,), shares=(1.0,))
    assert priced(long).step_time_s == pytest.approx(full.step_time_s, rel=1e-2)
    mixed = Documents(tokens=(128, 1024), shares=(0.8, 0.2))
    packed, causal, padded = (
        priced(Documents(tokens=mixed.tokens, shares=mixed.shares, packing=packing))
        for packing in ("packed", "causal", "padded")
    )
    assert padded.step_time_s < packed.step_time_s < causal.step_time_s == full.step_time_s
    assert packed.step.unequal_s > 0.0
    assert causal.step.unequal_s == 0.0
    # Memory holds the longest sequence.
    assert packed.memory == padded.memory == full.memory
    assert all(0.0 < one.utilization < 1.0 for one in (full, packed, padded))
    assert sum(packed.parts.values()) == pytest.approx(packed.step_time_s)


def test_a_bound_is_below_every_strategy_of_documents() -> None:
    for packing in ("packed", "padded"):
        documents = Documents(tokens=(128, 1024, 4096), shares=(0.5, 0.3, 0.2), packing=packing)  # type: ignore[arg-type]
        problem = transformer_problem(SHAPE, find_machine("dgx-a100"), batch=32, documents=documents)
        model = AnalyticalModel(problem=problem)
        for strategy in (
            STRATEGY,
            Strategy(dp=4, pp=2, microbatches=8, schedule="1f1b"),
            Strategy(dp=8, microbatches=4, zero=3),
        ):
            assert model.bound(strategy) <= model.price(strategy).step_time_s


@pytest.mark.parametrize("ep", [1, 2, 8])
def test_the_busiest_rank_of_experts_takes_longer_and_holds_more(ep: int) -> None:
    from dataclasses import replace

    steps, peaks = [], []
    for imbalance in (1.0, 2.0, 4.0, 100.0):
        experts = replace(builders.experts(count=8, active=2, ffn=4096), imbalance=imbalance)
        shape = replace(SHAPE, experts=experts)
        problem = transformer_problem(shape, find_machine("dgx-a100"), batch=32)
        strategy = replace(STRATEGY, ep=ep, expert_tp=1)
        found = AnalyticalModel(problem=problem).price(strategy)
        steps.append(found.step_time_s)
        peaks.append(largest_rank(shape, strategy).peak)
        state = rank_memory(shape, strategy).state
        assert state == rank_memory(replace(SHAPE, experts=replace(experts, imbalance=1.0)), strategy).state
    if ep == 1:
        assert len(set(steps)) == len(set(peaks)) == 1
    else:
        assert steps[0] < steps[1]
        assert peaks[0] < peaks[1]
        assert steps == sorted(steps)
        # All visits that its experts can have are 4 times the balanced load on 8 ranks, twice on 2.
        assert (steps[1] < steps[2]) is (ep == 8)
        assert steps[2] == steps[3]


def test_products_of_experts_follow_the_load() -> None:
    """Doubled load on two ranks of experts: the products of all experts' visits, and all else once."""
    from dataclasses import replace

    from trimaran.pricing.analytical.layers import layer_forward

    experts = builders.experts(count=8, active=2, ffn=4096)
    shape, degrees = replace(SHAPE, experts=experts), replace(STRATEGY, ep=2, expert_tp=1)
    busy = replace(SHAPE, experts=replace(experts, imbalance=2.0))
    once, twice = (layer_forward(one, degrees, attention="flash2", layer=0) for one in (shape, busy))
    tokens, gates = SHAPE.sequence, 2 if SHAPE.gated else 1
    assert twice.products - once.products == 2.0 * tokens * (gates + 1) * SHAPE.hidden * 2 * 4096
    assert twice.attention == once.attention


def test_a_file_has_a_length_in_each_line(tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("100\n200 2\n\n100\n")
    found = parse_documents(str(file), "padded")
    assert (found.tokens, found.shares, found.packing) == ((100, 200), (0.5, 0.5), "padded")


@pytest.mark.parametrize(
    ("text", "packing", "code"),
    [
        ("512:0.4,x:1", "packed", "lengths.malformed"),
        ("512:-1", "packed", "lengths.malformed"),
        ("0:1", "packed", "lengths.malformed"),
        ("nowhere.txt", "packed", "lengths.no-file"),
        ("512:1", "dense", "lengths.unknown-packing"),
    ],
)
def test_what_is_no_histogram_is_refused(text: str, packing: str, code: str) -> None:
    with raises(code):
        parse_documents(text, packing)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.txt").write_text("\n")
    with raises("lengths.none"):
        parse_documents(str(tmp_path / "none.txt"))
