"""Workloads as they are asked for: from this process's memory, from disk, or traced.

torch is imported only where something must be traced.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

from trimaran.errors import InputError
from trimaran.graph.workload import Workload
from trimaran.graph.workloads import StepMemory
from trimaran.session.workloads.files import AffineStep, load, store
from trimaran.session.workloads.references import Request, make_request

if TYPE_CHECKING:
    from trimaran.session.workloads.tracing import WorkloadTracer


def workload(
    reference: str,
    *,
    batch: int,
    precision: str = "float32",
    options: Mapping[str, str] | None = None,
    optimizer: str | None = None,
) -> Workload:
    """What one step of a job asks of a device.

    Args:
        reference: of a job: a built-in name, a network, `file.py:factory`, a Hugging Face configuration
        batch: samples of the step
        precision: "float32"; "tf32", which has the same works; "bfloat16" and "float16" are autocast
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
    precision: str = "float32",
    options: Mapping[str, str] | None = None,
    optimizer: str | None = None,
) -> StepMemory:
    """What one step of a job needs on one device.

    Args:
        reference: as for `workload`
        batch: samples of the step. What is given holds for any batch, unless the job's kernels depend on the batch
        precision: as for `workload`
        options: as for `workload`
        optimizer: as for `workload`

    Raises:
        InputError: as for `workload`
    """
    return _at(_request(reference, batch, precision, options, optimizer), batch)[1]


def _request(
    reference: str, batch: int, precision: str, options: Mapping[str, str] | None, optimizer: str | None
) -> Request:
    if batch < 1:
        raise InputError(f"a step needs at least one sample, not {batch}", code="workload.no-sample", batch=batch)
    return make_request(reference, precision=precision, options=options, optimizer=optimizer)


@functools.lru_cache(maxsize=128)
def _at(request: Request, batch: int) -> tuple[Workload, StepMemory]:
    form = _form(request)
    return _tracer(request).direct(batch) if form is None else (form.workload.at(batch), form.memory)


@functools.lru_cache(maxsize=128)
def _form(request: Request) -> AffineStep | None:
    kept = load(request)
    if kept is not None:
        return kept
    made = _tracer(request).affine()
    if made is not None:
        store(request, made)
    return made


@functools.lru_cache(maxsize=1)
def _tracer(request: Request) -> "WorkloadTracer":
    from trimaran.session.workloads.tracing import WorkloadTracer

    return WorkloadTracer(request)
