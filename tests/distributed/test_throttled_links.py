"""Ranks whose links are held to a rate: how fast they are, that results stay the same, and that nothing is left."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests import builders
from tests.distributed import duties
from tests.distributed.test_launch import ROOT, SOON_S, Pids
from tests.distributed.training import Run, train_all
from tests.forks.client import launch as launch_forks
from tests.raising import raises

from trimaran.base.errors import EnvironmentProblem, ExecutionError
from trimaran.emulation.links import Uplink, launch_on, rate_limited_network
from trimaran.planning.requests import parse_link
from trimaran.pricing.curves import at_size
from trimaran.pricing.types import Cost

GIGABIT = parse_link("1Gb/s")
NBYTES = 4 << 20


def obstacle() -> str:
    """Why links cannot be held here; empty where they can."""
    try:
        with rate_limited_network(GIGABIT, ranks=2):
            return ""
    except EnvironmentProblem as problem:
        return problem.message


pytestmark = pytest.mark.skipif(bool(obstacle()), reason=obstacle() or "links can be held to a rate")


def network(process: int | str = "self") -> str:
    """The network namespace of a process, as "net:[4026531840]"."""
    return os.readlink(f"/proc/{process}/ns/net")  # noqa: PTH115 of a link that is no path


def networks_in_use() -> set[str]:
    """Network namespaces that some process is in, or holds open."""
    found = set()
    for pattern in ("[0-9]*/task/*/ns/net", "[0-9]*/fd/*"):
        for entry in Path("/proc").glob(pattern):
            try:
                found.add(os.readlink(entry))  # noqa: PTH115
            except OSError:  # it ended meanwhile
                continue
    return {name for name in found if name.startswith("net:")}


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.alone
def test_a_slow_link_is_measured_as_far_as_that_is_quick(tmp_path: Path) -> None:
    """At 20 Mb/s 1 MiB takes 0.42 s and is left out; the straight line through smaller sizes says so to 10 %.

    The line is that of the shortest rounds, as other processes can only lengthen them and the line does so nine times.
    """
    (curve, seconds), _ = launch_on(parse_link("20Mb/s"), duties.all_reduce_curve, ranks=2, log_dir=tmp_path)
    assert [size for size, _ in curve] == [16, 16 << 10, 128 << 10]
    shortest = [(size, Cost(cost.low, cost.low, cost.low, cost.source)) for size, cost in curve]
    assert at_size(shortest, 1 << 20).seconds == pytest.approx((1 << 20) / 2.5e6, rel=0.1)
    assert seconds < 5.0


@pytest.mark.alone
@pytest.mark.parametrize("rate", ["200Mb/s", "1Gb/s"])
def test_what_is_sent_and_reduced_takes_the_time_of_the_rate(rate: str, tmp_path: Path) -> None:
    """4 MiB: 168 ms at 200 Mb/s, 33.6 ms at 1 Gb/s, 5 % either way.

    Of the times that fit into 2 s the shortest counts, as other processes can only lengthen them. An all-reduce of two
    ranks sends and receives each byte once on each rank, both at the same time.
    """
    link = parse_link(rate)
    expected = NBYTES / link.bytes_per_s
    tries = round(2.0 / expected)
    times, _ = launch_on(link, duties.time_transfers, (NBYTES, tries), ranks=2, log_dir=tmp_path, device="cpu")
    assert min(times["send"]) == pytest.approx(expected, rel=0.05)
    assert min(times["all_reduce"]) == pytest.approx(expected, rel=0.05)


@pytest.mark.alone
def test_ranks_on_a_switch_share_the_rate_of_who_receives(tmp_path: Path) -> None:
    """Ranks 1 and 2 each send 1 MiB to rank 0 at the same time: 2 MiB at 25 MB/s are 84 ms, 10 % either way."""
    link = parse_link("200Mb/s")
    times, *_ = launch_on(link, duties.time_gathering, (1 << 20, 5), ranks=3, log_dir=tmp_path, device="cpu")
    assert min(times) == pytest.approx((2 << 20) / link.bytes_per_s, rel=0.1)


@pytest.mark.sweep
def test_losses_are_those_of_a_run_with_free_links(tmp_path: Path) -> None:
    runs = [
        Run(job="lstm_fp64", strategy=strategy, steps=4)
        for strategy in (
            builders.strategy(dp=2, bucket_bytes=8192),
            builders.strategy(pp=2, schedule="1f1b", microbatches=2),
        )
    ]
    free = launch_forks(train_all, (runs,), ranks=2, log_dir=tmp_path, device="cpu")[0]
    held = launch_on(GIGABIT, train_all, (runs,), ranks=2, log_dir=tmp_path, device="cpu")[0]
    assert [outcome.losses for outcome in held] == [outcome.losses for outcome in free]


@pytest.mark.alone
def test_a_latency_is_added_to_each_way(tmp_path: Path) -> None:
    """20 ms each way: a byte and its answer take at least 40."""
    link = builders.link(bytes_per_s=125e6, latency_s=0.02)
    try:
        times, _ = launch_on(link, duties.time_transfers, (4, 3), ranks=2, log_dir=tmp_path, device="cpu")
    except EnvironmentProblem as problem:
        pytest.skip(problem.message)
    assert 0.04 <= min(times["send"]) < 0.06


def test_what_tc_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tc = tmp_path / "tc"
    tc.write_text("#!/bin/sh\necho 'Error: Specified qdisc kind is unknown.' >&2\nexit 1\n")
    tc.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with raises(
        "link-limit.tool-failed", EnvironmentProblem, match="sch_tbf", said="Error: Specified qdisc kind is unknown."
    ):
        launch_on(GIGABIT, duties.add_ranks, ranks=2, log_dir=tmp_path)


@pytest.mark.alone  # others may make interfaces meanwhile
@pytest.mark.parametrize("ranks", [2, 3])
def test_nothing_is_left_after_a_run(ranks: int, tmp_path: Path) -> None:
    interfaces, descriptors = socket.if_nameindex(), open_files()
    used = launch_on(GIGABIT, duties.own_network, ranks=ranks, log_dir=tmp_path)
    assert len({network(), *used}) == ranks + 1
    assert not networks_in_use() & set(used)
    assert (socket.if_nameindex(), open_files()) == (interfaces, descriptors)


def test_nothing_is_left_after_a_rank_has_failed(tmp_path: Path) -> None:
    seen: list[str] = []

    def note(rank: int, event: object) -> None:
        seen.append(event["network"])  # type: ignore[index]

    with raises("rank.raised", ExecutionError, match="ZeroDivisionError", rank=1):
        launch_on(GIGABIT, duties.report_network_and_stumble, (1,), ranks=2, log_dir=tmp_path, on_event=note)
    assert len({network(), *seen}) == 3
    assert not networks_in_use() & set(seen)


@pytest.mark.alone  # others may make interfaces meanwhile
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_parent_ends(number: signal.Signals, tmp_path: Path) -> None:
    """Three ranks, whose switch nobody but the parent holds."""
    interfaces = socket.if_nameindex()
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.distributed.parent", str(tmp_path), "3", "1Gb/s"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    pids, used = Pids(), set()
    with parent:
        for _ in range(3):
            started = [int(pid) for pid in parent.stdout.readline().split()]  # type: ignore[union-attr]
            pids.add(started)
            used |= {network(pid) for pid in started}
        held = {os.readlink(entry) for entry in Path(f"/proc/{parent.pid}/fd").iterdir()}  # noqa: PTH115
        used |= {name for name in held if name.startswith("net:")}
        parent.send_signal(number)
        assert parent.wait(SOON_S) == -number
    assert len(used - {network()}) == 4
    assert pids.have_ended()
    assert not networks_in_use() & (used - {network()})
    assert socket.if_nameindex() == interfaces


@pytest.mark.alone
def test_what_leaves_a_node_shares_its_uplink_and_what_does_not_is_free(tmp_path: Path) -> None:
    """Two nodes of two ranks, 1 Gb/s each, 200 Mb/s between the nodes.

    1 MiB from ranks 0 and 1 to ranks 2 and 3 at the same time are 2 MiB at 25 MB/s, 84 ms, 15 % either way. From rank 0
    to rank 1 and from 2 to 3 they are 8.4 ms, of so short a time 30 % either way.
    """
    uplink = Uplink(nodes=2, link=parse_link("200Mb/s"))
    found = launch_on(GIGABIT, duties.time_pairs, (1 << 20, 5), ranks=4, log_dir=tmp_path, device="cpu", uplink=uplink)
    across, within = (
        min(
            max(end for _, end in tries) - min(start for start, _ in tries)
            for tries in zip(*(times[kind] for times in found), strict=True)
        )
        for kind in ("across", "within")
    )
    assert across == pytest.approx((2 << 20) / 25e6, rel=0.15)
    assert within == pytest.approx((1 << 20) / 125e6, rel=0.3)
