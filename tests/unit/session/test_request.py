"""What is asked of a plan, as it is written on the command line, and what comes of the link."""

import pytest

from trimaran.cluster import Link
from trimaran.errors import InputError
from trimaran.session.planning import _rejoined, local_cluster
from trimaran.session.request import PlanRequest, parse_request

GIGABIT = Link(bytes_per_s=125e6, latency_s=0.0, source="asked: 1Gb/s")


def test_nothing_asked_is_everything_this_machine_has() -> None:
    assert parse_request() == PlanRequest()


@pytest.mark.parametrize(("text", "bytes_per_s"), [("1Gb/s", 125e6), ("200 Mb/s", 25e6), ("25MB/s", 25e6)])
def test_a_link_is_a_rate(text: str, bytes_per_s: float) -> None:
    link = parse_request(link=text).link
    assert link == Link(bytes_per_s=bytes_per_s, latency_s=0.0, source=f"asked: {text}")


@pytest.mark.parametrize("text", ["1Gb", "fast", "0Mb/s", ""])
def test_a_link_that_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="rate"):
        parse_request(link=text)


def test_the_cluster_of_this_machine_has_the_link_that_was_asked_for() -> None:
    assert local_cluster(PlanRequest(devices=1, link=GIGABIT)).link == GIGABIT
    assert local_cluster(PlanRequest(devices=1)).link is None


def test_a_plan_for_other_links_is_told() -> None:
    (told,) = _rejoined(GIGABIT, None)
    assert "made for links held to 1 Gb/s, and here they are held to nothing" in told


def test_the_same_rate_written_otherwise_is_the_same_link() -> None:
    assert _rejoined(GIGABIT, parse_request(link="125MB/s").link) == ()
