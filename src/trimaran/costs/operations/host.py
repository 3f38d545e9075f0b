"""What a framework adds to a step: the host's work for each kernel, and memory traffic that others save.

A host launches kernels one after another, ahead of the device where it can. It is the limit of a step of many small
kernels: those of LeNet on any card of the last ten years, of ResNet-50 at small batches on a fast one. How long a
launch takes depends on what the framework does for it: interpret Python, look up and allocate, or replay a graph. How
far it runs ahead differs too (`overlap`): MXNet's engine waits for a device after each operator, so its time adds up.

Works are as PyTorch's operators are. A framework that has no kernel for layer norm, GELU or dropout makes them of many
operators, each of which reads and writes memory; a compiler (XLA, TorchInductor) saves most of what is elementwise.
Left out: the speed of the host's processor, which the published figures do not tell apart.
"""

import numpy

from trimaran.costs.operations.constants import Constants
from trimaran.costs.operations.kernels import MATRIX_KINDS, Column, Kernels
from trimaran.costs.software import Software
from trimaran.graph.workload import WorkKind

_HEAVY = [kind.value for kind in (*MATRIX_KINDS, WorkKind.RECURRENT)]


def host_durations(kernels: Kernels, software: Software, constants: Constants) -> Column:
    """What the host needs for each work of a step [s]."""
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
    """A constant of a framework, or that of others where it has none of its own."""
    return constants.get(f"{figure}.{software.framework}", constants[f"{figure}.other"])
