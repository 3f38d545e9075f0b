"""What things cost, with an interval and a source."""

from trimaran.costs.compute import operation_seconds
from trimaran.costs.pricing import price
from trimaran.costs.tables import CostTable, Fingerprint
from trimaran.costs.types import Cost, Interference, OpCost, ProgramCosts, Transfer

__all__ = [
    "Cost",
    "CostTable",
    "Fingerprint",
    "Interference",
    "OpCost",
    "ProgramCosts",
    "Transfer",
    "operation_seconds",
    "price",
]
