"""A data-parallel step, taken apart: its parts sum to it, and each cause of waiting appears where it should."""

from dataclasses import replace

import pytest
from tests import builders
from tests.raising import raises

from trimaran.graph.kernels.workload import Work, WorkKind, Workload
from trimaran.graph.types import Phase
from trimaran.machine.find import find_machine
from trimaran.pricing.exchange.costs import ExchangeOptions
from trimaran.pricing.exchange.step import ScaledStep, Sync
from trimaran.pricing.kernels.estimate import StepEstimate
from trimaran.pricing.kernels.software import Software
from trimaran.pricing.types import Cost
from trimaran.simulator.data_parallel import DataParallelSetup, data_parallel_step, ready_gradients
from trimaran_studies.facts.loaders import rate_of_host

MXNET = Software(framework="mxnet", year=2018.5)


def work(phase: Phase, module: str) -> Work:
    return builders.work(kind=WorkKind.PRODUCT, phase=phase, module=module, name="mm", flops=1.0, nbytes=1, dims=(1,))


def workload(*sizes: int) -> Workload:
    """A network of layers of so many bytes of weights, the last of them first in the backward."""
    names = [f"layer{number}" for number in range(len(sizes))]
    works = [work(Phase.FORWARD, name) for name in names]
    gradients = []
    for name, nbytes in reversed(list(zip(names, sizes, strict=True))):
        gradients.append(
            builders.weight_gradient(
                name=f"{name}.weight", module=name, elements=nbytes // 4, nbytes=nbytes, work=len(works)
            )
        )
        works.append(work(Phase.BACKWARD, name))
    works.append(work(Phase.UPDATE, ""))
    return builders.workload(
        name="layers", works=tuple(works), gradients=tuple(gradients), parameter_bytes=sum(sizes), input_bytes=1
    )


def estimate(job: Workload, layer_s: float = 0.01) -> StepEstimate:
    """Every layer takes as long forward, twice as long backward, and the update a millisecond."""
    layers = len(job.gradients)
    seconds = [layer_s] * layers + [2 * layer_s] * layers + [1e-3]

    def cost(value: float) -> Cost:
        return Cost(value, 0.9 * value, 1.1 * value, "example")

    return StepEstimate(
        work_s=tuple(seconds),
        forward=cost(layers * layer_s),
        backward=cost(2 * layers * layer_s),
        update=cost(1e-3),
        host_s=0.0,
        device_s=sum(seconds),
        source="example",
    )


SMALL = workload(4_000_000, 4_000_000, 4_000_000, 4_000_000)
LARGE_LAST = workload(4_000_000, 4_000_000, 4_000_000, 400_000_000)
LARGE_FIRST = workload(400_000_000, 4_000_000, 4_000_000, 4_000_000)


def scaled(job: Workload, devices: int, sync: Sync = "nccl", **fields: object) -> ScaledStep:
    setup = {"machine": find_machine("dgx1-v100"), "estimate": estimate(job), "software": MXNET, **fields}
    return data_parallel_step(DataParallelSetup(workload=job, devices=devices, sync=sync, **setup))  # type: ignore[arg-type]


@pytest.mark.parametrize("sync", ["nccl", "kvstore", "server", "byteps"])
@pytest.mark.parametrize("devices", [1, 2, 8])
def test_parts_sum_to_the_step(sync: Sync, devices: int) -> None:
    for job in (SMALL, LARGE_LAST, LARGE_FIRST):
        step = scaled(job, devices, sync, feed=rate_of_host(1000.0, source="example"))
        assert step.fp_bp_s + step.wu_exposed_s + step.feeding_s == pytest.approx(step.step.seconds, rel=1e-12)
        assert step.exposed_communication_s <= step.communication_s + 1e-12
        assert step.step.low <= step.step.seconds <= step.step.high


def test_one_device_has_nothing_to_exchange() -> None:
    step = scaled(SMALL, 1)
    assert step.step.seconds == pytest.approx(0.04 + 0.08 + 0.001)
    assert (step.communication_s, step.overhead_s, step.exposed) == (0.0, 0.0, ())


def test_a_large_layer_that_is_complete_last_cannot_hide() -> None:
    """DistributedDataParallel: 400 MB complete early hide behind 60 ms of backward; complete last, they do not."""
    pytorch = Software(framework="pytorch", year=2020.0)
    early, late = (scaled(job, 8, software=pytorch) for job in (LARGE_LAST, LARGE_FIRST))
    assert early.exposed_communication_s < 0.001
    assert late.exposed_communication_s > 0.004
    assert late.exposed[0].module == "layer0"


def test_copies_to_one_home_are_slow_where_pairs_have_no_link() -> None:
    """Of 8 devices of a DGX-1, 3 have no link to a home: 3 x 400 MB at 12.4 GB/s in, as long out: 0.19 s."""
    four, eight = scaled(LARGE_LAST, 4, "kvstore"), scaled(LARGE_LAST, 8, "kvstore")
    assert four.exposed_communication_s < 0.03
    assert eight.exposed_communication_s > 0.19 - 0.08
    assert eight.limiter == "communication"


