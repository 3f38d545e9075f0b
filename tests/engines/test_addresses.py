"""Ranks on two nodes find each other, whatever the hosts files of the nodes say of their own names."""

import sys
from pathlib import Path

import pytest
from tests.engines.nodes import ROOT, environment, network, obstacle

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.timeout(200),
    pytest.mark.skipif(bool(obstacle()), reason=obstacle() or "there can be nodes"),
]


@pytest.mark.parametrize(
    ("own", "master", "interface"),
    [("address", "node1", None), ("127.0.1.1", "node1", "wire"), (None, "10.0.0.1", "wire")],
    ids=["network", "Debian's loopback", "unknown"],
)
def test_ranks_of_two_nodes_join(own: str | None, master: str, interface: str | None, tmp_path: Path) -> None:
    """gloo takes the address of the host name. Where that is none of the network, the route decides."""
    logs = [tmp_path / f"{rank}.log" for rank in range(2)]
    with network(2, hosts_in=tmp_path, own=own) as nodes:
        started = []
        for rank, node in enumerate(nodes):
            place = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
            variables = environment(**place, MASTER_ADDR=master, MASTER_PORT="29555")
            command = [sys.executable, str(ROOT / "tests" / "engines" / "joining.py")]
            started.append(node.run(command, log=logs[rank], env=variables))
        codes = [one.wait(150) for one in started]
    assert codes == [0, 0], "\n".join(log.read_text() for log in logs)
    for rank, log in enumerate(logs):
        assert f"rank {rank} sum 3.0 interface {interface}" in log.read_text()
