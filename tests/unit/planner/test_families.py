"""What a person calls a strategy."""

from typing import Any

import pytest
from tests import builders
from tests.raising import raises

from trimaran.planner.explanation.explain import imagine, read_family
from trimaran.program.strategy import Strategy

ONE = builders.strategy()
REPLICAS = builders.strategy(dp=2, microbatches=2)
BUCKETS = builders.strategy(dp=2, bucket_bytes=2**20)
PIPELINE = builders.strategy(pp=2, schedule="1f1b", microbatches=4)
HYBRID = builders.strategy(dp=2, pp=2, microbatches=2)
COMPILED = builders.strategy(dp=2, execution="compiled")
ALL = (ONE, REPLICAS, BUCKETS, PIPELINE, HYBRID, COMPILED)


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("one device", [ONE]),
        ("Single", [ONE]),
        ("dp", [REPLICAS, BUCKETS, COMPILED]),
        ("DP2", [REPLICAS, BUCKETS, COMPILED]),
        ("dp2 eager", [REPLICAS, BUCKETS]),
        ("dp2 m2", [REPLICAS]),
        ("dp2-b1MiB", [BUCKETS]),
        ("pp", [PIPELINE]),
        ("pp2-1f1b-m4", [PIPELINE]),
        ("gpipe pp dp", [HYBRID]),
        ("hybrid", [HYBRID]),
        ("compiled", [COMPILED]),
        ("pp3", []),
        ("dp1", [ONE]),
        ("dp1 pp2", [PIPELINE]),
        ("dp2 pp1 m1", [BUCKETS, COMPILED]),
        ("dp2 b1024KiB", [BUCKETS]),
        ("pp2 m8", []),
    ],
)
def test_a_name_means_those_that_all_its_words_hold_for(name: str, members: list[Strategy]) -> None:
    family = read_family(name)
    assert [strategy for strategy in ALL if strategy in family] == members


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("ppp", {"match": '"pp'}),
        ("compile", {"match": '"compiled"'}),
        ("gpip", {"match": '"gpipe"'}),
        ("tensor", {}),
        ("", {}),
    ],
)
def test_a_name_of_nothing_is_refused_with_what_comes_near(name: str, figures: dict[str, Any]) -> None:
    with raises("strategy.unknown-name", **figures):
        read_family(name)


def test_what_no_search_considered_is_made_from_its_words() -> None:
    assert [strategy.name for strategy in imagine(read_family("pp4 1f1b"))] == [
        "pp4 1f1b m4",
        "pp4 1f1b m8",
        "pp4 1f1b m16",
    ]
    assert imagine(read_family("hybrid-m4")) == (builders.strategy(dp=2, pp=2, microbatches=4),)
    assert imagine(read_family("compiled dp3")) == (builders.strategy(dp=3, execution="compiled"),)


@pytest.mark.parametrize(("word", "nbytes"), [("b512KiB", 2**19), ("b3GiB", 3 * 2**30), ("b7B", 7)])
def test_buckets_of_any_size_can_be_asked_for(word: str, nbytes: int) -> None:
    (strategy,) = imagine(read_family(f"dp2 {word}"))
    assert strategy == builders.strategy(dp=2, bucket_bytes=nbytes)
    assert strategy in read_family(f"dp2 {word}")
