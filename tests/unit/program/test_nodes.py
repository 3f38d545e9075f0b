"""Sums of gradients in levels: within nodes, across them. The graph is a chain of two operations in two buckets.

With a limit of 50 bytes op1's bias and weight (8 + 40) and op0's bias (8) fill b0, and op0's weight (40) is b1.
"""

from collections.abc import Callable
from typing import Any

import pytest
from tests import builders
from tests.graphs import chain
from tests.raising import raises
from tests.unit.program.test_rules import broken_rule, drop, edit, on_rank

from trimaran.base.decoding import from_plain
from trimaran.graph.types import Graph
from trimaran.program.json_files import to_plain
from trimaran.program.layout import is_chained, is_last_level, shard_bytes
from trimaran.program.lowering.lower import lower, lower_replica
from trimaran.program.rules.against_graph import check_against_graph
from trimaran.program.rules.check import check_program
from trimaran.program.strategy import Strategy
from trimaran.program.text import format_program, parse_program
from trimaran.program.types import Instruction, Program

LEVELS = builders.strategy(dp=4, sync="hierarchical", nodes=2, bucket_bytes=50)


def levels() -> Program:
    return lower(chain(2), LEVELS, batch=8)


def on(program: Program, rank: int) -> dict[str, Instruction]:
    return {instruction.token: instruction for instruction in program.ranks[rank]}


def test_a_bucket_is_scattered_within_its_node_summed_across_and_gathered() -> None:
    """Shards of 56 and 40 bytes are 28 and 20; the gathers come last, so that no scatter waits behind one."""
    program = levels()
    check_program(program)
    for rank in range(4):
        assert list(on(program, rank)) == [
            "IN0", "0F0", "AR#loss", "0B0", "0RS#b0", "0AR#b0", "0RS#b1", "0AR#b1", "0AG#b0", "0AG#b1", "U",
        ]  # fmt: skip
    third = on(program, 2)
    assert [third[token].group for token in ("0RS#b0", "0AR#b0", "0AG#b0")] == [(2, 3), (0, 2), (2, 3)]
    assert [third[token].nbytes for token in ("0RS#b0", "0AR#b0", "0AG#b0", "0AR#b1")] == [56, 28, 56, 20]
    assert [third[token].after for token in ("0RS#b0", "0AR#b0", "0AG#b0")] == [
        ("0B0!b0",), ("0RS#b0",), ("0AR#b0",),
    ]  # fmt: skip
    assert {"0AG#b0", "0AG#b1"} <= set(third["U"].after)


def test_shards_that_do_not_divide_are_rounded_up() -> None:
    """56 and 40 bytes over three ranks: 18.7 and 13.3."""
    program = lower(chain(2), builders.strategy(dp=6, sync="hierarchical", nodes=2, bucket_bytes=50), batch=12)
    check_program(program)
    assert [on(program, 4)[token].nbytes for token in ("0AR#b0", "0AR#b1")] == [19, 14]
    assert [on(program, 4)[token].group for token in ("0RS#b0", "0AR#b0")] == [(3, 4, 5), (1, 4)]
    assert shard_bytes(56, 3) == 19


def test_only_levels_are_chained() -> None:
    """A weight that two stages share is summed after its bucket too, and by the rank's own thread."""
    tied = lower(chain(3, tied=[(0, 2)]), builders.strategy(dp=2, pp=2, boundaries=("op0",)), batch=8)
    assert not any(is_chained(item) or is_last_level(item) for item in tied)
    program = levels()
    assert {item.token for item in program if is_chained(item)} == {"0AR#b0", "0AR#b1"}
    assert {item.token for item in program if is_last_level(item)} == {"0AG#b0", "0AG#b1"}


def test_the_norm_is_that_of_every_rank() -> None:
    """Every rank has the whole sum, so nobody needs to ask another."""
    program = lower(chain(2), LEVELS, batch=8, clip=True)
    check_program(program)
    assert "AR#norm" not in on(program, 0)
    assert {"0AG#b0", "0AG#b1"} <= set(on(program, 0)["CLIP"].after)


