"""A search problem from a job and a machine of the catalog: its graph, estimated costs, devices in their places."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping

from trimaran.base.precision import Precision
from trimaran.graph.kernels.attribution import with_memory
from trimaran.graph.kernels.workload import Workload
from trimaran.graph.trace.live_bytes import StepMemory
from trimaran.graph.types import Graph
from trimaran.jobs.resolve import JobSource, resolve
from trimaran.machine.find import find_machine
from trimaran.planner.input_pipeline import with_pipeline
from trimaran.planner.pins import Pins, pins_of_strategy
from trimaran.planner.problem import Problem
from trimaran.planner.space import accumulations
from trimaran.planner.target_search import device_counts
from trimaran.planning.best_strategy import priced_sizes
from trimaran.planning.input_pipeline import SAMPLED_BATCH, pipeline_of, sample_bytes
from trimaran.planning.precision import choose_precision
from trimaran.planning.requests import PlanRequest, check_traced
from trimaran.planning.tracing.request import TraceRequest, make_request
from trimaran.planning.tracing.workloads import graph_of, memory_of_step, workload
from trimaran.pricing.kernels.cost_table import estimated_table
from trimaran.pricing.kernels.software import RUNTIME, Software
from trimaran.program.strategy import Execution


def machine_problem(reference: str, request: PlanRequest, sizes: Collection[int] = ()) -> Problem:
    """The problem of a search.

    Args:
        reference: of the job
        request: of the user
        sizes: as for `machine_problems`

    Raises:
        InputError: no such job or machine, or more devices than there are
    """
    batch = request.batch or resolve(reference).global_batch_size
    return machine_problems(reference, request, (batch,), sizes)[batch]


def machine_problems(
    reference: str, request: PlanRequest, batches: Collection[int], sizes: Collection[int] = ()
) -> Mapping[int, Problem]:
    """The problem at each of several batches: one graph, one table of costs.

    Args:
        reference: of the job
        request: of the user
        batches: samples of one update over all devices
        sizes: microbatches of the strategies that will be asked about [samples]; empty: of all that a search may try

    Raises:
        InputError: no such job or machine, or more devices than there are
    """
    machine = find_machine(request.cluster)
    devices = request.devices or machine.devices
    if request.memory_bytes is not None:
        machine.node.device.checked_bytes(request.memory_bytes)
    cluster = machine.allocate(devices, memory_bytes=request.memory_bytes)
    job = resolve(reference)
    precision = choose_precision(reference, request.precision, machine.node.device).name
    asked = make_request(reference, precision=precision, options=request.options or None, optimizer=None)
    batch = max(batches)
    memories = _memories(reference, precision, request.options)
    graph = _graph_there(asked, memories(batch))
    works = _workloads(reference, precision, request.options)
    executions = executions_of(request)
    pipeline = pipeline_of(
        request.loading,
        JobSource(reference=reference),
        machine,
        workers=request.pins.workers,
        sample_bytes=lambda: sample_bytes(works(SAMPLED_BATCH)),
        of_strategy=pins_of_strategy(request.pins.strategy or "").workers is not None,
    )
    table = estimated_table(
        graph,
        works,
        device=machine.node.device,
        batches=sizes or _all_sizes(graph, devices, batches, request.pins),
        softwares=softwares_of(check_traced(request.software or RUNTIME), executions),
        memory_at=memories,
    )
    problems = {
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
            by_devices=request.asks_for_outlook,
        )
        for batch in batches
    }
    if pipeline is None:
        return problems
    return {batch: with_pipeline(problem, pipeline) for batch, problem in problems.items()}


@functools.lru_cache(maxsize=16)
def _graph_there(asked: TraceRequest, memory: StepMemory) -> Graph:
    """The graph of a job with what its step keeps there; one for all problems, as much is known of each graph once."""
    return with_memory(graph_of(asked), memory)


def _all_sizes(graph: Graph, devices: int, batches: Collection[int], pins: Pins) -> set[int]:
    """Sizes of the microbatches of all strategies [samples]."""
    sizes = {
        size for batch in batches for size in (*priced_sizes(graph, devices=devices, batch=batch, pins=pins), batch)
    }
    # Gradients of many microbatches are added up where a batch is larger than its devices hold.
    shares = {batch // count for batch in batches for count in device_counts(devices) if batch % count == 0}
    sizes |= {share // number for share in shares for number in accumulations(share)}
    if len(batches) > 1:
        sizes |= {1 << power for power in range(max(batches).bit_length())}
    return sizes


def executions_of(request: PlanRequest) -> tuple[Execution, ...]:
    """How segments may run."""
    return ("eager",) if request.execution in ("any", "eager") else ("compiled",)


def softwares_of(software: Software, executions: tuple[Execution, ...]) -> Mapping[str, Software]:
    """The software of each execution; that of eager is always there."""
    found = {"eager": dataclasses.replace(software, compiled=False)}
    if "compiled" in executions:
        found["compiled"] = dataclasses.replace(software, compiled=True)
    return found


def _workloads(reference: str, precision: Precision, options: Mapping[str, str]) -> Callable[[int], Workload]:
    @functools.cache
    def at(batch: int) -> Workload:
        return workload(reference, batch=batch, precision=precision, options=options or None)

    return at


def _memories(reference: str, precision: Precision, options: Mapping[str, str]) -> Callable[[int], StepMemory]:
    def at(batch: int) -> StepMemory:
        return memory_of_step(reference, batch=batch, precision=precision, options=options or None)

    return at
