import pytest
from tests import builders
from tests.raising import raises

from trimaran.pricing.collectives.formulas import path, ring_time
from trimaran.pricing.tables import CurveKey
from trimaran.pricing.transfers import curve_path

LINK = builders.link(bytes_per_s=1e6, latency_s=0.25)


def test_a_message_takes_its_latency_and_its_bytes() -> None:
    """0.25 s + 2 MB / (1 MB/s) = 2.25 s."""
    assert ring_time("send_recv", 2_000_000, ranks=2, link=LINK) == 2.25


def test_a_ring_all_reduce_goes_twice_around() -> None:
    """3 ranks: 2 * 2 messages of 0.25 s, and 2 * 2/3 of 3 MB at 1 MB/s: 1 + 4 = 5 s."""
    assert ring_time("all_reduce", 3_000_000, ranks=3, link=LINK) == pytest.approx(5.0)


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    parts = sum(ring_time(op, 12_345, ranks=5, link=LINK) for op in ("reduce_scatter", "all_gather"))
    assert ring_time("all_reduce", 12_345, ranks=5, link=LINK) == pytest.approx(parts)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
def test_one_rank_has_nothing_to_exchange(op: str) -> None:
    assert ring_time(op, 1_000, ranks=1, link=LINK) == 0.0
    assert path(op, 1, binomial=True) == (0, 0.0)


def test_a_tree_has_as_many_levels_as_it_takes_to_reach_all() -> None:
    """2 ranks: 1 level; 3 and 4: 2; 5: 3."""
    assert [path("broadcast", ranks, binomial=True)[0] for ranks in (2, 3, 4, 5)] == [1, 2, 2, 3]
    assert path("broadcast", 5, binomial=True)[1] == 3.0


def test_variants_of_a_measured_transfer_go_the_same_way() -> None:
    assert curve_path(CurveKey("SEND", 2)) == (1, 1.0)
    assert curve_path(CurveKey("BC queued", 4)) == curve_path(CurveKey("BC", 4)) == (2, 2.0)
    assert curve_path(CurveKey("AR", 2)) == (2, 1.0)


def test_another_operation_and_an_empty_group_are_refused() -> None:
    with raises("collective.unknown-operation", op="AR"):
        path("AR", 2)
    with raises("collective.no-rank", ranks=0):
        path("all_reduce", 0)
