"""What simple rules say beside us: linear scaling, a discount for every doubling, a fixed share of the peak."""

import math
from collections.abc import Mapping

from trimaran.cluster.catalog import CatalogDevice
from trimaran.graph.workload import Workload

_SHARE = 0.35
"""Of the peak that a step of training reaches, whatever the network and the device: a common rule of thumb."""

_DISCOUNT = 0.025
"""Of the efficiency, for every doubling of devices."""

HALF_WIDTH = 0.25
"""Half the width of the interval that ours has to be better than."""


def scaling_baselines(anchor_rate: float, devices: int) -> Mapping[str, float]:
    """Rates of N devices from that of one.

    Args:
        anchor_rate: of one device
        devices: N

    Example:
        >>> round(scaling_baselines(100.0, 8)["log2"], 1)
        744.2
    """
    return {"linear": anchor_rate * devices, "log2": anchor_rate * devices / (1 + _DISCOUNT * math.log2(devices))}


def roofline_step_s(workload: Workload, device: CatalogDevice) -> float:
    """A step at a fixed share of the device's peak [s]."""
    rate = device.compute.get(workload.precision) or device.compute["float32"]
    return workload.flops() / (_SHARE * rate.flops_per_s)
