"""Published all-reduces over networks of supercomputers and clouds, of which none is in the curves that predict them.

Rates are bus bandwidth [GB/s]. What the sources say of the cards, and what was taken for the curves (Polaris on 2, 8
and 256 nodes), is in `machine/links.toml` and `pricing/collectives/curves.csv`.
"""

import pytest

from trimaran.machine.catalog import link_types, network_kinds
from trimaran.machine.find import find_machine
from trimaran.pricing.collectives.algorithms import collective_cost
from trimaran.pricing.collectives.formulas import bus_factor
from trimaran.pricing.types import Cost

PERLMUTTER = "sparticlesteve/podman-nccl-testing@d7966c5:logs/shifter-nccl-tests-30743809.out, NCCL 2.21"
POLARIS = "argonne-lcf/alcf-nccl-tests@385be33:results_polaris/nccl_2_21/n540.g4.2024-04-29-19-39-24, setup 5"
GIB = 2**30


def _cost(cluster: str, nbytes: float, op: str = "all_reduce") -> tuple[Cost, float]:
    """Cost, and what a rate is multiplied by to be a time [GB]."""
    machine = find_machine(cluster)
    cost = collective_cost(
        op,
        nbytes,
        machine=machine,
        devices=machine.devices,
        nodes=machine.nodes,
        library="nccl-tests processes",
        year=2024.5,
    )
    return cost, bus_factor(op, machine.devices) * nbytes / 1e9


@pytest.mark.parametrize(
    ("cluster", "nbytes", "rate", "source"),
    [
        ("perlmutter:2", GIB // 8, 69.74, PERLMUTTER),
        ("perlmutter:2", GIB, 73.00, PERLMUTTER),
        ("perlmutter:2", 4 * GIB, 74.30, PERLMUTTER),
        ("polaris:540", GIB // 8, 23.86, POLARIS),
        ("polaris:540", GIB, 29.11, POLARIS),
    ],
)
def test_slingshot(cluster: str, nbytes: int, rate: float, source: str) -> None:
    """Inside an interval whose ends are at most a factor of 2 apart; as TCP they were 3.5 and 2.7 times too slow."""
    cost, volume = _cost(cluster, nbytes)
    assert cost.low <= volume / rate <= cost.high, source
    assert cost.high <= 2 * cost.low


@pytest.mark.parametrize(
    ("cluster", "nbytes", "rate"),
    [("a3-highgpu-8g:2", 2**28, 67.82), ("a3-highgpu-8g:2@4 ethernet-200g", 2**28, 20.93)],
)
def test_a_card_of_google_with_its_transport_and_without(cluster: str, nbytes: int, rate: float) -> None:
    """skypilot-org/skypilot@9a3aa4d:examples/gcp_gpu_direct_tcpx/README.md: 256 MB on two nodes."""
    cost, volume = _cost(cluster, nbytes)
    assert cost.low <= volume / rate <= cost.high


def test_slingshot_without_its_plugin_is_tcp() -> None:
    """9.45 GB/s of 1 GiB on two nodes of Polaris (setup 1, NCCL 2.18): the same cards named as Ethernet."""
    cost, volume = _cost("polaris:2@2 ethernet-200g", GIB)
    assert cost.low <= volume / 9.45 <= cost.high


def test_every_card_of_the_catalog_says_what_it_can_do() -> None:
    """Rate and source of each; how collectives use it of all but Aries, over which none was read."""
    cards = {card.name: card for each in network_kinds().values() for card in each}
    assert len(cards) >= 28
    for card in cards.values():
        assert card.raw_bytes_per_s >= card.bytes_per_s > 0
        assert card.source not in ("", "from memory")
    assert {name for name, card in cards.items() if not card.access} == {"aries"}
    assert {card.kind for card in cards.values() if card.access == "host"} == {"ethernet"}
    assert set(cards) < set(link_types())
