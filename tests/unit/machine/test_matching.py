"""Labels as published measurements have them, and others that mean the same machines."""

import pytest

from trimaran.machine.catalog import match_device
from trimaran_studies.facts.machine_labels import match_machine


@pytest.mark.parametrize(
    ("text", "memory_gb", "name"),
    [
        ("V100", 16, "v100-16gb"),
        ("V100", 32, "v100-32gb"),
        ("V100-SXM2-32GB", None, "v100-32gb"),
        ("Tesla_V100-PCIE-32GB", None, "v100-pcie-32gb"),
        ("a100_40gb", None, "a100-40gb"),
        ("A100 80GB PCIe", None, "a100-pcie-80gb"),
        ("NVIDIA_A100_80GB_PCIe", None, "a100-pcie-80gb"),
        ("NVIDIA A100-SXM4-80GB", None, "a100-80gb"),
        ("- K80 (single GPU)", None, "k80"),
        ("- M60", None, "m60"),
        ("AMD_Instinct_MI100", None, "mi100"),
        ("GeForce GTX TITAN X (Maxwell)", None, "titan-x"),
        ("GeForce GTX TITAN X", 12, "titan-x"),
        ("TITAN X (Pascal)", None, "titan-x-pascal"),
        ("Titan Xp", None, "titan-xp"),
        ("Titan RTX", None, "titan-rtx"),
        ("TITAN V", None, "titan-v"),
        ("RTX 2080Ti NVLink", None, "rtx-2080-ti"),
        ("RTX 2080 SUPER MAX-Q", None, "rtx-2080-super-max-q"),
        ("RTX 2080 MAX-Q", None, "rtx-2080-max-q"),
        ("RTX 8000", None, "quadro-rtx-8000"),
        ("RTX 6000 Ada", None, "rtx-6000-ada"),
        ("Quadro RTX 6000", None, "quadro-rtx-6000"),
        ("RTX A6000", None, "rtx-a6000"),
        ("RTX 3080", None, "rtx-3080"),
        ("RTX 3080", 12, "rtx-3080-12gb"),
        ("NVIDIA GeForce RTX 3060 Ti", None, "rtx-3060-ti"),
        ("GTX 1080Ti", None, "gtx-1080-ti"),
        ("GTX1080", None, "gtx-1080"),
        ("Lambda Cloud — RTX A6000", None, "rtx-a6000"),
        ("LambdaCloud 1x A100 40GB PCIe", None, "a100-pcie-40gb"),
        ("8x H100 SXM5", None, "h100"),
        ("NVIDIA H100 80GB HBM3", None, "h100"),
        ("H100 NVL", None, "h100-nvl"),
        ("dgx_h100", None, "h100"),
        ("GH200", None, "gh200"),
        ("GB200", None, "gb200"),
        ("a10g", None, "a10g"),
        ("L40S", None, "l40s"),
        ("A30", None, "a30"),
        ("CPU 2x E5-2630v3", None, "2x-e5-2630-v3"),
        ("CPU", None, "2x-e5-2698-v4"),
        ("i7-5930K + Titan X", None, "titan-x"),
        ("2x E5-2698 v4, 8x V100", None, "v100-16gb"),
        ("- C5.18xLarge", None, "2x-platinum-8124m"),
        ("RTX 4500 Ada", None, "rtx-4500-ada"),
        ("GH200 480GB", None, "gh200"),
        ("GH200 144GB", None, "gh200-144gb"),
        ("RTX 3080\uff0812GB\uff09", None, "rtx-3080-12gb"),
    ],
)
def test_devices(text: str, memory_gb: float | None, name: str) -> None:
    found = match_device(text, memory_gb)
    assert found is not None
    assert found.device.name == name
    assert found.device in found.possible


@pytest.mark.parametrize("text", ["", "Graphics Device", "8 nodes, 100 Gb/s", "TPU v3"])
def test_what_names_no_device(text: str) -> None:
    assert match_device(text) is None


def test_a_size_of_memory_before_a_network_is_no_rate() -> None:
    found = match_machine("a100_80gb IB 4x 200Gbps", "a100", devices=16)
    assert found is not None
    assert found.device.name == "a100-80gb"
    assert not any("memory not said" in words for words in found.assumed)


