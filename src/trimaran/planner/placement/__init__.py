"""Which device runs which operation of a network, in which order, and when tensors cross."""

from trimaran.planner.placement.network import parts_of, placement_problem
from trimaran.planner.placement.problem import Placement, PlacementNode, PlacementProblem, Run, Transfer, Wire
from trimaran.planner.placement.solve import place

__all__ = [
    "Placement",
    "PlacementNode",
    "PlacementProblem",
    "Run",
    "Transfer",
    "Wire",
    "parts_of",
    "place",
    "placement_problem",
]
