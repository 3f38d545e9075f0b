"""Memory of a built network on one device, from two traces of it.

Also Caffe's "memory required for data": the outputs of all layers of a network, as its log sums them. Every output
counts, also of a layer that overwrites its input. A tensor that several layers read counts once more for each of them,
because Caffe splits it. Images count where a layer makes them. Gradients do not count.

Source:
    BVLC/caffe, src/caffe/net.cpp (the sum that it logs), src/caffe/util/insert_splits.cpp.
"""

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode

from trimaran.base.errors import InputError
from trimaran.jobs.published_jobs import network_job
from trimaran.jobs.resolve import resolve
from trimaran.networks.names import canonical_network
from trimaran.planning.tracing.meta_trace import JobTracer
from trimaran.program.memory import KEEP_ALL
from trimaran.simulator.memory import live_bytes
from trimaran_studies.validation.measurement import Row, cells_read

_LAYERS = (
    "conv1d", "conv2d", "conv3d", "conv_transpose2d", "linear", "relu", "relu_", "max_pool2d", "_max_pool2d",
    "avg_pool2d", "adaptive_avg_pool2d", "batch_norm", "cat", "concat",
    "lstm", "sigmoid", "tanh",
)  # fmt: skip
"""Functions that are layers of Caffe, except pooling that does not change its input, and dropout."""

_ELEMENT = 4
"""Bytes of an element: 32-bit floats."""


class _Outputs(TorchFunctionMode):
    """Adds up outputs of layers, and splits."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: int = 0
        self._readers: Counter[int] = Counter()
        self._held: list[torch.Tensor] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name not in _LAYERS or not isinstance(output, torch.Tensor):
            return output
        read = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
        if name == "adaptive_avg_pool2d" and output.shape == read[0].shape:
            return output
        self.elements += output.numel()
        self._held.append(output)
        if output is read[0]:
            return output
        for tensor in read:
            self._readers[id(tensor)] += 1
            self._held.append(tensor)
            if self._readers[id(tensor)] > 1:
                self.elements += tensor.numel() * (2 if self._readers[id(tensor)] == 2 else 1)
        return output


@functools.lru_cache(maxsize=256)
def blob_bytes(reference: str, *, batch: int, images: bool) -> int:
    """Bytes of all outputs of a network's layers, as Caffe sums them.

    Args:
        reference: of a network, such as "alexnet"
        batch: images
        images: whether a layer makes them, so that they count

    Returns:
        [bytes]
    """
    job = network_job(reference)
    sample = job.dataset()[0][0] if callable(job.dataset) else job.dataset[0][0]
    with torch.device("meta"):
        network = job.model().train()
        data = torch.empty((1, *sample.shape), device="meta")
        with _Outputs() as outputs, torch.no_grad():
            network(data)
    elements: int = outputs.elements + (int(data.numel()) if images else 0)
    return elements * batch * _ELEMENT


def blobs_of(row: Row) -> int:
    """The memory that Caffe would log as required for data [bytes]."""
    network, batch = _asked(row)
    # Its OpenCL port gets images without a layer that makes them.
    images = "greentea" not in row.fields.get("framework", "").lower()
    # Benchmarks of 2015 ran GoogLeNet without batch norm.
    reference = "googlenet-2014" if network == "googlenet" else network
    return blob_bytes(reference, batch=batch, images=images)


_SIZES = (8, 16)
"""Batches that are traced; at any other one each moment of the step follows from these [samples]."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Live bytes of a step at any batch. Storages either count samples or do not, so each moment grows evenly.

    Attributes:
        base: of each moment, without any sample [bytes]
        each: of each moment and sample [bytes]
        tracer: traces each batch by itself, where moments differ between batches; None: they do not
    """

    base: NDArray[np.float64]
    each: NDArray[np.float64]
    tracer: JobTracer | None = None

    def peak(self, batch: int) -> int:
        """The largest live bytes at a batch [bytes]."""
        if self.tracer is not None:
            return live_bytes(self.tracer.trace(batch), KEEP_ALL).peak
        return round(float((self.base + batch * self.each).max(initial=0.0)))


@functools.lru_cache(maxsize=64)
def growth(reference: str, *, half: bool) -> Growth:
    """How the live bytes of a job's step grow with its batch: two traces say it for every batch.

    Args:
        reference: of the job
        half: it computes in 16 bits

    Raises:
        InputError: no such job, or its step cannot be traced
    """
    tracer = JobTracer(replace(resolve(reference), precision="bf16" if half else "fp32"))
    small, large = (live_bytes(tracer.trace(size), KEEP_ALL).at.astype(np.float64) for size in _SIZES)
    if len(small) != len(large):
        return Growth(small, np.zeros_like(small), tracer)
    each = (large - small) / (_SIZES[1] - _SIZES[0])
    return Growth(small - _SIZES[0] * each, each)


def traced_peak(row: Row) -> int:
    """Peak of the live bytes of a training step, without offload or recompute [bytes].

    Raises:
        InputError: no network of ours, or the row has no batch or no known precision
    """
    network, batch = _asked(row)
    length = row.fields.get("seq_len")
    with cells_read(row):
        sequence = int(float(length)) if length else None
    reference = f"{network}{',' if ':' in network else ':'}sequence={sequence}" if length else network
    half = any(word in row.fields.get("precision", "").lower() for word in ("16", "amp", "mixed"))
    return growth(reference, half=half).peak(batch)


def _asked(row: Row) -> tuple[str, int]:
    model = row.fields.get("model", "")
    network = canonical_network(model)
    if network is None:
        raise InputError(f"{model}: no network of ours", model=model)
    count = row.fields.get("batch_per_gpu") or row.fields.get("micro_batch")
    if not count:
        raise InputError(f"row {row.row_id}: batch_per_gpu: missing", row=row.row_id)
    with cells_read(row):
        return network, int(float(count))
