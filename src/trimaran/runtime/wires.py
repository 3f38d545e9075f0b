"""Links between the ranks of one machine that are as slow as one asks, so that a cheap network can be had without one.

Each rank gets a network namespace. Two are joined by a pair of virtual interfaces; more have a switch in a namespace of
its own. Nothing is made in the machine's own namespace, and nothing has a name outside of those that end with the run.

    2 ranks    rank 0 wire ───── wire rank 1

    more       rank 0 wire ───── port0 ┐
               rank 1 wire ───── port1 ├ bridge
               rank 2 wire ───── port2 ┘

Ranks on several nodes, whose switches are joined by links of another rate, are in `uplinks`.

Every interface but the bridge is held to the rate in the direction in which it sends, by a token bucket
(`link_commands`). So a rank sends and receives at the rate at the same time, and several that send to one share its
rate, as at the port of a switch.
"""

import contextlib
import math
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from trimaran.cluster.types import Link
from trimaran.errors import EnvironmentProblem, InputError
from trimaran.runtime.link_commands import WIRE, Commands, pair, rank_end, switch
from trimaran.runtime.namespaces import inside, open_namespace

Result = TypeVar("Result")

_COMMAND_S = 30.0
_SBIN = "/usr/sbin:/sbin"
_MOST_RANKS = 250

ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": WIRE,
    "NCCL_SOCKET_IFNAME": WIRE,
    # GPUs of one machine would talk past the network.
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
}
"""What a rank in a network of its own needs to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where in the network a rank is.

    Attributes:
        namespace: descriptor of its network namespace; None: that of this process
        environment: variables that its process needs
    """

    namespace: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self, work: Callable[[], Result]) -> Result:
        """Start a process in this seat.

        Args:
            work: starts it
        """
        return work() if self.namespace is None else inside(self.namespace, work)


@contextlib.contextmanager
def wired(link: Link | None, *, ranks: int) -> Iterator[tuple[Seat, ...]]:
    """A network for the ranks of one machine, as long as the block runs and as the ranks live.

    Args:
        link: what each link is held to; None: the ranks use the loopback interface, as does one rank alone
        ranks: how many

    Yields:
        The seat of each rank.

    Raises:
        InputError: a rate that is not positive, a negative latency, or more ranks than there are addresses for
        EnvironmentProblem: `ip` or `tc` is missing, this process may not use them, or the kernel lacks something
    """
    if link is None or ranks == 1:
        yield (Seat(),) * ranks
        return
    check_link(link, ranks)
    tools = {name: find_tool(name) for name in ("ip", "tc")}
    with contextlib.ExitStack() as holders:
        ends = [open_namespace(holders) for _ in range(ranks)]
        paths = [f"/proc/{os.getpid()}/fd/{end}" for end in ends]
        if ranks == 2:
            run_in(ends[0], Commands(ip=(pair(WIRE, paths[1]),)), tools)
        else:
            run_in(open_namespace(holders), switch(paths, link), tools)
        for rank, end in enumerate(ends):
            run_in(end, rank_end(rank, link), tools)
        yield tuple(Seat(namespace=end, environment=ENVIRONMENT) for end in ends)


def check_link(link: Link, ranks: int) -> None:
    """Refuse a link that cannot be imitated.

    Raises:
        InputError: a rate that is not positive, a negative latency, or more ranks than there are addresses for
    """
    if not 0 < link.bytes_per_s < math.inf or not 0 <= link.latency_s < math.inf:
        raise InputError(
            f"a link needs a positive, finite rate and no negative latency, got {link.bytes_per_s} bytes/s and "
            f"{link.latency_s} s",
            code="link-limit.bad-rate",
            bytes_per_s=link.bytes_per_s,
            latency_s=link.latency_s,
        )
    if ranks > _MOST_RANKS:
        raise InputError(
            f"links can be held for up to {_MOST_RANKS} local ranks, got {ranks}",
            code="link-limit.too-many-ranks",
            ranks=ranks,
        )


def find_tool(name: str) -> str:
    """Where a tool is.

    Raises:
        EnvironmentProblem: nowhere
    """
    found = shutil.which(name) or shutil.which(name, path=_SBIN)
    if found is None:
        raise EnvironmentProblem(
            f"links between local ranks are held to a rate by `{name}`, which is not here: install iproute2, or leave "
            "the link out",
            code="link-limit.missing-tool",
            tool=name,
        )
    return found


def run_in(namespace: int, commands: Commands, tools: Mapping[str, str]) -> None:
    """Run commands in a namespace.

    Args:
        namespace: descriptor of it
        commands: lines
        tools: where `ip` and `tc` are

    Raises:
        EnvironmentProblem: one of them fails
    """

    def work() -> None:
        for name, lines in (("ip", commands.ip), ("tc", commands.tc)):
            if lines:
                _batch(name, tools[name], lines)

    inside(namespace, work)


def _batch(name: str, path: str, lines: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            [path, "-batch", "-"],
            input="".join(f"{line}\n" for line in lines),
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentProblem(f"`{name}`, which holds links to a rate, cannot be run: {error}", tool=name) from error
    if done.returncode == 0:
        return
    failed = re.search(r"Command failed .*:(\d+)", done.stderr)
    told = lines[int(failed[1]) - 1] if failed else "; ".join(lines)
    said = done.stderr.strip().partition("\n")[0] or f"exit code {done.returncode}"
    what = "the kernel modules veth, sch_tbf and, for more than two ranks, bridge"
    if "netem" in told:
        what = "the kernel module sch_netem, as a latency was asked for"
    raise EnvironmentProblem(
        f"links between local ranks cannot be held to a rate here. `{name}` was told {told!r}, and said: "
        f"{said} It needs the capability NET_ADMIN and {what}",
        code="link-limit.tool-failed",
        tool=name,
        said=said,
    )
