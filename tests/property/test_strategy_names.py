"""A strategy is written in one way, and what is written can be read back."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.raising import raises

from trimaran.planner.pins import kinds_of, pins_of_strategy
from trimaran.program.gradients import Compression
from trimaran.program.strategy import RANK_ORDER, Feeding, Part, Shard, Strategy, read_strategy


@st.composite
def strategies(draw: st.DrawFn) -> Strategy:
    """Strategies with everything that names say, in combinations that need not be legal."""
    replicas, rows = draw(st.integers(1, 64)), draw(st.integers(1, 8))
    placed = rows > 1 and draw(st.booleans())
    staged = rows > 1 and not placed
    schedule = draw(st.sampled_from(["gpipe", "1f1b", "interleaved", "zero-bubble"])) if staged else "gpipe"
    shards = draw(st.integers(1, 8))
    return Strategy(
        dp=replicas,
        pp=rows,
        tp=shards,
        parts=tuple(Part(ops=(), row=row) for row in range(rows)) if placed else (),
        schedule=schedule,
        chunks=draw(st.integers(2, 4)) if schedule == "interleaved" else 1,
        microbatches=draw(st.integers(1, 512)),
        zero=draw(st.sampled_from([0, 1, 2, 3])),
        sync=draw(st.sampled_from(["all-reduce", "p2p"])) if replicas > 1 else "all-reduce",
        bucket_bytes=draw(st.sampled_from([1, 2**10, 2**20, 25 * 2**20])) if replicas > 1 else 25 * 2**20,
        execution=draw(st.sampled_from(["eager", "compiled"])),
        memory_bytes=draw(st.sampled_from([None, 3 * 2**29, 12 * 2**30])),
        shards=(Shard(op="", style="vocabulary"),) if shards == 1 and draw(st.booleans()) else (),
        compression=draw(st.sampled_from([None, Compression(method="bf16"), Compression(method="powersgd", rank=2)])),
        feeding=draw(
            st.sampled_from(
                [
                    Feeding(),
                    Feeding(workers=1),
                    Feeding(workers=2, ahead=4),
                    Feeding(copies_ahead=1),
                    Feeding(cached=True),
                ]
            )
        ),
        rank_order=draw(st.sampled_from([RANK_ORDER, ("tp", "pp", "dp"), ("pp", "cp", "tp", "dp")])),
    )


@given(strategies())
def test_a_name_is_read_as_the_strategy_that_has_it(strategy: Strategy) -> None:
    read = read_strategy(strategy.name)
    assert read.name == strategy.name
    assert kinds_of(read) == kinds_of(strategy)
    assert read.feeding == strategy.feeding


@given(strategies())
def test_a_pinned_strategy_has_no_objection_against_itself(strategy: Strategy) -> None:
    assert pins_of_strategy(strategy.name).objection(strategy) == ""


@given(strategies(), strategies())
def test_a_pinned_strategy_objects_to_all_with_another_name(one: Strategy, other: Strategy) -> None:
    """But for how ranks are fed, which is chosen last, and for how much memory there is, which is asked for."""
    said = {"feeding": Feeding(), "memory_bytes": None if one.memory_bytes is None else 2**30}
    bare = [read_strategy(each.name) for each in (one, other)]
    names = [_without(each, **said).name for each in bare]
    if names[0] != names[1] and (one.memory_bytes is None) == (other.memory_bytes is None):
        assert pins_of_strategy(one.name).objection(other).startswith("--strategy")


def _without(strategy: Strategy, **changes: object) -> Strategy:
    return dataclasses.replace(strategy, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("dp8 zero4", "strategy.impossible-degree"),
        ("dp0", "strategy.impossible-degree"),
        ("dp2 pp4 m0", "strategy.impossible-degree"),
        ("dp2 dp4", "strategy.word-twice"),
        ("pp4 1f1b gpipe", "strategy.word-twice"),
        ("dp2 pp4 zebra", "strategy.unknown-word"),
    ],
)
def test_impossible_and_contradictory_words_are_refused(text: str, code: str) -> None:
    with raises(code):
        read_strategy(text)
