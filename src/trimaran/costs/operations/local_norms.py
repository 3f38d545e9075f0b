"""Local response normalization as one kernel, as every framework but PyTorch has it.

A workload has PyTorch's operators, and PyTorch makes the layer of some seven that each read and write all of their
input, with twice as many in the backward. cuDNN's kernel reads its input and writes output and scale, and in the
backward reads those and the gradient and writes one. Their traffic and launches are shared out over the operators, so
that works stay one to one.

Source: Chetlur and others, "cuDNN", arXiv:1410.0759; apache/mxnet, src/operator/nn/lrn.cc; pytorch/pytorch,
torch/nn/functional.py, `local_response_norm`.
"""

from collections.abc import Sequence
from dataclasses import replace

from trimaran.costs.operations.kernels import ELEMENT_BYTES
from trimaran.costs.software import Software
from trimaran.graph.types import Phase
from trimaran.graph.workload import Work

PASSES = {Phase.FORWARD: 3, Phase.BACKWARD: 5}
"""How many tensors as large as the input a kernel reads and writes."""

_MARK = "aten.avg_pool3d"
"""Averages over channels: in the networks of the field only this layer takes them."""


def with_local_norms(works: Sequence[Work], software: Software) -> Sequence[Work]:
    """The works as a framework runs them."""
    sizes = {work.module: max(work.dims) for work in works if work.name == _MARK and work.phase is Phase.FORWARD}
    if software.framework == "pytorch" or not sizes:
        return works
    totals: dict[tuple[str, Phase], int] = {}
    for work in works:
        if work.module in sizes:
            totals[work.module, work.phase] = totals.get((work.module, work.phase), 0) + work.nbytes
    return [_shared(work, sizes[work.module], totals) if work.module in sizes else work for work in works]


def _shared(work: Work, elements: int, totals: dict[tuple[str, Phase], int]) -> Work:
    total = totals[work.module, work.phase]
    if work.phase not in PASSES or total <= 0:
        return work
    fused = PASSES[work.phase] * elements * ELEMENT_BYTES.get(work.dtype, 4)
    share = min(1.0, fused / total)
    first = work.name in (_MARK, f"{_MARK}_backward")
    return replace(work, nbytes=round(work.nbytes * share), launches=1 if first else 0)
