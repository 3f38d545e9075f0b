"""Workloads of small models."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trimaran.graph.kernels.convert import workload_of
from trimaran.graph.kernels.workload import Work, WorkKind, Workload
from trimaran.graph.trace.meta import trace_on_meta
from trimaran.graph.trace.types import StepTrace


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device="meta")


def traced(make: Callable[[], nn.Module], batch: Any, optimizer: Any = None, autocast: Any = None) -> StepTrace:
    return trace_on_meta(
        make,
        lambda: batch,
        lambda model, given: model(given).sum(),
        make_optimizer=optimizer,
        autocast=autocast,
    )


def worked(make: Callable[[], nn.Module], batch: Any, optimizer: Any = None, autocast: Any = None) -> Workload:
    trace = traced(make, batch, optimizer, autocast)
    return workload_of(trace, name="net", batch=len(batch), precision="fp32", input_bytes=0)


def of_kind(work: Workload, kind: WorkKind) -> list[Work]:
    return [one for one in work.works if one.kind is kind]
