"""Choose a strategy by simulation, and say why."""

from trimaran.planner.candidates import Candidate, cut, evaluate, score
from trimaran.planner.choice import choose, shown, simplicity
from trimaran.planner.epoch import EpochData
from trimaran.planner.problem import Problem
from trimaran.planner.search import Search, search
from trimaran.planner.space import Rejection, enumerate_strategies

__all__ = [
    "Candidate",
    "EpochData",
    "Problem",
    "Rejection",
    "Search",
    "choose",
    "cut",
    "enumerate_strategies",
    "evaluate",
    "score",
    "search",
    "shown",
    "simplicity",
]
