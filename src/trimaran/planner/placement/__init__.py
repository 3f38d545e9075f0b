"""Which device runs which operation of a network, in what order, and what crosses when."""

from trimaran.planner.placement.from_graph import parts_of, placement_problem
from trimaran.planner.placement.solve import place
from trimaran.planner.placement.types import (
    Placement,
    PlacementNode,
    PlacementProblem,
    Run,
    Transfer,
    Wire,
)

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
