"""A network of 100 bytes of weights; AdamW's state is twice that; 40 bytes of activations a sample."""

from dataclasses import replace
from typing import Any

from tests import builders

from trimaran.graph.kernels.workload import WorkKind
from trimaran.graph.trace.live_bytes import StepMemory
from trimaran.machine.catalog import find_device
from trimaran.pricing.exchange.replica_memory import CHANNELS, CONNECTION_BYTES, ReplicaMemory, replica_memory
from trimaran.pricing.kernels.software import RUNTIME, Software

STEP = StepMemory(
    lines=((400, 0), (320, 40)),
    lines_without_gradients=((300, 0), (300, 40)),
    parameter_bytes=100,
    buffer_bytes=0,
    gradient_bytes=100,
    optimizer_bytes=200,
)
DEVICE = find_device("v100-16gb")


def rank(**changed: Any) -> ReplicaMemory:
    asked: dict[str, Any] = {
        "batch": 10,
        "devices": 4,
        "sync": "nccl",
        "device": DEVICE,
        "software": Software(),
        **changed,
    }
    return replica_memory(STEP, asked.pop("works", ()), **asked)


def test_alone_it_is_the_step() -> None:
    alone = rank(devices=1)
    assert alone.peak_bytes == alone.step_bytes == 320 + 10 * 40
    assert alone.communicator_bytes == 0


def test_buckets_hold_gradients_a_second_time() -> None:
    """All the time, so at the peak too, whenever that is."""
    assert rank().peak_bytes == 720 + 100
    assert rank().communicator_bytes == 2 * CHANNELS * CONNECTION_BYTES


def test_gradients_that_are_views_of_buckets_are_there_once_but_always() -> None:
    assert rank(software=RUNTIME).peak_bytes == 100 + 300 + 400
    assert rank(software=RUNTIME).bucket_bytes == 0


def test_one_device_has_no_buckets() -> None:
    assert rank(software=RUNTIME, devices=1).peak_bytes == rank(devices=1).peak_bytes


def test_gradients_that_are_kept_are_there_in_the_forward() -> None:
    assert rank(devices=1, software=Software(year=2022.0)).peak_bytes == 100 + 700


def test_a_home_has_a_copy_from_each_other_device() -> None:
    """Of 60 bytes: the sum, three copies and the weight, 300; their state, 120, in the place of all of it, 200."""
    assert rank(sync="kvstore", summed_bytes=60).owned_bytes == 300 + 120 - 200
    assert rank(sync="kvstore", summed_bytes=60).peak_bytes == 720 + 220


def test_who_is_home_to_nothing_has_no_state() -> None:
    assert rank(sync="kvstore").peak_bytes == 720 - 200


def test_servers_on_hosts_add_nothing() -> None:
    assert rank(sync="server").peak_bytes == rank(devices=1).peak_bytes


def test_convolutions_take_what_is_free() -> None:
    convolution = builders.work(kind=WorkKind.CONVOLUTION, name="aten.convolution", nbytes=70)
    assert rank(works=(convolution,)).workspace_bytes == 0


def test_products_take_more_workspace_on_hopper() -> None:
    product = builders.work(kind=WorkKind.PRODUCT, name="aten.mm", dims=(1, 1, 1, 1))
    assert rank(works=(product,)).workspace_bytes == 8_519_680
    assert rank(works=(product,), device=find_device("h100")).workspace_bytes == 32 * 2**20


def test_what_no_allocator_counts_takes_room_too() -> None:
    """The card has room for the step and the context, but not for communicators beside them."""
    alone = rank(devices=1)
    card = replace(DEVICE.memory, reported_bytes=alone.peak_bytes + alone.context_bytes)
    device = replace(DEVICE, memory=card)
    assert rank(devices=1, device=device).fits
    assert not rank(device=device).fits
    assert not rank(devices=1, batch=11, device=device).fits