def test_text_and_plain_forms_give_the_same_program_and_strategy() -> None:
    program = levels()
    assert parse_program(format_program(program)) == program
    assert from_plain(to_plain(LEVELS), Strategy, source="test") == LEVELS


def test_the_lists_of_the_first_node_stand_for_all() -> None:
    assert lower_replica(chain(2), LEVELS, batch=8).ranks == levels().ranks[:2]


@pytest.mark.parametrize(
    ("changes", "code", "figures"),
    [
        ({"nodes": 1}, "strategy.uneven-nodes", {}),
        ({"nodes": 3}, "strategy.uneven-nodes", {}),
        ({"nodes": 4}, "strategy.uneven-nodes", {"match": "two or more"}),
        ({"zero": 1}, "strategy.uneven-nodes", {"match": "share nothing"}),
        ({"sync": "all-reduce"}, "strategy.uneven-nodes", {"match": 'Strategy.nodes.*"hierarchical".*nodes=2'}),
        ({"nodes": 0}, "strategy.degree-too-small", {"match": r"Strategy.nodes.*\b1\b"}),
    ],
)
def test_strategies_that_have_no_levels_are_refused(
    changes: dict[str, object], code: str, figures: dict[str, Any]
) -> None:
    fields = {"dp": 4, "sync": "hierarchical", "nodes": 2} | changes
    with raises(code, **figures):
        lower(chain(2), builders.strategy(**fields), batch=8)  # type: ignore[arg-type]


def test_levels_of_a_pipeline_are_refused() -> None:
    strategy = builders.strategy(dp=4, pp=2, boundaries=("op0",), sync="hierarchical", nodes=2)
    with raises("strategy.uneven-nodes"):
        lower(chain(2), strategy, batch=8)


def everywhere(program: Program, change: Callable[[list[Instruction]], list[Instruction]]) -> Program:
    for rank in range(4):
        program = on_rank(program, rank, change)
    return program


def test_rule_11_a_sum_across_nodes_without_one_within() -> None:
    alone = everywhere(everywhere(levels(), drop("0RS#b0")), edit("0AR#b0", after=("0B0!b0",)))
    assert broken_rule(alone) == 11


def test_rule_11_sums_that_are_never_gathered() -> None:
    program = everywhere(everywhere(levels(), drop("0AG#b1")), edit("U", after=("0B0", "0AG#b0", "0AR#b1", "AR#loss")))
    assert broken_rule(program) == 11


def test_rule_11_shards_that_meet_others() -> None:
    """Ranks 0 and 3 have different halves of the bucket."""
    groups = {0: (0, 3), 3: (0, 3), 1: (1, 2), 2: (1, 2)}
    program = levels()
    for rank, group in groups.items():
        program = on_rank(program, rank, edit("0AR#b0", group=group))
    assert broken_rule(program) == 11


def test_rule_11_a_sum_that_does_not_wait_for_its_shard() -> None:
    assert broken_rule(everywhere(levels(), edit("0AR#b0", after=("0B0",)))) == 11


def test_rule_12_an_update_that_does_not_wait_for_the_gather() -> None:
    assert broken_rule(on_rank(levels(), 0, edit("U", after=("0B0", "0AG#b0", "0AR#b1", "AR#loss")))) == 12


def test_rule_15_a_plain_sum_under_the_name_of_levels() -> None:
    graph: Graph = chain(2)
    plain = lower(graph, builders.strategy(dp=4, bucket_bytes=50), batch=8)
    with raises("program.illegal", match="rank 0 has 0AR#b0 .* has 0RS#b0", rule=15):
        check_against_graph(plain, graph, LEVELS, batch=8)
    check_against_graph(levels(), graph, LEVELS, batch=8)
