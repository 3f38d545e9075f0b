"""Nodes are machines of their own, and nothing of them is left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engines.nodes import ROOT, network, obstacle, wait_for

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(bool(obstacle()), reason=obstacle() or "there can be nodes"),
]

HOLDER = """
import sys
from pathlib import Path
from tests.engines.nodes import network
folder = Path(sys.argv[1])
with network(2, hosts_in=folder) as nodes:
    for node in nodes:
        node.run(["sleep", "1000"], log=folder / "log")
    while sum(len(node.processes("sleep 1000")) for node in nodes) < 2:
        pass
    print(*(pid for node in nodes for pid in node.processes()), flush=True)
    sys.stdin.read()
"""


def has_ended(pid: int) -> bool:
    """It is gone, or waits for nobody to ask for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_a_node_has_its_own_name_processes_and_network(tmp_path: Path) -> None:
    with network(2, hosts_in=tmp_path) as (first, second):
        log = tmp_path / "log"
        command = "hostname; ls /proc | grep -c '^[0-9]'; ip -oneline -4 address show dev wire; getent hosts node1"
        assert second.run(["sh", "-c", command], log=log).wait(20) == 0
        name, processes, address, found = log.read_text().splitlines()
        assert (name, found.split()) == ("node2", ["10.0.0.1", "node1"])
        assert int(processes) < 10
        assert f" {second.address}/24 " in address
        asleep = second.run(["sleep", "1000"], log=log)
        wait_for(lambda: second.processes("sleep 1000"), "program", 20)
        second.stop()
        assert asleep.poll() == -signal.SIGKILL
        assert first.processes() != [] == second.processes()
        second.boot()
        assert second.run(["true"], log=log).wait(20) == 0


def test_nothing_is_left_where_the_test_itself_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        pids = [int(pid) for pid in holder.stdout.readline().split()]  # type: ignore[union-attr]
        holder.kill()
    assert len(pids) == 4
    wait_for(lambda: all(map(has_ended, pids)), "end", 20)
