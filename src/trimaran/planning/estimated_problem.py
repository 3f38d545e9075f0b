"""A search problem from a job and a machine of the catalog: its graph, estimated costs, devices in their places.

The graph of a job without its weights: traced on meta tensors, then read from disk.

What a machine that is not here would run is not compared with the model here: the graph is that of the same export as
elsewhere, with the same digest. Graphs are kept beside workloads, under the same keys, in one file each.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trimaran.base.errors import InputError
from trimaran.base.files import put_in_place
from trimaran.base.job import Job
from trimaran.graph.kernels.workload import Workload
from trimaran.graph.types import Graph
from trimaran.jobs.resolve import resolve
from trimaran.machine.find import find_machine
from trimaran.measure.cache import cache_directory
from trimaran.planner.problem import Problem
from trimaran.planner.target_search import accumulations, device_counts
from trimaran.planning.best_strategy import microbatch_sizes
from trimaran.planning.requests import PlanRequest
from trimaran.planning.workloads import Request, make_request, workload
from trimaran.pricing.kernels.cost_table import estimated_table
from trimaran.pricing.kernels.software import Software
from trimaran.program.strategy import Execution

if TYPE_CHECKING:
    from torch import nn


_LOG = logging.getLogger(__name__)
_DECODER = msgspec.msgpack.Decoder(Graph)
_ENCODER = msgspec.msgpack.Encoder()


def graph_of(request: Request) -> Graph:
    """The graph of a job.

    Args:
        request: the job, as for its workload; its optimizer and precision do not matter

    Raises:
        InputError: the model, the data or the loss of the job cannot be used
    """
    return _graph(dataclasses.replace(request, optimizer="", precision="float32"))


@functools.lru_cache(maxsize=16)
def _graph(request: Request) -> Graph:
    path = cache_directory() / "graphs" / f"{request.key}.msgpack"
    kept = _load(path) if request.lasting else None
    if kept is not None:
        return kept
    made = _capture(request.reference)
    if request.lasting:
        _store(path, made)
        return made
    from trimaran.graph.capture.capture import looked_at

    # Only a user's own code may do what no graph shows.
    return looked_at(resolve(request.reference), made)


def _capture(reference: str) -> Graph:
    """Trace the model where its weights take no memory; where its own code cannot, where they do."""
    import torch

    from trimaran.graph.batches import name_tensors
    from trimaran.graph.capture.capture import capture
    from trimaran.graph.capture.describe import describe_flow
    from trimaran.graph.capture.export import NotExportableError
    from trimaran.graph.capture.flow import make_flow
    from trimaran.graph.user_model import sample_batch

    job = resolve(reference)
    try:
        model = _weightless(job)
        batch = sample_batch(job, next(model.parameters()).device)
        with torch.enable_grad():
            return describe_flow(job, model, make_flow(job, model, batch), batch, name_tensors(batch))
    except (NotExportableError, InputError, NotImplementedError, RuntimeError, StopIteration) as error:
        _LOG.info("%s: not captured without weights (%s), making them", reference, error)
    return capture(job).graph


def _weightless(job: Job) -> "nn.Module":
    """The model with weights that nobody writes to.

    Without a device a recurrent layer is looked at step by step, which takes minutes. So a network that has some gets
    memory of the host, which takes none until it is written to.
    """
    import torch
    from torch import nn

    from trimaran.graph.user_model import make_model

    with torch.device("meta"):
        model = make_model(job)
    if any(isinstance(module, nn.RNNBase) for module in model.modules()):
        model = model.to_empty(device="cpu")
        for buffer in model.buffers():
            buffer.zero_()
    return model


def _load(path: Path) -> Graph | None:
    try:
        return _DECODER.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        _LOG.warning("cannot read %s (%s), capturing again", path, error.strerror)
    except msgspec.MsgspecError:
        with suppress(OSError):
            path.replace(path.with_suffix(".damaged"))
        _LOG.warning("%s is damaged: set aside, capturing again", path)
    return None


def _store(path: Path, graph: Graph) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        put_in_place(path, _ENCODER.encode(graph))
    except OSError as error:
        _LOG.warning("cannot write %s (%s): it will be captured again", path, error.strerror)


def machine_problem(reference: str, request: PlanRequest) -> Problem:
    """What is searched.

    Args:
        reference: of the job
        request: what is asked

    Raises:
        InputError: no such job or machine, or more devices than there are
    """
    batch = request.batch or resolve(reference).global_batch_size
    return machine_problems(reference, request, (batch,))[batch]


def machine_problems(reference: str, request: PlanRequest, batches: Collection[int]) -> Mapping[int, Problem]:
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
    cluster = machine.allocate(devices, memory_bytes=request.memory_bytes)
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


def executions_of(request: PlanRequest) -> tuple[Execution, ...]:
    """How segments may run."""
    return ("eager",) if request.execution in ("any", "eager") else ("compiled",)


def softwares_of(software: Software, executions: tuple[Execution, ...]) -> Mapping[str, Software]:
    """The software of each execution; that of eager is always there."""
    found = {"eager": dataclasses.replace(software, compiled=False)}
    if "compiled" in executions:
        found["compiled"] = dataclasses.replace(software, compiled=True)
    return found


def _workloads(reference: str, request: PlanRequest) -> Callable[[int], Workload]:
    @functools.cache
    def at(batch: int) -> Workload:
        return workload(reference, batch=batch, precision=request.precision, options=request.options or None)

    return at
