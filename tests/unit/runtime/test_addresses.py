"""Which interface gloo is given."""

import socket

import pytest
import torch.distributed as dist

from trimaran.launch import addresses
from trimaran.launch.addresses import choose_interface, interface_of, reaches_only_itself


def test_where_the_host_name_is_a_loopback_address_and_nobody_is_elsewhere_gloo_chooses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where two torchruns are started on one machine: all ranks reach each other by the loopback interface."""
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    store = dist.HashStore()
    assert choose_interface(store, "localhost", rank=0, size=1) is None
    assert store.get("trimaran/address/0").decode() in ("127.0.0.1", "::1")


def test_a_rank_on_the_machine_of_rank_0_takes_the_route_to_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address of rank 1 is one of the network; here it is sent to from an address of the loopback interface."""
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    routes = {"node1": "127.0.1.1", "10.0.0.2": "127.0.0.1"}
    monkeypatch.setattr(addresses, "address_towards", routes.__getitem__)
    store = dist.HashStore()
    store.set("trimaran/address/1", "10.0.0.2")
    assert choose_interface(store, "node1", rank=0, size=2) == "lo"


def test_a_name_without_an_address_reaches_only_itself() -> None:
    assert reaches_only_itself("no-such-host.invalid")


@pytest.mark.parametrize("address", ["192.0.2.77", "2001:db8::77", "", "node1"])
def test_no_interface_has_a_foreign_address(address: str) -> None:
    assert interface_of(address) is None
