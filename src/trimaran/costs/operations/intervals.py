"""How far off a modelled step may be.

The error of a step is taken as log-normal, of independent parts: of the device, whose architecture, clocks and
cooling the curves know only so well; of the network, whose shapes they fit more or less; of the software. Their sizes
are what is left when a device, a network or a framework is kept out of the fit.
"""

import math

from trimaran.cluster.catalog import CatalogDevice
from trimaran.costs.operations.constants import Constants
from trimaran.costs.software import Software
from trimaran.graph.workload import Workload


def step_spread(workload: Workload, device: CatalogDevice, software: Software, table: Constants) -> float:
    """Standard deviation of the logarithm of a modelled step."""
    known = f"architecture.{device.architecture}.vector" in table
    parts = (
        table["spread.device" if known else "spread.unknown_device"],
        table["spread.network"],
        table["spread.software" if f"host.{software.framework}" in table else "spread.unknown_software"],
    )
    return math.sqrt(sum(part * part for part in parts))
