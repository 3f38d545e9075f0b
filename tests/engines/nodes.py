"""Nodes of a cluster on one machine, for programs that start ranks on several.

A node is a set of namespaces: a network of its own (a seat of `rate_limited_network`, so that nothing listens on the
machine's interfaces), its own processes, host name, hosts file and /dev/shm, and no name server. Files are shared, as
on a cluster with a file system that all nodes see. The first process of a node reads a pipe which this process holds.
When it ends, by `Node.stop` or because this process is gone, also by SIGKILL, the kernel kills all processes of the
node at once; and namespaces, interfaces and mounts are gone with the last of them.

    this process ── pipe ──▶ process 1 of node1 ──┐ everything that node1 runs
                 ── pipe ──▶ process 1 of node2 ──┐ everything that node2 runs
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trimaran.base.errors import EnvironmentProblem
from trimaran.emulation.links import NamespaceSeat, rate_limited_network
from trimaran.planning.requests import parse_link

ROOT = Path(__file__).parents[2]
LINK = parse_link("1Gb/s")
_TOOLS = ("unshare", "nsenter", "mount", "hostname", "sh", "env", "cat", "setsid")
_ENTER = ("unshare", "--pid", "--mount", "--uts", "--fork", "--kill-child", "--mount-proc")
_SOON_S = 20.0
_BOOT = """
set -e
hostname "$1"
mount --bind "$2" /etc/hosts
mount --bind /dev/null /etc/resolv.conf
mount -t tmpfs node-shm /dev/shm
echo up
exec env --ignore-signal=CHLD cat >/dev/null
"""


def obstacle() -> str:
    """Why there can be no nodes here; empty where there can."""
    missing = [name for name in _TOOLS if shutil.which(name) is None]
    if missing:
        return f"nodes need the programs {', '.join(missing)} (util-linux, hostname)"
    tried = subprocess.run([*_ENTER, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"nodes need their own processes, mounts and host names: {tried.stderr.strip()}"
    try:
        with network(2, hosts_in=None):
            return ""
    except EnvironmentProblem as problem:
        return problem.message


@dataclass(slots=True, kw_only=True)
class Node:
    """One node; it runs from `boot` to `stop`, as often as wanted.

    Attributes:
        name: its host name
        address: on the network of the nodes
        seat: its network
        hosts: its file of host names
    """

    name: str
    address: str
    seat: NamespaceSeat
    hosts: Path
    _boot: "subprocess.Popen[str] | None" = None
    _first: int = 0
    _started: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    def boot(self) -> None:
        """Start the node: its first process, nothing else."""
        command = [*_ENTER, "sh", "-c", _BOOT, "sh", self.name, str(self.hosts)]

        def start() -> "subprocess.Popen[str]":
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )

        self._boot = self.seat.start(start)
        said = self._boot.stdout.readline().strip()  # type: ignore[union-attr]
        if said != "up":
            self.stop()
            raise EnvironmentProblem(f"a node with its own processes and host name cannot be made here: {said}")
        (self._first,) = map(int, Path(f"/proc/{self._boot.pid}/task/{self._boot.pid}/children").read_text().split())

    def run(self, command: Sequence[str], *, log: Path, cwd: Path = ROOT, **options: Any) -> "subprocess.Popen[bytes]":
        """Start a program on the node.

        Args:
            command: of the program
            log: gets what it prints, after what is there
            cwd: its directory
            options: of `subprocess.Popen`
        """
        entered = [
            "nsenter",
            f"--target={self._first}",
            "--net",
            "--pid",
            "--mount",
            "--uts",
            "--",
            "setsid",
            "env",
            f"--chdir={cwd}",
        ]
        with log.open("ab") as output:
            started = subprocess.Popen(
                [*entered, *command], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, **options
            )
        self._started.append(started)
        return started

    def processes(self, containing: str = "") -> list[int]:
        """Processes of the node whose command line contains a text, by their numbers outside of it."""
        try:
            own = Path(f"/proc/{self._first}/ns/pid").readlink()
        except OSError:
            return []
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if words and containing in words and (entry / "ns/pid").readlink() == own:
                    found.append(int(entry.name))
        return sorted(found)

    def signal(self, number: signal.Signals, containing: str) -> int:
        """Send a signal to the processes whose command line contains a text; how many there were."""
        found = self.processes(containing)
        for pid in found:
            os.kill(pid, number)
        return len(found)

    def cable(self, state: str) -> None:
        """Pull the cable out, or put it in again, without a word to any connection.

        Args:
            state: "down" or "up"
        """
        command = ["ip", "link", "set", "dev", "wire", state]
        self.seat.start(lambda: subprocess.run(command, check=True, capture_output=True, text=True))

    def stop(self) -> None:
        """Kill everything that runs on the node, at once and without a warning."""
        if self._boot is None:
            return
        with contextlib.suppress(ProcessLookupError):
            if self._first:
                os.kill(self._first, signal.SIGKILL)
            else:
                self._boot.kill()
        self._boot.wait(_SOON_S)
        self._boot.stdin.close()  # type: ignore[union-attr]
        self._boot.stdout.close()  # type: ignore[union-attr]
        for started in self._started:
            started.wait(_SOON_S)
        self._boot, self._first = None, 0
        self._started.clear()


@contextlib.contextmanager
def network(count: int, *, hosts_in: Path | None, own: str | None = "address") -> Iterator[list[Node]]:
    """Nodes that are joined by a network of their own; they run while the block does.

    Args:
        count: how many; they are called node1, node2, …
        hosts_in: folder for their files of host names; None: nodes are not started
        own: what a node has for its own name: "address", that on the network, or another one; None: nothing
    """
    with rate_limited_network(LINK, ranks=max(2, count)) as seats, contextlib.ExitStack() as ends:
        nodes = [
            Node(name=f"node{number}", address=f"10.0.0.{number}", seat=seat, hosts=Path(os.devnull))
            for number, seat in enumerate(seats, 1)
        ]
        if hosts_in is not None:
            for node in nodes:
                node.hosts = hosts_in / f"hosts-{node.name}"
                known = [f"{other.address} {other.name}" for other in nodes if other is not node]
                if own is not None:
                    known.append(f"{node.address if own == 'address' else own} {node.name}")
                node.hosts.write_text("".join(f"{line}\n" for line in ("127.0.0.1 localhost", *known)))
        for node in nodes:
            ends.callback(node.stop)
            if hosts_in is not None:
                node.boot()
        yield nodes


def environment(**more: str) -> dict[str, str]:
    """Variables of programs on a node: this checkout, one thread a rank; gloo is not told which interface to use."""
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    inherited = {name: text for name, text in os.environ.items() if name != "GLOO_SOCKET_IFNAME"}
    return {**inherited, **own, "PATH": tools, **more}


def wait_for(seen: Callable[[], Any], what: str, limit_s: float, told: Callable[[], str] = str) -> Any:
    """Wait until something is there, and return it.

    Args:
        seen: gives it, or something false
        what: it is, for the error
        limit_s: how long [s]
        told: more for the error
    """
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if found := seen():
            return found
        time.sleep(0.05)
    raise AssertionError(f"no {what} within {limit_s} s: {told()}")
