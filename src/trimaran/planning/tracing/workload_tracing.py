"""Traces of a job: its graph; its workload at any batch, from steps at two small batches.

An optimizer may be given by its name, in place of the job's. Learning rates do not matter: nothing is learned.
"""

import dataclasses
import gc
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn, optim

from trimaran.base.errors import ExecutionError, InputError, did_you_mean
from trimaran.base.job import Job
from trimaran.graph.capture.capture import capture, looked_at
from trimaran.graph.capture.describe import describe_flow
from trimaran.graph.capture.export import NotExportableError
from trimaran.graph.capture.flow import make_flow
from trimaran.graph.kernels.convert import TracedUpdates, workload_of
from trimaran.graph.kernels.workload import Workload, affine
from trimaran.graph.optimizers import Trained
from trimaran.graph.trace.live_bytes import StepMemory, step_memory
from trimaran.graph.trace.types import StepTrace
from trimaran.graph.types import Graph
from trimaran.jobs.resolve import resolve
from trimaran.planning.tracing.meta_trace import JobTracer
from trimaran.planning.tracing.request import AffineStep, TraceRequest
from trimaran.user_code.batches import name_tensors
from trimaran.user_code.model import make_model, sample_batch

_LOG = logging.getLogger(__name__)


def make_optimizer(name: str) -> Callable[[Iterable[nn.Parameter]], optim.Optimizer]:
    """Makes an optimizer as networks are usually trained with it.

    Args:
        name: in small letters. "sgd" is with momentum and weight decay, as image networks are trained; "plain-sgd"
            without. "lamb" is counted as AdamW, whose state is the same, without the norms of each layer

    Raises:
        InputError: no such optimizer
    """
    made: dict[str, Callable[[Iterable[nn.Parameter]], optim.Optimizer]] = {
        "sgd": lambda p: optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=1e-4),
        "momentum": lambda p: optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=1e-4),
        "plain-sgd": lambda p: optim.SGD(p, lr=0.01),
        "adam": lambda p: optim.Adam(p, lr=1e-3),
        "adamw": lambda p: optim.AdamW(p, lr=1e-3),
        "lamb": lambda p: optim.AdamW(p, lr=1e-3),
        "adagrad": lambda p: optim.Adagrad(p, lr=0.01),
        "rmsprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.9),
        "adadelta": lambda p: optim.Adadelta(p),
        "adafactor": lambda p: optim.Adafactor(p),
    }
    if name not in made:
        raise InputError(
            f'unknown optimizer "{name}"{did_you_mean(name, made)}', code="optimizer.unknown", optimizer=name
        )
    return made[name]


def job_of(request: TraceRequest) -> Job:
    """The job that is asked for, with the optimizer that is asked for.

    Args:
        request: the job, its options and its optimizer

    Raises:
        InputError: there is no such job or optimizer, or the job cannot be made
    """
    job = resolve(request.reference)
    return dataclasses.replace(job, optimizer=make_optimizer(request.optimizer)) if request.optimizer else job


SMALL = 2
"""Traced batches are this and one more: batch norm needs two samples where it sees one position of each."""


class WorkloadTracer:
    """Workloads of one job, traced.

    Args:
        request: of the user

    Raises:
        InputError: there is no such job, or it cannot be made
    """

    def __init__(self, request: TraceRequest) -> None:
        self._job = job = job_of(request)
        self._precision = request.precision
        self._every_update = True
        self._tracer = JobTracer(dataclasses.replace(job, optimizer=self._make_optimizer), precision=request.precision)

    def direct(self, batch: int) -> tuple[Workload, StepMemory]:
        """The workload and the memory at a batch, from a trace at that batch.

        Args:
            batch: samples
        """
        self._every_update = True
        with _without_collection():
            trace = self._tracer.trace(batch)
        memory = step_memory(trace, trace, batch=batch)
        if memory is None:  # a trace is like itself
            raise ExecutionError(f"the trace of {self._job.name} is not like itself")
        return self._workload(trace, batch), memory

    def affine(self) -> AffineStep | None:
        """Workload and memory as functions of the batch; None: steps of different batches have different kernels.

        For parameters of one shape only the update of the first is traced, and used for the others: half of what
        is traced would be updates otherwise. Where that does not do, all are traced.
        """
        self._every_update = False
        with _without_collection():
            low, high = self._tracer.trace_twice(SMALL)
            like = self._like(high)
            if like is None:
                self._every_update = True
                low, high = self._tracer.trace_twice(SMALL)
        form = affine(self._workload(low, SMALL, like), self._workload(high, SMALL + 1, like))
        untraced = TracedUpdates(high).untraced_bytes(like or {})
        memory = step_memory(low, high, batch=SMALL + 1, untraced_bytes=untraced)
        return AffineStep(workload=form, memory=memory) if form is not None and memory is not None else None

    def _like(self, trace: StepTrace) -> dict[str, str] | None:
        """By name of each trained parameter, the one whose update was traced; None: that cannot be said."""
        first: dict[object, str] = {}
        like = {
            name: first.setdefault(_form(parameter), name) for name, parameter in self._tracer.model.named_parameters()
        }
        trained = {trace.names.get(number, "") for number in trace.gradients}
        known = all(like.get(name) in trained for name in trained)
        return like if known and TracedUpdates(trace).separate else None

    def _make_optimizer(self, parameters: Trained) -> optim.Optimizer:
        if not self._every_update:
            first: dict[object, tuple[str, nn.Parameter]] = {}
            for name, parameter in parameters.named_parameters():
                first.setdefault(_form(parameter), (name, parameter))
            parameters = Trained(first.values())
        return self._job.optimizer(parameters)

    def _workload(self, trace: StepTrace, batch: int, like: dict[str, str] | None = None) -> Workload:
        tensors = name_tensors(self._tracer.batch(batch)).values()
        return workload_of(
            trace,
            name=self._job.name,
            batch=batch,
            precision=self._precision,
            input_bytes=sum(tensor.numel() * tensor.itemsize for tensor in tensors),
            like=like,
        )


def capture_without_weights(request: TraceRequest) -> Graph:
    """The graph of a job. Its weights take no memory; where the job's own code needs them, they are made.

    Args:
        request: the job

    Raises:
        InputError: the model, the data or the loss of the job cannot be used
    """
    job = resolve(request.reference)
    try:
        model = _weightless(job)
        batch = sample_batch(job, next(model.parameters()).device)
        with torch.enable_grad():
            graph = describe_flow(job, model, make_flow(job, model, batch), batch, name_tensors(batch))
    except (NotExportableError, InputError, NotImplementedError, RuntimeError, StopIteration) as error:
        _LOG.info("%s: not captured without weights (%s), making them", request.reference, error)
        graph = capture(job).graph
    # Only user code may have effects that no graph shows.
    return graph if request.lasting else looked_at(job, graph)


def _weightless(job: Job) -> nn.Module:
    """The model with weights that are never written.

    Without a device a recurrent layer is looked at step by step, which takes minutes. So a network that has some gets
    memory of the host, which takes none until it is written to.
    """
    with torch.device("meta"):
        model = make_model(job)
    if any(isinstance(module, nn.RNNBase) for module in model.modules()):
        model = model.to_empty(device="cpu")
        for buffer in model.buffers():
            buffer.zero_()
    return model


def _form(parameter: nn.Parameter) -> object:
    """Parameters of one form are updated alike."""
    return tuple(parameter.shape), parameter.dtype, parameter.requires_grad


@contextmanager
def _without_collection() -> Iterator[None]:
    """A trace makes many objects and no garbage in cycles: looking for some takes a seventh of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
