"""Workloads and graphs of jobs: from the memory of this process, from disk, or traced.

torch is imported only where something must be traced.

A file is put in its place in one step, so a reader never sees half of one. A damaged file is renamed to
`<name>.damaged` and logged, and the job is traced again. Where the directory cannot be written, nothing is kept.
"""

import dataclasses
import functools
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from trimaran.base.decoding import decode_typed
from trimaran.base.errors import InputError
from trimaran.base.files import put_in_place
from trimaran.base.precision import Precision
from trimaran.graph.kernels.workload import Workload
from trimaran.graph.trace.live_bytes import StepMemory
from trimaran.graph.types import Graph
from trimaran.measure.cache import cache_directory, read_kept
from trimaran.planning.tracing.request import AffineStep, TraceRequest, make_request

if TYPE_CHECKING:
    from trimaran.planning.tracing.workload_tracing import WorkloadTracer


_LOG = logging.getLogger(__name__)


Made = TypeVar("Made")


class DiskCache(Generic[Made]):
    """Results for requests on disk, one file each.

    Args:
        folder: in the directory of measured costs
        kind: type of the kept results
        again: the work without the file, such as "tracing"
    """

    def __init__(self, folder: str, kind: type[Made], again: str) -> None:
        self._folder, self._kind, self._again = folder, kind, again

    def path(self, request: TraceRequest) -> Path:
        """The file of a request."""
        return cache_directory() / self._folder / f"{request.key}.msgpack"

    def load(self, request: TraceRequest) -> Made | None:
        """The kept result; None where there is no sound file."""
        if not request.lasting:
            return None
        path = self.path(request)
        decode = partial(decode_typed, wanted=self._kind, source=str(path), packed=True)
        return read_kept(path, decode, then=f"{self._again} again")

    def store(self, request: TraceRequest, made: Made) -> None:
        """Keep it."""
        if not request.lasting:
            return
        path = self.path(request)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            put_in_place(path, msgspec.msgpack.encode(made))
        except OSError as error:
            _LOG.warning("cannot write %s (%s): next time needs %s again", path, error.strerror, self._again)


STEPS = DiskCache("workloads", AffineStep, "tracing")
GRAPHS = DiskCache("graphs", Graph, "capturing")


def graph_of(request: TraceRequest) -> Graph:
    """The graph of a job, captured without its weights: that of the same export as elsewhere, with the same digest.

    Args:
        request: the job, as for its workload; its optimizer and precision do not matter

    Raises:
        InputError: the model, the data or the loss of the job cannot be used
    """
    return _graph(dataclasses.replace(request, optimizer="", precision="fp32"))


@functools.lru_cache(maxsize=16)
def _graph(request: TraceRequest) -> Graph:
    kept = GRAPHS.load(request)
    if kept is not None:
        return kept
    from trimaran.planning.tracing.workload_tracing import capture_without_weights

    made = capture_without_weights(request)
    GRAPHS.store(request, made)
    return made


def workload(
    reference: str,
    *,
    batch: int,
    precision: Precision = "fp32",
    options: Mapping[str, str] | None = None,
    optimizer: str | None = None,
) -> Workload:
    """Workload of one step of a job.

    Args:
        reference: of a job: a built-in name, a network, `file.py:factory`, a Hugging Face configuration
        batch: samples of the step
        precision: "fp32"; "tf32" and "ieee", which have the same works; "bf16" and "fp16" are autocast
        options: of the job, such as {"sequence": "512"}; "optimizer" is as the argument
        optimizer: in place of the job's, such as "adam"

    Raises:
        InputError: no such job, option, optimizer or precision; a batch below 1; the job cannot be traced
    """
    request = _request(reference, batch, precision, options, optimizer)
    return dataclasses.replace(_at(request, batch)[0], precision=precision)


def memory_of_step(
    reference: str,
    *,
    batch: int,
    precision: Precision = "fp32",
    options: Mapping[str, str] | None = None,
) -> StepMemory:
    """Memory of one step of a job on one device.

    Args:
        reference: as for `workload`
        batch: samples of the step. The result holds for any batch, unless the job's kernels depend on the batch
        precision: as for `workload`
        options: as for `workload`

    Raises:
        InputError: as for `workload`
    """
    return _at(_request(reference, batch, precision, options, None), batch)[1]


def _request(
    reference: str, batch: int, precision: str, options: Mapping[str, str] | None, optimizer: str | None
) -> TraceRequest:
    if batch < 1:
        raise InputError(f"a step needs at least one sample, not {batch}", code="workload.no-sample", batch=batch)
    return make_request(reference, precision=precision, options=options, optimizer=optimizer)


@functools.lru_cache(maxsize=128)
def _at(request: TraceRequest, batch: int) -> tuple[Workload, StepMemory]:
    form = _form(request)
    return _tracer(request).direct(batch) if form is None else (form.workload.at(batch), form.memory)


@functools.lru_cache(maxsize=128)
def _form(request: TraceRequest) -> AffineStep | None:
    kept = STEPS.load(request)
    if kept is not None:
        return kept
    made = _tracer(request).affine()
    if made is not None:
        STEPS.store(request, made)
    return made


@functools.lru_cache(maxsize=1)
def _tracer(request: TraceRequest) -> "WorkloadTracer":
    from trimaran.planning.tracing.workload_tracing import WorkloadTracer

    return WorkloadTracer(request)