def test_what_is_taken_for_granted_is_said() -> None:
    found = match_device("A100")
    assert found is not None
    assert found.assumed == ("form not said: sxm assumed", "memory not said: 80 GiB assumed")
    said = match_device("A100-SXM4-40GB")
    assert said is not None
    assert said.assumed == ()


CASES = [
    # machine, device, devices, nodes; node, its devices, nodes, fabric
    ("DGX-1", "V100", 8, None, "dgx1-v100", 8, 1, None),
    ("DGX-1 (P100)", "P100", 4, None, "dgx1-p100", 8, 1, None),
    ("NVIDIA DGX-1 (8x V100 16GB)", "", 8, None, "dgx1-v100", 8, 1, None),
    ("DGX-1", "V100 32GB", 8, None, "dgx1-v100-32gb", 8, 1, None),
    ("DGX-1", "V100", 128, 16, "dgx1-v100", 8, 16, (4, "ib-edr")),
    ("DGX-2 (16x V100 32GB)", "V100", 16, None, "dgx2", 16, 1, None),
    ("DGX A100", "", 8, None, "dgx-a100", 8, 1, None),
    ("DGX-A100", "A100 40GB", 8, None, "dgx-a100-40gb", 8, 1, None),
    ("DGX-H100", "DGX-H100", 64, None, "dgx-h100", 8, 8, (8, "ib-ndr")),
    ("dgx_h100", "h100", 16, None, "dgx-h100", 8, 2, (8, "ib-ndr")),
    ("DLPerf cluster: 4 nodes x 8 V100-SXM2-16GB, 100 Gb/s InfiniBand", "V100-SXM2", 32, 4, "dgx1-v100", 8, 4,
     (1, "ib-edr")),
    ("AWS p2.8xlarge", "K80", 8, 1, "p2.8xlarge", 8, 1, None),
    ("AWS p2.16xlarge cluster (16 K80 GK210 per node)", "K80", 32, None, "p2.16xlarge", 16, 2, (1, "ethernet-25g")),
    ("p3.16xlarge", "V100", 8, None, "p3.16xlarge", 8, 1, None),
    ("AWS p3dn.24xlarge", "V100", 64, None, "p3dn.24xlarge", 8, 8, (1, "efa-v1-100g")),
    ("AWS g4dn.12xlarge (4x T4 per node; from memory)", "T4", 4, 1, "g4dn.12xlarge", 4, 1, None),
    ("GCE n1-standard-32-k80x8", "K80", 8, 1, "gcp-k80", 8, 1, None),
    ("GCP p100", "p100", 4, None, "gcp-p100", 4, 1, None),
    ("GCP v100", "v100", 8, None, "gcp-v100", 8, 1, None),
    ("GCP A100", "a100", 8, None, "a2-highgpu-8g", 8, 1, None),
    ("l4 (GCP, PCIe)", "L4", 4, None, "gcp-l4", 8, 1, None),
    ("LambdaCloud 8x V100 16GB", "LambdaCloud 8x V100 16GB", 8, None, "lambda-v100", 8, 1, None),
    ("2x RTX 2080Ti NVLink", "RTX 2080Ti NVLink", 2, None, "2xrtx-2080-ti-bridged", 2, 1, None),
    ("8x A100 40GB PCIe", "A100 40GB PCIe", 8, None, "8xa100-pcie-40gb", 8, 1, None),
    ("4x A100 80GB SXM4", "A100 80GB SXM4", 4, None, "4xa100-80gb", 4, 1, None),
    ("single-node 8xA100", "A100", 8, None, "dgx-a100", 8, 1, None),
    ("a100_40gb RoCE 1600 Gb/s", "a100_40gb", 32, None, "dgx-a100-40gb", 8, 4, (8, "roce-200g")),
    ("8x A100 SXM4 40GB 25 GbE", "A100", 32, None, "dgx-a100-40gb", 8, 4, (1, "ethernet-25g")),
    ("a100_80gb IB 4x 200Gbps", "a100", 16, None, "dgx-a100", 8, 2, (4, "ib-hdr")),
    ("", "V100-32GB (JZ, 4 per node)", 64, None, "jean-zay-v100", 4, 16, (4, "omni-path-100")),
    ("10 Gbps Ethernet 4 nodes x 4 1080Ti", "GTX 1080 Ti", 16, None, "4xgtx-1080-ti", 4, 4, (1, "ethernet-10g")),
    ("i7-5930K + Titan X", "Graphics Device", 1, 1, "1xtitan-x", 1, 1, None),
    ("workstation", "CPU 2x E5-2630v3", 0, 1, "1x2x-e5-2630-v3", 1, 1, None),
    ("Titan RTX", "Titan RTX", 2, None, "2xtitan-rtx", 2, 1, None),
    ("GH200", "GH200", 1, None, "1xgh200", 1, 1, None),
    ("gb200_nvl72", "GB200", 72, None, "gb200-nvl72", 72, 1, None),
    ("Azure NDv4", "A100", 8, None, "nd96asr-v4", 8, 1, None),
    ("A100-PCIE-40GB, 2 nodes x 4, 25Gb Ethernet", "", 8, None, "4xa100-pcie-40gb", 4, 2, (1, "ethernet-25g")),
    ("16x V100-32GB (2 nodes, 56Gb/s IB)", "", 16, None, "dgx1-v100-32gb", 8, 2, (1, "ib-fdr")),
    ("ml.p3.16xlarge", "", 8, None, "p3.16xlarge", 8, 1, None),
    ("DGX-1V 32GB", "", 8, None, "dgx1-v100-32gb", 8, 1, None),
    ("8x MI300X", "", 8, None, "mi300x-8", 8, 1, None),
    ("Azure NC6s_v3", "V100", 1, None, "nc6s-v3", 1, 1, None),
    ("Tesla P4", "", 1, None, "1xp4", 1, 1, None),
    ("ABCI", "V100", 8, None, "abci-v100", 4, 2, (2, "ib-edr")),
    ("Summit", "V100", 12, None, "summit", 6, 2, (2, "ib-edr")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("machine", "device", "devices", "nodes", "node", "size", "count", "fabric"), CASES, ids=lambda value: str(value)
)
def test_machines(
    machine: str,
    device: str,
    devices: int,
    nodes: int | None,
    node: str,
    size: int,
    count: int,
    fabric: tuple[int, str] | None,
) -> None:
    found = match_machine(machine, device, devices=devices, nodes=nodes)
    assert found is not None
    joined = found.machine.fabric and (found.machine.fabric[0], found.machine.fabric[1].name)
    assert (found.machine.node.name, found.machine.node.devices, found.machine.nodes, joined) == (
        node,
        size,
        count,
        fabric,
    )
    assert found.machine.devices >= devices
    assert found.device == found.machine.node.device


def test_a_label_without_a_device_matches_no_machine() -> None:
    assert match_machine("workstation", "", devices=1) is None
    assert match_machine("", "", devices=8) is None


def test_a_machine_that_has_another_device_gives_way() -> None:
    """A DGX-1 never had A100: the device decides, and that is said."""
    found = match_machine("DGX-1", "A100", devices=8, memory_gb=40)
    assert found is not None
    assert found.machine.node.name == "dgx-a100-40gb"
    assert any("has no NVIDIA A100" in words for words in found.assumed)


def test_networks_that_nobody_names_are_said_to_be_assumed() -> None:
    found = match_machine("DGX-1", "V100", devices=16)
    assert found is not None
    assert any("network not said: 4 x ib-edr" in words for words in found.assumed)


_CLUSTER = "cluster: 4 nodes x 8 V100-SXM2-16GB, 100 Gb/s InfiniBand"


@pytest.mark.parametrize(
    ("text", "devices", "told", "nodes", "each"),
    [
        (_CLUSTER, 32, 4, 4, 8),
        (_CLUSTER, 32, None, 4, 8),
        (_CLUSTER, 16, None, 2, 8),
        (_CLUSTER, 8, None, 1, 8),
        (_CLUSTER, 4, 1, 1, 8),
        ("16x H100, 2 nodes", 16, None, 2, 8),
        ("16x H100, 2 nodes", 3, None, 1, 3),
        ("AWS p2.8xlarge, 8 instances", 64, None, 8, 8),
        ("2 nodes of 4 A100", 8, None, 2, 4),
    ],
)
def test_a_cluster_s_size_is_not_that_of_a_job(
    text: str, devices: int, told: int | None, nodes: int, each: int
) -> None:
    """What a label says of the whole cluster bounds the nodes of a job; its devices decide how many are in use."""
    found = match_machine(text, "K80" if "p2" in text else "", devices=devices, nodes=told)
    assert found is not None
    assert (found.machine.nodes, found.machine.node.devices) == (nodes, each)