def test_accumulated_gradients_are_exchanged_once() -> None:
    once, four = scaled(LARGE_FIRST, 8), scaled(LARGE_FIRST, 8, options=ExchangeOptions(accumulation=4))
    assert four.communication_s == pytest.approx(once.communication_s)
    assert four.forward_s == pytest.approx(4 * once.forward_s)
    assert four.local_batch == 4 * once.local_batch


def test_a_starved_step_is_as_long_as_its_data_take() -> None:
    step = scaled(SMALL, 8, feed=rate_of_host(500.0, source="example"))
    assert step.step.seconds == pytest.approx(8 * 32 / 500.0)
    assert step.limiter == "feeding"


def test_half_the_bytes_on_the_wire_take_less() -> None:
    full, half = scaled(LARGE_FIRST, 2), scaled(LARGE_FIRST, 2, options=ExchangeOptions(wire_share=0.5))
    assert half.communication_s < 0.6 * full.communication_s


def test_gradients_are_complete_when_their_work_is_done() -> None:
    ready = ready_gradients(SMALL, estimate(SMALL))
    assert [gradient.ready_s for gradient in ready] == pytest.approx([0.02, 0.04, 0.06, 0.08])


def test_more_links_are_never_slower() -> None:
    steps = [
        scaled(LARGE_FIRST, 8, machine=find_machine(name), software=Software()).step.seconds
        for name in ("dgx1-p100", "dgx1-v100", "dgx-a100")
    ]
    assert steps == sorted(steps, reverse=True)


def test_more_devices_than_there_are_is_refused() -> None:
    with raises("exchange.wrong-device-count", match=r"\b8\b"):
        scaled(SMALL, 16)


@pytest.mark.parametrize("sync", ["server", "kvstore", "byteps"])
@pytest.mark.parametrize("spare", [0, 2])
def test_servers_keep_their_method_over_nodes(sync: Sync, spare: int) -> None:
    """More nodes train more samples a second, and never more than as many times as many as one node."""
    machine = find_machine("dgx1-v100:4")
    options = ExchangeOptions(servers=spare)
    rates = []
    for nodes in (1, 2, 4):
        step = scaled(LARGE_FIRST, 8 * nodes, sync, machine=machine, nodes=nodes, options=options)
        rates.append(8 * nodes / step.step.seconds)
    assert rates == sorted(rates)
    slack = 2.0 if sync == "server" else 1.01  # an update is shared by the servers of all nodes
    assert rates[1] <= 2 * slack * rates[0]
    assert rates[2] <= 4 * slack * rates[0]


def test_spare_machines_are_counted() -> None:
    machine = find_machine("dgx1-v100:4")
    setup = DataParallelSetup(
        workload=SMALL, estimate=estimate(SMALL), machine=machine, devices=16, nodes=2, sync="byteps"
    )
    assert setup.server_machines == 0
    with_spare = replace(setup, options=ExchangeOptions(servers=4))
    assert with_spare.server_machines == 2, "more spare machines than workers do not help"
    assert replace(with_spare, sync="server").server_machines == 4
    assert replace(with_spare, sync="nccl").server_machines == 0
    assert replace(with_spare, devices=8, nodes=1).server_machines == 0


def test_large_tensors_are_updated_by_the_devices() -> None:
    """MXNet's "local" does not update on the host where a tensor has more than 16 Mi elements."""
    assert scaled(LARGE_FIRST, 8, "server").update_s == pytest.approx(1e-3)
    setup = DataParallelSetup(
        workload=LARGE_FIRST,
        estimate=estimate(LARGE_FIRST),
        machine=find_machine("dgx1-v100"),
        devices=8,
        sync="server",
    )
    assert setup.devices_update
    assert not replace(setup, workload=SMALL, estimate=estimate(SMALL)).devices_update


def test_the_owner_of_the_largest_tensor_updates_the_most() -> None:
    """Of 412 MB one rank has 400; four layers alike go to four ranks."""
    large, alike = (scaled(job, 8).update_s for job in (LARGE_FIRST, SMALL))
    assert large == pytest.approx(1e-3 * 400 / 412)
    assert alike == pytest.approx(1e-3 / 4)


def test_an_estimate_of_another_workload_is_noticed() -> None:
    with pytest.raises(ValueError, match="zip"):
        scaled(SMALL, 2, estimate=estimate(replace(SMALL, gradients=SMALL.gradients[:2])))


def test_a_group_waits_for_its_longest_batch() -> None:
    """A spread of a tenth: 8 devices wait 14.236 % of FP and BP, which are as long as without it; one waits nothing."""
    alike = scaled(SMALL, 8)
    unequal = scaled(SMALL, 8, options=ExchangeOptions(length_spread=0.1))
    assert unequal.fp_bp_s == alike.fp_bp_s
    assert unequal.overhead_s - alike.overhead_s == pytest.approx(0.14236 * alike.fp_bp_s, rel=1e-5)
    assert unequal.step.seconds - alike.step.seconds == pytest.approx(unequal.overhead_s - alike.overhead_s)
    assert scaled(SMALL, 1, options=ExchangeOptions(length_spread=0.1)).step.seconds == scaled(SMALL, 1).step.seconds
