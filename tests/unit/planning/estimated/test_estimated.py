"""The operations of a captured network take together what its step is estimated at."""

import dataclasses
import functools

import pytest
from tests import builders
from tests.raising import raises
from tests.representative import each

from trimaran.machine.catalog import find_device
from trimaran.planner.problem import assess, lack_of_memory, room_bytes
from trimaran.planning.data_parallel_job import DataParallelJob
from trimaran.planning.estimated import StepTracer
from trimaran.planning.estimated_problem import machine_problem
from trimaran.planning.tracing import workload_tracing, workloads
from trimaran.planning.tracing.request import make_request
from trimaran.planning.tracing.workloads import graph_of, workload
from trimaran.pricing.compute import operation_seconds
from trimaran.pricing.kernels.cost_table import estimated_table
from trimaran.pricing.kernels.estimate import estimate_step
from trimaran.pricing.kernels.software import Software

NETWORKS = ("lenet", "gnmt:8:sequence=4", "gpt2:124m:sequence=16", "big-lstm:sequence=2")


@pytest.mark.parametrize("reference", each(NETWORKS, "lenet", "gnmt:8:sequence=4", "big-lstm:sequence=2"))
def test_operations_sum_up_to_the_step(reference: str) -> None:
    """Forward and backward of all operations = that of the step, at several batches; the update too, within 0.1 %."""
    graph = graph_of(make_request(reference, precision="fp32", options=None, optimizer=None))
    works = functools.partial(workload, reference)
    device = find_device("v100")
    table = estimated_table(
        graph, lambda batch: works(batch=batch), device=device, batches=(4, 8), softwares={"eager": Software()}
    )
    for batch in (4, 8):
        step = works(batch=batch)
        estimate = estimate_step(step, device, Software())
        found = operation_seconds(graph, table, batch=batch, execution="eager")
        assert sum(found.values()) == pytest.approx(estimate.forward.seconds + estimate.backward.seconds, rel=1e-9)
    update = table.steps[graph.digest].update.at(tensors=len(step.gradients), nbytes=step.gradient_bytes)
    assert update.seconds == pytest.approx(estimate.update.seconds, rel=1e-3)
    assert update.seconds < update.high


@pytest.mark.parametrize(("reference", "precision"), [("lenet", "fp32"), ("gnmt:8:sequence=4", "bf16")])
def test_a_memory_plan_starts_from_the_step_that_the_search_priced(reference: str, precision: str) -> None:
    """A traced microbatch takes what its estimate says, in the precision and with the software that were asked for."""
    software = Software(framework="mxnet", year=2019.0)
    request = dataclasses.replace(
        builders.cluster_request(cluster="dgx-a100", devices=1, batch=8, precision=precision, execution="compiled"),
        software=software,
    )
    problem = machine_problem(reference, request)
    found = StepTracer(reference, problem, request).traces({4})[4]
    step = workload(reference, batch=4, precision=precision)
    compiled = dataclasses.replace(software, compiled=True)
    assert problem.cluster.machine is not None
    expected = estimate_step(step, problem.cluster.machine.node.device, compiled)
    assert found.costs.compute_s == pytest.approx(expected.seconds, rel=1e-12)


def test_graphs_of_recurrent_networks_can_be_cut_between_layers() -> None:
    graph = graph_of(make_request("big-lstm:sequence=2", precision="fp32", options=None, optimizer=None))
    assert {"layers.0", "layers.1"} <= set(graph.split_points)
    assert sum(parameter.nbytes for parameter in graph.parameters) // 4 == 1_776_948_095


def test_a_graph_is_read_from_disk_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    request = make_request("lenet", precision="fp32", options=None, optimizer=None)
    workloads._graph.cache_clear()
    first = graph_of(request)
    workloads._graph.cache_clear()
    monkeypatch.setattr(workload_tracing, "capture_without_weights", None)
    assert graph_of(request) == first


def test_a_table_needs_batches() -> None:
    graph = graph_of(make_request("lenet", precision="fp32", options=None, optimizer=None))
    with raises("estimate.no-batch"):
        estimated_table(
            graph,
            lambda batch: workload("lenet", batch=batch),
            device=find_device("v100"),
            batches=(),
            softwares={"eager": Software()},
        )


def test_a_plan_has_the_room_of_a_replica() -> None:
    """The card less its context, and on several devices less NCCL's buffers; they fit besides a limit far below it."""
    problem = machine_problem("lenet", builders.cluster_request(cluster="dgx1-v100", devices=2, batch=8))
    machine = problem.cluster.machine
    assert machine is not None
    memory, job = machine.node.device.memory, DataParallelJob(reference="lenet", machine=machine)
    assert room_bytes(problem, 1) == (memory.reported_bytes - memory.context_bytes,)
    replica = job.memory_at(4, 2)
    besides = replica.needed_bytes - replica.peak_bytes
    assert room_bytes(problem, 2) == (memory.reported_bytes - besides,) * 2
    limit = 2**30
    limited = dataclasses.replace(problem, cluster=dataclasses.replace(problem.cluster, memory_bytes=(limit, limit)))
    assert room_bytes(limited, 2) == (limit, limit)
    # Of strategies on many devices one rank stands for the others, and all have a communicator.
    full = room_bytes(problem, 1)[0]
    assert not lack_of_memory((full,), problem)
    assert "besides NCCL's buffers" in lack_of_memory((full,), problem, devices=2)


def test_replicas_of_a_pipeline_copy_gradients_as_their_software_does() -> None:
    """Under PyTorch's DDP each stage holds its gradients once more than in Trimaran's runtime: 120,382 of 4 bytes."""
    request = builders.cluster_request(cluster="dgx1-v100", devices=4, batch=16)
    strategy = builders.strategy(dp=2, pp=2, microbatches=2)
    peaks = [
        assess(strategy, machine_problem("lenet", dataclasses.replace(request, software=software))).peak_bytes
        for software in (None, Software())
    ]
    apart = {more - once for once, more in zip(*peaks, strict=True)}
    assert sum(apart) == 4 * 120_382
