"""Choose a strategy by simulation, and say why."""

from trimaran.planner.search import Candidate, Search, choose, cut, evaluate, score, search
from trimaran.planner.space import Rejection, enumerate_strategies

__all__ = ["Candidate", "Rejection", "Search", "choose", "cut", "enumerate_strategies", "evaluate", "score", "search"]
