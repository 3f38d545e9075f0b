"""Compressed buckets in programs."""

import dataclasses

import pytest
from tests import builders
from tests.graphs import boundaries, chain, parameter
from tests.raising import raises

from trimaran.base.errors import InputError
from trimaran.graph.types import Graph, Parameter
from trimaran.program.gradients import Compression, gradient_buckets
from trimaran.program.lowering.lower import lower
from trimaran.program.rules.against_graph import check_against_graph
from trimaran.program.rules.check import check_program
from trimaran.program.strategy import Shard, Strategy
from trimaran.program.text import format_program, parse_program
from trimaran.program.types import Kind

BF16 = Compression(method="bf16")
RANK1 = Compression(method="powersgd", rank=1)


def _matrices(length: int = 3) -> Graph:
    """Layers of a weight of 16 by 8 numbers and a bias of 16: 512 and 64 bytes."""
    graph = chain(length)

    def made(name: str) -> Parameter:
        return parameter(name, 512, shape=(16, 8)) if name.endswith("weight") else parameter(name, 64, shape=(16,))

    return dataclasses.replace(graph, parameters=tuple(made(one.name) for one in graph.parameters))


GRAPH = _matrices()


@pytest.mark.parametrize(
    ("compression", "nbytes"),
    [
        (None, 3 * 576),
        (BF16, 3 * 288),
        # 16 + 8 numbers of each matrix, and the bias whole.
        (RANK1, 3 * (4 * 24 + 64)),
    ],
)
def test_an_all_reduce_has_the_bytes_on_the_wire(compression: Compression | None, nbytes: int) -> None:
    program = lower(GRAPH, builders.strategy(dp=2, compression=compression), batch=8)
    sizes = [item.nbytes for item in program.ranks[0] if item.kind is Kind.ALL_REDUCE and item.label.startswith("b")]
    assert sum(sizes) == nbytes


def test_buckets_are_filled_by_their_gradients_whatever_goes_over_the_wire() -> None:
    plain, packed = (gradient_buckets(GRAPH, GRAPH.ops, 600, compression=one) for one in (None, BF16))
    assert [bucket.parameters for bucket in plain] == [bucket.parameters for bucket in packed]
    assert [bucket.nbytes for bucket in plain] == [bucket.wire_bytes for bucket in plain]
    assert [bucket.wire_bytes for bucket in packed] == [bucket.nbytes // 2 for bucket in plain]


@pytest.mark.parametrize("method", [BF16, RANK1])
def test_gradients_of_16_bits_go_as_they_are(method: Compression) -> None:
    halves = tuple(dataclasses.replace(one, dtype="bfloat16", nbytes=one.nbytes // 2) for one in GRAPH.parameters)
    (bucket,) = gradient_buckets(dataclasses.replace(GRAPH, parameters=halves), GRAPH.ops, 2**20, compression=method)
    assert bucket.wire_bytes == bucket.nbytes == 3 * 288


@pytest.mark.parametrize(
    "strategy",
    [
        builders.strategy(dp=2, bucket_bytes=600, compression=BF16),
        builders.strategy(dp=2, pp=2, boundaries=boundaries(2), microbatches=2, schedule="1f1b", compression=RANK1),
    ],
)
def test_a_compressed_program_is_legal_and_comes_back_from_its_text(strategy: Strategy) -> None:
    program = lower(GRAPH, strategy, batch=8)
    check_program(program)
    check_against_graph(program, GRAPH, strategy, batch=8)
    assert parse_program(format_program(program)) == program


def test_a_program_that_sends_more_than_its_strategy_says_is_refused() -> None:
    plain = lower(GRAPH, builders.strategy(dp=2), batch=8)
    with raises("program.illegal", match=r"0AR#b0.*nbytes=1728.*\b864\b", rule=15):
        check_against_graph(plain, GRAPH, builders.strategy(dp=2, compression=BF16), batch=8)


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (builders.strategy(compression=BF16), "needs several replicas"),
        (builders.strategy(dp=2, sync="p2p", compression=BF16), "every replica sums whole"),
        (builders.strategy(dp=2, zero=1, compression=BF16), "every replica sums whole"),
        (
            builders.strategy(dp=2, tp=2, shards=(Shard(op="op0", style="column"),), compression=BF16),
            "hold whole tensors",
        ),
    ],
)
def test_what_cannot_be_compressed_is_refused_with_the_reason(strategy: Strategy, words: str) -> None:
    with pytest.raises(InputError, match=rf'Strategy.compression "bf16" .*{words}'):
        lower(GRAPH, strategy, batch=8)
