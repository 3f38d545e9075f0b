"""Exchange by copies to one place and back, by hand."""

import dataclasses

import pytest

from trimaran.machine.find import find_machine
from trimaran.pricing.collectives.links import fabric_of
from trimaran.pricing.collectives.parameter_servers import colocated_server_time, separate_server_time
from trimaran.pricing.exchange.frameworks import SERVER, STAR
from trimaran.program.gradients import owners_by_size
from trimaran.simulator.exchange import ReadyGradient
from trimaran.simulator.parameter_server import HOST, Path, Servers, Star, exchange_star, star_of


def star(owners: tuple[str, ...], *, links: dict[tuple[str, str], str]) -> Star:
    """Three devices; each way has one link of 1 byte a second, shared by what names it alike."""
    return Star(
        devices=("gpu0", "gpu1", "gpu2"),
        owners=owners,
        paths={ends: Path(((name, 1.0),), 1.0, 0.0) for ends, name in links.items()},
        sum_bytes_per_s=1e12,
        update_s=0.0,
        call_s=0.0,
        copy_s=0.0,
    )


DEVICES = ("gpu0", "gpu1", "gpu2")
APART = {(a, b): f"{a}>{b}" for a in ("gpu0", "gpu1", "gpu2") for b in ("gpu0", "gpu1", "gpu2") if a != b}
SHARED = {ends: f"into {ends[1]}" for ends in APART}


def test_links_of_their_own_let_copies_run_side_by_side() -> None:
    """5 bytes in over two links at once, 5 bytes out: 10 s."""
    done = exchange_star([ReadyGradient(0, 5, 1.0)], star(("gpu0",), links=APART), backward_s=1.0)
    assert done.exposed_s == pytest.approx(10.0)


def test_a_shared_link_makes_them_wait_for_each_other() -> None:
    """Into the home twice 5 bytes one after another; out to each over its own: 15 s."""
    done = exchange_star([ReadyGradient(0, 5, 1.0)], star(("gpu0",), links=SHARED), backward_s=1.0)
    assert done.exposed_s == pytest.approx(15.0)


def test_two_homes_share_the_work() -> None:
    """One home: in until 5 and 10 s, out until 10 and 15 s. Two: no link carries more than one in and one out, 10 s."""
    gradients = [ReadyGradient(0, 5, 0.0), ReadyGradient(1, 5, 0.0)]
    one = exchange_star(gradients, star(("gpu0", "gpu0"), links=APART), backward_s=0.0)
    two = exchange_star(gradients, star(("gpu0", "gpu1"), links=APART), backward_s=0.0)
    assert one.end_s == pytest.approx(15.0)
    assert two.end_s == pytest.approx(10.0)


def test_what_is_complete_early_is_exchanged_behind_the_backward() -> None:
    done = exchange_star([ReadyGradient(0, 5, 1.0)], star(("gpu0",), links=APART), backward_s=20.0)
    assert done.exposed_s == 0.0
    assert done.communication_s == pytest.approx(5.0)  # of the busiest link


def test_the_largest_tensors_get_homes_of_their_own() -> None:
    """8 to a, 7 to b, 3 to b with its 7, 2 to a with its 8."""
    assert owners_by_size([2, 8, 7, 3], ("a", "b")) == ("a", "a", "b", "b")


def test_unlinked_pairs_of_a_dgx1_go_through_the_host() -> None:
    found = star_of([8], find_machine("dgx1-v100"), STAR, devices=8, on_host=False, update_s=0.0)
    assert found.owners == ("gpu0",)
    staged = [ends for ends, path in found.paths.items() if len(path.links) > 1]
    assert sorted(staged) == sorted(
        [(f"gpu{a}", f"gpu{b}") for a, b in ((0, 5), (0, 6), (0, 7), (5, 0), (6, 0), (7, 0))]
    )


def test_servers_are_reached_over_shared_slots() -> None:
    found = star_of([8, 8], find_machine("dgx1-v100"), STAR, devices=2, on_host=True, update_s=0.0)
    up = [{link for link, _ in found.paths[f"gpu{number}", "host"].links} for number in (0, 1)]
    assert up[0] & up[1], "both are under one switch"


def servers(**fields: float) -> Servers:
    return Servers(**{"exchange_s": 0.0, "latency_s": 0.0, "sum_s": 0.0, **fields})


def test_servers_over_nodes_come_between_the_sum_and_the_copies_out() -> None:
    """5 bytes in: 5 s; push and pull at 2 s a byte: 10 s; latency and sum: 3 and 5 s; 5 bytes out: 5 s."""
    home = dataclasses.replace(
        star((HOST,), links={(a, HOST): f"{a}>{HOST}" for a in DEVICES} | {(HOST, a): f"{HOST}>{a}" for a in DEVICES}),
        servers=servers(exchange_s=2.0, latency_s=3.0, sum_s=1.0),
    )
    assert exchange_star([ReadyGradient(0, 5, 0.0)], home, backward_s=0.0).end_s == pytest.approx(28.0, rel=1e-6)


def test_a_sum_on_a_device_goes_through_its_host_to_the_servers() -> None:
    """5 bytes in, to the host, back and out: 20 s, and 10 s of the network."""
    links = APART | {("gpu0", HOST): "up", (HOST, "gpu0"): "down"}
    home = dataclasses.replace(star(("gpu0",), links=links), servers=servers(exchange_s=2.0))
    assert exchange_star([ReadyGradient(0, 5, 0.0)], home, backward_s=0.0).end_s == pytest.approx(30.0, rel=1e-6)


@pytest.mark.parametrize("spare", [0, 2, 8])
def test_servers_of_several_nodes_follow_the_closed_forms(spare: int) -> None:
    machine = find_machine("dgx1-v100:4")
    found = star_of([8], machine, SERVER, devices=8, nodes=4, on_host=True, update_s=0.0, servers=spare)
    count, link = fabric_of(machine)
    rate = count * link.bytes_per_s
    closed = (
        separate_server_time(1.0, workers=4, servers=spare, bytes_per_s=rate)
        if spare
        else colocated_server_time(1.0, workers=4, bytes_per_s=rate)
    )
    assert found.servers is not None
    assert found.servers.exchange_s == pytest.approx(closed)


def test_hosts_sum_faster_at_the_fast_end() -> None:
    stars = [
        star_of([8], find_machine("dgx1-v100"), SERVER.at(end), devices=2, on_host=True, update_s=0.0, end=end)
        for end in ("fast", "typical", "slow")
    ]
    assert [one.sum_bytes_per_s for one in stars] == sorted((one.sum_bytes_per_s for one in stars), reverse=True)
