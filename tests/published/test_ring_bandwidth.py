"""Bus bandwidth of large all-reduces, as published, against the rings that are found on the link graph.

One ring's rate a kind of link was taken from these or other measurements; how many rings there are was not.
"""

import pytest

from trimaran.machine.catalog import find_node
from trimaran.machine.rings import ring_bandwidth
from trimaran.machine.topology import pair

TARTAN = "uuudown/Tartan@e3166ab:microbenchmark/scale_up_cl/nccl-v2"
MIST = "Dazz993/Mist@d69e530:benchmark/superscaler/results-ref"
AICONFIGURATOR = "ai-dynamo/aiconfigurator@095f58a51"

MEASURED = [
    # machine, devices, bytes/s, tolerance, source
    ("dgx1-p100", 2, 17.28e9, 0.02, TARTAN),
    ("dgx1-p100", 3, 34.56e9, 0.02, TARTAN),
    ("dgx1-p100", 4, 52.09e9, 0.02, TARTAN),
    ("dgx1-p100", 5, 5.57e9, 0.02, TARTAN),
    ("dgx1-p100", 6, 34.70e9, 0.02, TARTAN),
    ("dgx1-p100", 7, 34.72e9, 0.02, TARTAN),
    ("dgx1-p100", 8, 62.24e9, 0.12, TARTAN),  # four rings sustain 15.6e9 each, fewer sustain 17.3e9
    ("dgx1-v100-32gb", 2, 20.2e9, 0.02, MIST),
    ("dgx1-v100-32gb", 4, 77.7e9, 0.05, MIST),
    ("dgx1-v100-32gb", 8, 129.4e9, 0.07, MIST),
    ("dgx-a100-40gb", 2, 212.3e9, 0.12, MIST),
    ("dgx-a100-40gb", 4, 228.4e9, 0.04, MIST),
    ("dgx-a100-40gb", 8, 231.4e9, 0.03, MIST),
    ("hgx-h200", 2, 319e9, 0.16, AICONFIGURATOR),
    ("hgx-h200", 4, 349e9, 0.06, AICONFIGURATOR),
    ("hgx-h200", 8, 367e9, 0.02, AICONFIGURATOR),  # by rings; by NVLS 473e9
    ("hgx-b200", 8, 682e9, 0.02, AICONFIGURATOR),
    ("mi300x-8", 8, 313e9, 0.02, "stas00/ml-engineering@744d01e:network/README.md"),
    ("8xa100-pcie-pairs", 2, 208e9, 0.14, "NVIDIA/nccl-tests issue 178"),
    ("8xa100-pcie-pairs", 4, 20e9, 0.05, "NVIDIA/nccl-tests issue 178"),
]


@pytest.mark.published
@pytest.mark.parametrize(("machine", "devices", "measured", "tolerance", "source"), MEASURED)
def test_ring_bandwidth(machine: str, devices: int, measured: float, tolerance: float, source: str) -> None:
    found = ring_bandwidth(find_node(machine), range(devices))
    assert found.bytes_per_s == pytest.approx(measured, rel=tolerance), source


@pytest.mark.published
def test_copies_without_nvlink_on_a_dgx1() -> None:
    """9.19e9 B/s in one direction between devices 0 and 5 of a DGX-1 with P100, staged (Tartan, P2P=Enabled matrix)."""
    dgx = find_node("dgx1-p100")
    assert pair(dgx, 0, 5).bytes_per_s == pytest.approx(9.19e9, rel=0.02)
    assert pair(dgx, 0, 4).bytes_per_s == pytest.approx(18.41e9, rel=0.02)
