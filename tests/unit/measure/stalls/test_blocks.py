"""Which batches are read when."""

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from trimaran.measure.stalls.rank import Block, plan_rounds


def numbers(block: Block) -> list[int]:
    return list(range(block.first, block.first + block.batches))


def test_ways_take_turns_and_cold_batches_are_new() -> None:
    """4 steps of each way in two rounds, after one that does not count: batches 1, 2, 3, then 4, 5, 6."""
    rounds = plan_rounds(steps=4, batches=20, rounds=2)
    assert [[block.way for block in blocks] for blocks in rounds] == [
        ["cold", "cached", "synthetic"],
        ["synthetic", "cold", "cached"],
    ]
    cold = [block for block in chain(*rounds) if block.way == "cold"]
    assert [numbers(block) for block in cold] == [[1, 2, 3], [4, 5, 6]]
    assert [numbers(block) for block in chain(*rounds) if block.way == "cached"] == [[1, 2, 3], [4, 5, 6]]
    assert sum(block.batches for block in chain(*rounds)) == 18


def test_a_short_epoch_is_cold_once_and_cached_again_and_again() -> None:
    """Batches 1 and 2 are left for 4 steps: one that does not count and one that does, four times."""
    (blocks,) = plan_rounds(steps=4, batches=3, rounds=1)
    assert [(block.way, block.lead, block.steps) for block in blocks] == [
        ("cold", 1, 1),
        *[("cached", 1, 1)] * 4,
        ("synthetic", 1, 4),
    ]


def test_of_a_short_epoch_half_counts_however_many_workers_load() -> None:
    """31 batches are left for 32 workers: 15 do not count and 16 do, so that 64 steps take four blocks, not 64."""
    (blocks,) = plan_rounds(steps=64, batches=32, rounds=1, lead=33, multiple=32)
    assert [(block.way, block.lead, block.steps) for block in blocks] == [
        ("cold", 15, 16),
        *[("cached", 15, 16)] * 4,
        ("synthetic", 1, 64),
    ]


def test_an_epoch_of_one_batch_is_never_cold() -> None:
    """The synthetic steps have read it, before all others."""
    rounds = plan_rounds(steps=2, batches=1, rounds=2)
    assert [[(block.way, block.first, block.lead, block.steps) for block in blocks] for blocks in rounds] == [
        [("cached", 0, 0, 1), ("synthetic", 0, 1, 1)],
        [("synthetic", 0, 1, 1), ("cached", 0, 0, 1)],
    ]


@given(
    steps=st.integers(1, 200),
    batches=st.integers(1, 400),
    rounds=st.integers(1, 8),
    lead=st.integers(1, 5),
    multiple=st.integers(1, 4),
)
def test_every_plan_reads_what_there_is_and_cold_batches_once(
    steps: int, batches: int, rounds: int, lead: int, multiple: int
) -> None:
    plan = plan_rounds(steps=steps, batches=batches, rounds=rounds, lead=lead, multiple=multiple)
    blocks = list(chain(*plan))
    counted = {way: sum(block.steps for block in blocks if block.way == way) for way in ("cached", "synthetic")}
    assert min(counted.values()) >= steps
    assert counted["cached"] == counted["synthetic"]
    cold = [numbers(block) for block in blocks if block.way == "cold"]
    assert bool(cold) == (batches > 1)
    assert len(set(chain(*cold))) == sum(map(len, cold))
    assert max(chain(*cold), default=0) < batches
    assert all(block.steps > 0 and block.lead >= 0 for block in blocks)
    # The first batch is that of the synthetic steps.
    read = {0}
    for block in blocks:
        if block.way == "cold":
            assert read.isdisjoint(numbers(block))
        elif block.way == "cached":
            assert read.issuperset(numbers(block))
        read.update(numbers(block) if block.way != "synthetic" else ())
