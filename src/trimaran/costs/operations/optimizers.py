"""What form an optimizer takes under a framework: a workload has that of PyTorch parameter by parameter.

    single    several kernels a parameter, each reads and writes memory        PyTorch before 1.13
    grouped   the same, lists of parameters a launch (`foreach`)               PyTorch since 1.13; Torch7's flat vectors
    fused     one kernel, each figure read and written once                    TensorFlow, MXNet, Apex

Source: pytorch/pytorch, torch/optim (`foreach` by default since 1.13); NVIDIA/apex, csrc/multi_tensor_*; tensorflow,
core/kernels/training_ops; apache/mxnet, src/operator/optimizer_op.
"""

from dataclasses import replace
from typing import Literal

import numpy

from trimaran.costs.operations.kernels import Kernels
from trimaran.costs.software import Software
from trimaran.graph.workload import WorkKind

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
