"""Lines of submitted results: what they say, and which one another is predicted from."""

import pytest
from tests.raising import raises

from trimaran_studies.time_to_train.submissions import Submission, anchors_of, read_submission
from trimaran_studies.validation.measurement import Row

A100 = "NVIDIA A100-SXM4-80GB"


def line(
    kind: str, *, devices: str = "8", batch: str = "3264", minutes: float = 28.6, accelerator: str = A100, **more: str
) -> Row:
    fields = {
        "round": "v2.0", "model": "resnet", "machine": kind, "global_batch": batch,
        "n_gpus": devices, "gpu": accelerator, **more,
    }  # fmt: skip
    return Row(row_id=kind, family="time_to_train", fields=fields, measured=minutes, unit="min", anchor=None)


def read(kind: str, **more: str) -> Submission:
    return read_submission(line(kind, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "devices", "nodes"),
    [
        ("NVIDIA dgxa100_ngc22.04_mxnet", "8", 1),
        ("NVIDIA dgxa100_n8_ngc22.04_mxnet", "64", 8),
        ("Dell 4xXE8545x4A100-SXM-80GB", "16", 4),
        ("HPE HPE-ProLiant-XL675d-Gen10-Plus_A100-SXM-80GB_16N_mxnet", "128", 16),
        ("H3C 2R5500G5-Intelx8A100-SXM-80GB", "16", 2),
    ],
)
def test_nodes_are_read_in_the_label(kind: str, devices: str, nodes: int) -> None:
    found = read(kind, devices=devices)
    assert (found.devices, found.machine.nodes, found.known) == (int(devices), nodes, True)


@pytest.mark.parametrize(
    ("kind", "accelerator", "devices"),
    [
        ("DellEMC 4xC4140", "Nvidia Tesla V100-SXM2-32GB", 16),
        ("Intel 8-nodes-64s-8376H-tensorflow", "N/A", 64),
        ("Intel 16-nodes-SPR-pytorch", "N/A", 16),
    ],
)
def test_devices_that_the_columns_leave_out(kind: str, accelerator: str, devices: int) -> None:
    """Four V100 in a C4140; sockets, then nodes, of processors."""
    assert read(kind, devices="", accelerator=accelerator).devices == devices


def test_a_card_in_a_large_server_stays_in_it() -> None:
    """Ten cards, and no word of several servers."""
    found = read("Nettrix X640G40_10xA100-PCIe-80GB_mxnet", devices="10", accelerator="NVIDIA A100-PCIe-80GB")
    assert found.machine.nodes == 1


def test_servers_of_others_are_joined_by_infiniband() -> None:
    """One card for four devices; a DGX has one for each."""
    dell = read("Dell 8xR750xax4A100-PCIE-80GB", devices="32", accelerator="NVIDIA A100-PCIE-80GB (300W)")
    dgx = read("NVIDIA dgxa100_n8_ngc22.04_mxnet", devices="64")
    assert dell.machine.fabric is not None
    assert dgx.machine.fabric is not None
    assert (dell.machine.fabric[0], dell.machine.fabric[1].name) == (1, "ib-hdr")
    assert dgx.machine.fabric[0] == 8


def test_a_device_that_the_catalog_lacks_has_one_that_stands_in() -> None:
    found = read("Google tpu-v4-128-TF", devices="64", accelerator="TPU")
    assert (found.kind, found.known, found.machine.node.device.name) == ("tpu v4", False, "a100-80gb")


def test_a_batch_of_round_half_is_of_one_device() -> None:
    """208 on each of eight; a batch of 2,048 is that of all."""
    own = read("nvidia dgx1_ngc18.11_mxnet", batch="208", round="v0.5")
    assert own.batch == 1664
    assert read("google 8xV100", batch="2048", round="v0.5").batch == 2048


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (line("NVIDIA dgxa100", minutes=0.0), "submission.no-time"),
        (line("NVIDIA dgxa100", batch=""), "submission.no-batch"),
        (line("NVIDIA dgxa100", batch="none"), "submission.no-batch"),
        (line("nvidia dgx1_multi_ngc18.11_mxnet", devices="1024"), "submission.several-sizes"),
        (line("Somebody box", devices="", accelerator=""), "submission.no-device-count"),
    ],
)
def test_what_a_line_leaves_out_is_told(row: Row, code: str) -> None:
    with raises(code):
        read_submission(row)


@pytest.mark.parametrize(("row", "what"), [({"devices": "1e12"}, r"1e\+12"), ({"batch": "3e13"}, r"3e\+13")])
def test_counts_that_no_training_had_are_refused(row: dict[str, str], what: str) -> None:
    with raises("submission.impossible-count", match=what):
        read("NVIDIA dgxa100_n8_mxnet", **row)


def test_the_smallest_of_the_same_submitter_comes_first() -> None:
    """Then the same software, then anybody's smallest of the same device."""
    large = read("NVIDIA dgxa100_n8_ngc22.04_mxnet", devices="64")
    own, other = read("NVIDIA dgxa100_ngc22.04_mxnet"), read("Lenovo box_mxnet", devices="4")
    middle = read("NVIDIA dgxa100_n2_ngc22.04_mxnet", devices="16")
    assert anchors_of(large, [large, middle, other, own]) == (own,)
    assert anchors_of(large, [large, other]) == (other,)
    assert anchors_of(own, [large, middle, own]) == ()


def test_only_what_is_alike_is_an_anchor() -> None:
    """Not another round, device or division."""
    large = read("NVIDIA dgxa100_n8_ngc22.04_mxnet", devices="64")
    others = [
        read("NVIDIA dgxa100_ngc22.04_mxnet", round="v2.1"),
        read("NVIDIA dgxa100_ngc22.04_mxnet", accelerator="NVIDIA A100-PCIe-80GB"),
        read("NVIDIA dgxa100_open"),
    ]
    assert anchors_of(large, others) == ()
