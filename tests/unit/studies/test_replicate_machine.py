"""What goes through the first device of a machine, by hand from the links of half a DGX-1."""

from dataclasses import replace

import pytest
from tests.unit.simulator.test_exchange import estimate, work, workload

from trimaran.graph.kernels.workload import WorkKind
from trimaran.graph.types import Phase
from trimaran.machine.find import find_machine
from trimaran.pricing.collectives.algorithms import collective_cost
from trimaran_studies.reproduce.torch_data_parallel import (
    CALLS,
    COPY_S,
    MODULE_S,
    batch_copies,
    chunks,
    count_modules,
    output_bytes,
    replica_work,
    transfers_on,
)

HALF_A_DGX1 = find_machine("4xv100")
MIB = 1 << 20


def test_copies_from_the_host() -> None:
    """12.4 MB a device. One slot carries 12.4e9 B/s, 45 % of it from pageable memory; two devices share an uplink."""
    copies = batch_copies(HALF_A_DGX1, 12_400_000, devices=4)
    assert copies.whole_s == pytest.approx(COPY_S + 4e-3 / 0.45, rel=1e-3)
    assert copies.shares_s == pytest.approx(COPY_S + 1e-3 / 0.45, rel=1e-3)
    assert copies.whole_ahead_s == pytest.approx(COPY_S + 4e-3, rel=1e-3)
    assert copies.shares_ahead_s == pytest.approx(COPY_S + 2e-3, rel=1e-3)


def test_shares_are_scattered_over_the_links_of_the_first_device() -> None:
    """To devices 1 and 2 over one NVLink of 21.3e9 B/s, to device 3 over two."""
    job = replace(workload(MIB), input_bytes=21_300_000)
    found = transfers_on(HALF_A_DGX1, job, devices=4, year=2021.0)
    assert found.scatter_s == pytest.approx(3 * COPY_S + 1e-3 + 1e-3 + 0.5e-3)


def test_weights_go_in_chunks_and_once_over_memory() -> None:
    """Three tensors of 4 MiB: 8 and 4 MiB, each packed and unpacked."""
    job = workload(4 * MIB, 4 * MIB, 4 * MIB)
    found = transfers_on(HALF_A_DGX1, job, devices=4, year=2021.0)
    sent = sum(
        collective_cost("broadcast", size * MIB, machine=HALF_A_DGX1, devices=4, year=2021.0).seconds for size in (8, 4)
    )
    memory = 2 * 12 * MIB / HALF_A_DGX1.node.device.sustained_bytes_per_s
    assert found.weights_s == pytest.approx(sent + memory)
    assert found.compressed_weights_s < found.weights_s
    assert found.coding_s == pytest.approx((3.0 + 8.5) * memory / 2)


def test_a_copy_of_each_module_is_made_for_each_device() -> None:
    """Two layers and the network itself."""
    assert transfers_on(HALF_A_DGX1, workload(8, 8), devices=4, year=2021.0).making_s == pytest.approx(4 * 3 * MODULE_S)


def test_modules_that_hold_others_count() -> None:
    job = replace(workload(8), works=(work(Phase.FORWARD, "body.block0.conv"), work(Phase.FORWARD, "")))
    assert count_modules(replace(job, gradients=())) == 4  # the network, body, body.block0, body.block0.conv


def test_a_tensor_larger_than_a_chunk_is_one_of_its_own() -> None:
    assert chunks([3 * MIB, 8 * MIB, 1 * MIB, 40 * MIB, MIB], limit=10 * MIB) == [
        3 * MIB, 9 * MIB, 40 * MIB, MIB,
    ]  # fmt: skip
    assert chunks([]) == []


def test_outputs_are_what_the_loss_reads() -> None:
    job = workload(8)
    loss = replace(work(Phase.FORWARD, ""), kind=WorkKind.SOFTMAX, name="aten._log_softmax", dims=(32_000,))
    assert output_bytes(job) == 0
    with_loss = replace(job, works=(*job.works, loss))
    assert output_bytes(with_loss) == 4 * 32_000
    seconds = estimate(job)
    of_loss = replace(seconds, work_s=(*seconds.work_s, 0.25))
    assert replica_work(with_loss, of_loss).loss_s == pytest.approx(0.25)


def test_the_interpreter_holds_half_of_the_hosts_time_for_the_forward() -> None:
    """A layer: one launch forward, one backward, one of the update."""
    job = workload(8)
    found = replica_work(job, replace(estimate(job), host_s=0.6))
    assert found.calls_s == pytest.approx(CALLS * 0.2)
