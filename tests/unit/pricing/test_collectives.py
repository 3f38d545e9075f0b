import pytest
from tests import builders
from tests.raising import raises

from trimaran.pricing.collectives.formulas import collective_time, message_time, messages, volume

LINK = builders.link(bytes_per_s=1e6, latency_s=0.25)


def test_a_message_takes_its_latency_and_its_bytes() -> None:
    """0.25 s + 2 MB / (1 MB/s) = 2.25 s."""
    assert message_time(2_000_000, LINK) == 2.25


def test_a_ring_all_reduce_goes_twice_around() -> None:
    """3 ranks: 2 * 2 messages of 0.25 s, and 2 * 2/3 of 3 MB at 1 MB/s: 1 + 4 = 5 s."""
    assert collective_time("AR", 3_000_000, num_ranks=3, link=LINK) == pytest.approx(5.0)


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    parts = sum(collective_time(kind, 12_345, num_ranks=5, link=LINK) for kind in ("RS", "AG"))
    assert collective_time("AR", 12_345, num_ranks=5, link=LINK) == pytest.approx(parts)


@pytest.mark.parametrize("kind", ["AR", "AG", "RS", "BC"])
def test_one_rank_has_nothing_to_exchange(kind: str) -> None:
    assert collective_time(kind, 1_000, num_ranks=1, link=LINK) == 0.0


def test_a_tree_has_as_many_levels_as_it_takes_to_reach_all() -> None:
    """2 ranks: 1 level; 3 and 4: 2; 5: 3."""
    assert [messages("BC", ranks) for ranks in (2, 3, 4, 5)] == [1, 2, 2, 3]
    assert volume("BC", 5) == 3.0


def test_another_kind_and_an_empty_group_are_refused() -> None:
    with raises("collective.unknown-kind", kind="SEND"):
        messages("SEND", 2)
    with raises("collective.empty-group", num_ranks=0):
        messages("AR", 0)
