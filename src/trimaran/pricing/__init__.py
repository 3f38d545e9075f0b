"""Costs of compute, transfers and memory, each with an interval and a source."""

from trimaran.pricing.compute import operation_seconds
from trimaran.pricing.program import price
from trimaran.pricing.tables import CostTable, Fingerprint
from trimaran.pricing.types import Cost, Interference, OpCost, ProgramCosts, Transfer

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
