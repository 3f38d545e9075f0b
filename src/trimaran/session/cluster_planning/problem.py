"""A search problem from a job and a machine of the catalog: its graph, estimated costs, devices in their places."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping

from trimaran.cluster.find import find_machine
from trimaran.cluster.layout import machine_cluster
from trimaran.costs.estimated import estimated_table
from trimaran.costs.software import Software
from trimaran.graph.workload import Workload
from trimaran.planner.accuracy.batches import accumulations, device_counts
from trimaran.planner.problem import Problem
from trimaran.program.types import Execution
from trimaran.session.choosing import microbatch_sizes
from trimaran.session.cluster_planning.capturing import graph_of
from trimaran.session.cluster_planning.request import ClusterRequest
from trimaran.session.jobs import resolve
from trimaran.session.workloads import workload
from trimaran.session.workloads.references import make_request


def machine_problem(reference: str, request: ClusterRequest) -> Problem:
    """What is searched.

    Args:
        reference: of the job
        request: what is asked

    Raises:
        InputError: no such job or machine, or more devices than there are
    """
    batch = request.batch or resolve(reference).global_batch_size
    return machine_problems(reference, request, (batch,))[batch]


def machine_problems(reference: str, request: ClusterRequest, batches: Collection[int]) -> Mapping[int, Problem]:
    """What is searched at each of several batches: one graph, one table of costs.

    Args:
        reference: of the job
        request: what is asked
        batches: samples of one update over all devices

    Raises:
        InputError: no such job or machine, or more devices than there are
    """
    machine = find_machine(request.cluster)
    devices = request.devices or machine.devices
    cluster = machine_cluster(machine, devices, memory_bytes=request.memory_bytes)
    job = resolve(reference)
    asked = make_request(reference, precision=request.precision, options=request.options or None, optimizer=None)
    graph = graph_of(asked)
    works = _workloads(reference, request)
    executions = executions_of(request)
    sizes = {size for batch in batches for size in (*microbatch_sizes(graph, devices=devices, batch=batch), batch)}
    if len(batches) > 1:
        # Gradients of many microbatches are added up where a batch is larger than its devices hold.
        sizes |= {1 << power for power in range(max(batches).bit_length())}
        shares = {batch // count for batch in batches for count in device_counts(devices) if batch % count == 0}
        sizes |= {share // number for share in shares for number in accumulations(share)}
    table = estimated_table(
        graph,
        works,
        device=machine.node.device,
        batches=sizes,
        softwares=softwares_of(request.software, executions),
    )
    return {
        batch: Problem(
            graph=graph,
            table=table,
            cluster=cluster,
            batch=batch,
            devices=devices,
            clip=job.clip_norm is not None,
            executions=executions,
            pins=request.pins,
            time_limit_s=request.time_limit_s,
            gap=request.gap,
        )
        for batch in batches
    }


def executions_of(request: ClusterRequest) -> tuple[Execution, ...]:
    """How segments may run."""
    return ("eager",) if request.execution in ("any", "eager") else ("compiled",)


def softwares_of(software: Software, executions: tuple[Execution, ...]) -> Mapping[str, Software]:
    """The software of each execution; that of eager is always there."""
    found = {"eager": dataclasses.replace(software, compiled=False)}
    if "compiled" in executions:
        found["compiled"] = dataclasses.replace(software, compiled=True)
    return found


def _workloads(reference: str, request: ClusterRequest) -> Callable[[int], Workload]:
    @functools.cache
    def at(batch: int) -> Workload:
        return workload(reference, batch=batch, precision=request.precision, options=request.options or None)

    return at
