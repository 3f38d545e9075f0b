"""Costs that a framework adds to a step: the host's work for each kernel, and memory traffic that others save.

A host launches kernels one after another, ahead of the device where it can. It is the limit of a step of many small
kernels: those of LeNet on any card of the last ten years, of ResNet-50 at small batches on a fast one. How long a
launch takes depends on the framework's work for it: interpret Python, look up and allocate, or replay a graph. How
far it runs ahead differs too (`overlap`): MXNet's engine waits for a device after each operator, so its time adds up.

Works are as PyTorch's operators are. A framework that has no kernel for layer norm, GELU or dropout makes them of many
operators, each of which reads and writes memory; a compiler (XLA, TorchInductor) saves most elementwise traffic.
Left out: the speed of the host's processor, which the published figures do not state.

Local response normalization as one kernel, as every framework but PyTorch has it.

A workload has PyTorch's operators, and PyTorch makes the layer of some seven that each read and write all of their
input, with twice as many in the backward. cuDNN's kernel reads its input and writes output and scale, and in the
backward reads those and the gradient and writes one. Their traffic and launches are shared out over the operators, so
that works stay one to one.

Source: Chetlur and others, "cuDNN", arXiv:1410.0759; apache/mxnet, src/operator/nn/lrn.cc; pytorch/pytorch,
torch/nn/functional.py, `local_response_norm`.

Form of an optimizer under a framework: a workload has that of PyTorch parameter by parameter.

    single    several kernels a parameter, each reads and writes memory        PyTorch before 1.13
    grouped   the same, lists of parameters a launch (`foreach`)               PyTorch since 1.13; Torch7's flat vectors
    fused     one kernel, each figure read and written once                    TensorFlow, MXNet, Apex

Source: pytorch/pytorch, torch/optim (`foreach` by default since 1.13); NVIDIA/apex, csrc/multi_tensor_*; tensorflow,
core/kernels/training_ops; apache/mxnet, src/operator/optimizer_op.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy

from trimaran.graph.kernels.workload import Work, WorkKind
from trimaran.graph.types import Phase
from trimaran.pricing.kernels.columns import ELEMENT_BYTES, MATRIX_KINDS, Column, Kernels
from trimaran.pricing.kernels.device import Constants
from trimaran.pricing.kernels.software import Software

_HEAVY = [kind.value for kind in (*MATRIX_KINDS, WorkKind.RECURRENT)]


def host_durations(kernels: Kernels, software: Software, constants: Constants) -> Column:
    """Time of the host for each work of a step [s]."""
    per_launch = framework_constant("host", software, constants)
    if software.compiled:
        per_launch *= constants["host.compiled"]
    busy = (kernels.flops > 0) | (kernels.nbytes > 0)
    return numpy.where(busy, per_launch * kernels.launches, 0.0)


def traffic(kernels: Kernels, software: Software, constants: Constants) -> Column:
    """By how much longer each work takes under a framework than its own bytes do, 1 where it is bound by computing."""
    light = numpy.full(len(kernels), framework_constant("traffic", software, constants))
    composite = framework_constant("composite", software, constants)
    if software.compiled:
        light = light * constants["traffic.compiled"]
        composite = 1.0
    if software.channels_last:
        half = numpy.isin(kernels.dtype, ["float16", "bfloat16"])
        light = numpy.where(half, light * constants["traffic.channels_last"], light)
    factor = numpy.where(kernels.composite, light * composite, light)
    return numpy.where(numpy.isin(kernels.kind, _HEAVY), 1.0, factor)


def framework_constant(figure: str, software: Software, constants: Constants) -> float:
    """A constant of a framework, or that of others where it has none."""
    return constants.get(f"{figure}.{software.framework}", constants[f"{figure}.other"])


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


Form = Literal["single", "grouped", "fused"]

FUSED_BYTES = {"SGD": 20.0}
"""Bytes of an element: read parameter, gradient and momentum, write parameter and momentum."""

_ADAPTIVE_BYTES = 28.0
"""The same with two moments."""

_TENSORS_OF_A_LAUNCH = 30.0
"""Tensors of a list that one launch takes."""

_FOREACH_YEAR = 2022.8


def optimizer_form(software: Software) -> Form:
    """The form that a framework's optimizers have.

    Example:
        >>> optimizer_form(Software(year=2020.5)), optimizer_form(Software(framework="mxnet"))
        ('single', 'fused')
    """
    if software.framework == "torch7":
        return "grouped"
    if software.framework != "pytorch" or "apex" in software.libraries.lower() or software.compiled:
        return "fused"
    return "grouped" if software.year >= _FOREACH_YEAR else "single"


def with_optimizer(kernels: Kernels, software: Software) -> Kernels:
    """The kernels of a step with the optimizer in the form that a framework gives it."""
    form = optimizer_form(software)
    chosen = kernels.kind == WorkKind.OPTIMIZER.value
    if form == "single" or not chosen.any():
        return kernels
    launches, nbytes = kernels.launches.copy(), kernels.nbytes.copy()
    if form == "fused":
        fewest = numpy.array([FUSED_BYTES.get(str(name), _ADAPTIVE_BYTES) for name in kernels.name[chosen]])
        nbytes[chosen] = numpy.minimum(nbytes[chosen], fewest * kernels.elements[chosen])
        launches[chosen] = 1.0
    if form == "grouped" or software.framework == "pytorch":
        launches[chosen] = launches[chosen] / _TENSORS_OF_A_LAUNCH
    return replace(kernels, launches=launches, nbytes=nbytes)
